"""docs/settings.md names the settings and parameters that there are, with their defaults."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from infra.local.template import load
from tallymark.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = load(ROOT / "template.yaml")
PARAMETERS: dict[str, dict[str, Any]] = TEMPLATE["Parameters"]
VARIABLES: dict[str, Any] = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
FIELDS = {field.name.upper() for field in dataclasses.fields(Settings)}


def table(title: str) -> dict[str, list[str]]:
    """The first table below a heading: name -> the other cells."""
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    names = [name.strip("`") for name, *_ in rows]
    assert len(names) == len(set(names)), "a row stands twice"
    return {name: cells for name, (_, *cells) in zip(names, rows, strict=True)}


def default(parameter: str) -> str:
    value = str(PARAMETERS[parameter]["Default"])
    return f"`{value}`" if value else "empty"


def test_every_setting_stands_in_the_page_and_no_other() -> None:
    assert set(table("Environment variables")) == FIELDS


def test_every_parameter_stands_in_the_page_and_no_other() -> None:
    assert set(table("Template parameters")) == set(PARAMETERS)


def test_parameters_have_the_defaults_of_the_template() -> None:
    documented = {name: cells[0] for name, cells in table("Template parameters").items()}
    assert documented == {name: default(name) for name in PARAMETERS}


@pytest.mark.parametrize("variable", sorted(FIELDS))
def test_a_setting_comes_from_where_the_page_says(variable: str) -> None:
    value = VARIABLES[variable]
    source, documented_default, *_ = table("Environment variables")[variable]
    sources = set(re.findall(r'"Ref": "(\w+)"', re.sub(r"'", '"', str(value))))
    named = set(re.findall(r"`(\w+)`", source))
    assert sources <= named
    if parameters := sources & set(PARAMETERS):
        (parameter,) = parameters
        assert documented_default == default(parameter)
        assert named <= set(PARAMETERS)


def test_every_setting_that_can_be_chosen_says_what_a_change_does() -> None:
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\*\*`([A-Z_]+)`\*\*:", text, re.MULTILINE))
    own = {"LIKES_TABLE", "LIKES_STREAM_ARN", "EVENTS_TABLE", "COUNTERS_TABLE"}
    own |= {"QUOTAS_TABLE", "PARKED_QUEUE_URL", "PARKED_DEAD_QUEUE_URL"}
    assert explained == FIELDS - own
