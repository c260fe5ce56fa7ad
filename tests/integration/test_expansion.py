"""Our expansion of SAM's resources against the result of SAM's own translator."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from infra.local.expansion import expanded
from infra.local.template import load

ROOT = Path(__file__).resolve().parents[2]


def packaged() -> dict[str, Any]:
    """The template as it stands after its code was uploaded."""
    template = load(ROOT / "template.yaml")
    for resource in template["Resources"].values():
        for name in ("CodeUri", "ContentUri"):
            if name in resource.get("Properties", {}):
                resource["Properties"][name] = "s3://bucket/key.zip"
    return template


def translated(template: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What SAM's translator makes of it."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    from samtranslator.translator.transform import transform

    class NoManagedPolicies:
        def load(self) -> dict[str, str]:
            return {}

    result: dict[str, Any] = transform(copy.deepcopy(template), {}, NoManagedPolicies())
    return result


def without_generated_names(value: Any) -> Any:
    """SAM names a layer version after its content; here it keeps its own name."""
    if isinstance(value, dict):
        return {_plain(key): without_generated_names(item) for key, item in value.items() if key != "Metadata"}
    if isinstance(value, list):
        return [without_generated_names(item) for item in value]
    return _plain(value) if isinstance(value, str) else value


def _plain(name: str) -> str:
    return re.sub(r"^CoreLayer[0-9a-f]{10}$", "CoreLayer", name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_what_sam_makes_of_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    template = packaged()
    ours = without_generated_names(expanded(template)["Resources"])
    sams = without_generated_names(translated(template, monkeypatch)["Resources"])
    assert set(ours) == set(sams)
    for name in sams:
        assert ours[name] == sams[name], name


def test_what_is_not_known_is_left_to_the_emulator() -> None:
    template = packaged()
    template["Resources"]["WriteApiFunction"]["Properties"]["SnapStart"] = {"ApplyOn": "PublishedVersions"}
    assert expanded(template) == template
