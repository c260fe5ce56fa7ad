"""The command line of the local stack."""

from __future__ import annotations

import pytest

from infra.local.__main__ import _parser


@pytest.mark.parametrize("text", ["AuthMode", "=iam", ""])
def test_a_parameter_of_the_template_has_a_name_and_a_value(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["up", "--parameter", text])
    assert "is not NAME=VALUE" in capsys.readouterr().err


def test_parameters_of_the_template_may_be_given_and_hold_anything() -> None:
    given = ["--parameter", "AuthMode=jwt", "--parameter", "JwtIssuer=http://127.0.0.1:9000/?a=b"]
    options = _parser().parse_args(["up", *given])
    assert dict(options.parameter) == {"AuthMode": "jwt", "JwtIssuer": "http://127.0.0.1:9000/?a=b"}
    assert _parser().parse_args(["up"]).parameter == []
