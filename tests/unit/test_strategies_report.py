"""What `make bench-strategies` writes into the documents."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench.strategies import report
from tests.bench.strategies.measuring import Run
from tests.bench.strategies.ways import WAYS

PLAN = report.Plan(rounds=2, calls=100, faulted=1_000, seed=1)


def line(number: int, counted: int = 1_000, exact: bool = True) -> report.Line:
    run = Run(100, 1 / (number + 1), 50.0, 100 if exact else 101, 0.5, 3.0)
    return report.Line.of(WAYS[number], [run, run], [run, run], 1_000, counted)


def test_a_count_that_must_be_exact_and_is_not_is_a_fault() -> None:
    assert line(0, counted=1_042).faults == []
    assert line(4, counted=1_001).faults == ["folded: counted 1,001 of 1,000 under faults"]
    assert line(0, exact=False).faults == ["one row: 2 rounds without a fault were not exact"]


def test_an_error_has_its_sign() -> None:
    assert [line(0, counted=n).error_text for n in (1_042, 1_000, 480)] == ["+4.2 %", "exact", "\u221252.0 %"]


def test_the_plot_is_wellformed_and_names_each_strategy_once() -> None:
    lines = [line(n, counted=480 + 200 * n) for n in range(len(WAYS))]
    drawn = ElementTree.fromstring(report.plot(lines))  # noqa: S314 (our own)
    texts = ["".join(element.itertext()) for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [texts.count(way.name) for way in WAYS] == [1] * len(WAYS)
    assert texts.count("exact") == 0
    right = float(drawn.attrib["viewBox"].split()[2])
    assert all(0 <= float(element.attrib["x"]) < right for element in drawn.iter() if "x" in element.attrib)


def test_writing_changes_the_figures_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "DOCS", tmp_path)
    page = tmp_path / "strategies.md"
    page.write_text(f"before\n{report.BEGIN}yesterday\n{report.END}after\n")
    lines = [line(n) for n in range(len(WAYS))]
    report.write(lines, PLAN, "today")
    first = page.read_text()
    assert first.startswith(f"before\n{report.BEGIN}Measured: today.\n")
    assert first.endswith(f"{report.END}after\n")
    assert "yesterday" not in first
    report.write(lines, PLAN, "today")
    assert page.read_text() == first


def test_the_page_has_the_place_for_the_figures() -> None:
    page = (report.DOCS / "strategies.md").read_text()
    assert page.count(report.BEGIN) == page.count(report.END) == 1
    assert page.index(report.BEGIN) < page.index(report.END)
