"""The comparison as lines of a terminal, as a table of docs/strategies.md, and as its plot."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path

from tests.bench.strategies.faults import FATES, fates
from tests.bench.strategies.measuring import BATCH, CLIENTS, Run
from tests.bench.strategies.ways import LANES, Way

DOCS = Path(__file__).resolve().parents[3] / "docs"
BEGIN, END = "<!-- written by make bench-strategies -->\n", "<!-- end -->\n"
DOLLARS_PER_MILLION_UNITS = 0.625  # on demand, us-east-1, 2026


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    calls: int  # of each strategy in a round
    faulted: int  # calls under faults
    seed: int


@dataclass(frozen=True)
class Line:
    """One strategy, compared."""

    way: Way
    per_second: float
    times_one_row: float  # median of the rounds' ratios
    units: float  # write units per 1,000 increments
    read_units: float
    read_ms: float
    inexact: int  # rounds without faults whose count was wrong
    true: int  # increments under faults
    counted: int

    @classmethod
    def of(cls, way: Way, runs: Sequence[Run], of_one_row: Sequence[Run], true: int, counted: int) -> Line:
        return cls(
            way=way,
            per_second=statistics.median(run.per_second for run in runs),
            times_one_row=statistics.median(
                run.per_second / base.per_second for run, base in zip(runs, of_one_row, strict=True)
            ),
            units=statistics.median(run.units_per_1000 for run in runs),
            read_units=max(run.read_units for run in runs),
            read_ms=statistics.median(run.read_ms for run in runs),
            inexact=sum(run.counted != run.increments for run in runs),
            true=true,
            counted=counted,
        )

    @property
    def error(self) -> float:
        """Of the count under faults, as a share of the true one."""
        return (self.counted - self.true) / self.true

    @property
    def error_text(self) -> str:
        return "exact" if self.counted == self.true else f"{self.error:+.1%}".replace("-", "\u2212").replace("%", " %")

    @property
    def faults(self) -> list[str]:
        """What must not be: sentences, none if all is well."""
        faults = []
        if self.inexact:
            faults.append(f"{self.way.name}: {self.inexact} rounds without a fault were not exact")
        if self.way.ours and self.counted != self.true:
            faults.append(f"{self.way.name}: counted {self.counted:,} of {self.true:,} under faults")
        return faults


def setting(plan: Plan) -> str:
    load = os.getloadavg()[0]
    beside = ", beside other work" if load > 1 else ""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return (
        f"{CLIENTS} clients, {plan.calls:,} calls a round, median of {plan.rounds} rounds; {plan.faulted:,} calls with "
        f"faults, seed {plan.seed}; {machine}, load {load:.1f}{beside}, {dt.datetime.now(dt.UTC).date()}"
    )


def text(lines: Sequence[Line]) -> str:
    """For a terminal."""
    head = (
        f"  {'':18}{'increments/s':>13}{'x one row':>11}{'units/1,000':>13}{'read units':>12}{'read ms':>9}"
        f"{'counted':>10}{'true':>10}  under faults"
    )
    rows = [
        f"  {line.way.name:18}{line.per_second:>13,.0f}{line.times_one_row:>11.2f}{line.units:>13,.1f}"
        f"{line.read_units:>12}{line.read_ms:>9.2f}{line.counted:>10,}{line.true:>10,}  {line.error_text}"
        for line in lines
    ]
    return "\n".join([head, *rows])


def write(lines: Sequence[Line], plan: Plan, measured: str) -> None:
    """Puts the figures into docs/strategies.md, between its two marks, and draws docs/strategies.svg."""
    page = DOCS / "strategies.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{markdown(lines, plan, measured)}{END}{after}", encoding="utf-8")
    (DOCS / "strategies.svg").write_text(plot(lines), encoding="utf-8")


# --- the page -------------------------------------------------------------------------------------------------


def markdown(lines: Sequence[Line], plan: Plan, measured: str) -> str:
    return "\n".join(
        [
            f"Measured: {measured}.",
            "",
            "| strategy | increments/s here | times one row | write units per 1,000 | dollars per million | "
            "read units | read, ms | counted under faults | error |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *(_row(line) for line in lines),
            "",
            f"The {plan.faulted:,} calls of each strategy met:",
            "",
            *(f"- {n} times: {name};" for name, n in _made(plan)),
            "- once, in the middle: Valkey restarts, empty.",
            "",
            f"Ours were folded {BATCH} records of a lane at a time, {LANES} lanes. What the limits of AWS leave each, "
            "computed:",
            "",
            "| strategy | increments a second of one item on AWS |",
            "| --- | --- |",
            *(f"| {line.way.name} | {line.way.on_aws} |" for line in lines),
            "",
        ]
    )


def _row(line: Line) -> str:
    dollars = f"{line.units / 1000 * DOLLARS_PER_MILLION_UNITS:.3f}" if line.units else "no units"
    read = f"{line.read_units:g}" if line.read_units else "none"
    cells = [
        f"**{line.way.name}**" if line.way.ours else line.way.name,
        f"{line.per_second:,.0f}",
        f"{line.times_one_row:.2f}",
        f"{line.units:,.1f}",
        dollars,
        read,
        f"{line.read_ms:.2f}",
        f"{line.counted:,} of {line.true:,}",
        line.error_text,
    ]
    return f"| {' | '.join(cells)} |"


def _made(plan: Plan) -> list[tuple[str, int]]:
    met = Counter(fate.name for fate in islice(fates(plan.seed), plan.faulted))
    return [(fate.name, met[fate.name]) for fate in FATES]


# --- the plot -------------------------------------------------------------------------------------------------

_LEFT, _TOP, _STEP, _BAR, _PANEL, _GAP, _LABEL = 150, 78, 32, 16, 150, 30, 62
_WIDTH = _LEFT + 3 * (_PANEL + _LABEL) + 2 * _GAP + 16
_STYLE = """
    .back { fill: #ffffff }
    .name, .title { fill: #16202e }
    .title { font-weight: 600 }
    .ours { font-weight: 600 }
    .value, .unit { fill: #44505f; font-size: 12px }
    .axis { stroke: #9aa7b6 }
    .bar { fill: #a9b4c2 }
    .bar-ours { fill: #2f7d4f }
    .bar-wrong { fill: #b5482f }
    @media (prefers-color-scheme: dark) {
      .back { fill: #0d1117 }
      .name, .title { fill: #e8eef6 }
      .value, .unit { fill: #b4c0ce }
      .axis { stroke: #55606e }
      .bar { fill: #5d6b7c }
      .bar-ours { fill: #63b985 }
      .bar-wrong { fill: #e07a5f }
    }
"""


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    values: Sequence[float]
    labels: Sequence[str]
    kinds: Sequence[str]  # of the bars


def plot(lines: Sequence[Line]) -> str:
    """Three panels of bars, a row per strategy, as SVG that follows the reader's light or dark."""
    kinds = ["ours" if line.way.ours else "" for line in lines]
    panels = [
        _Panel(
            "Increments a second",
            "times one row, on one machine",
            [line.times_one_row for line in lines],
            [f"{line.times_one_row:.1f}" for line in lines],
            kinds,
        ),
        _Panel(
            "Write units",
            "per 1,000 increments",
            [line.units for line in lines],
            [f"{line.units:,.0f}" if line.units else "none" for line in lines],
            kinds,
        ),
        _Panel(
            "Error under faults",
            "of the true count",
            [line.error for line in lines],
            [line.error_text for line in lines],
            ["wrong"] * len(lines),
        ),
    ]
    height = _TOP + _STEP * len(lines) + 8
    names = [
        f'  <text class="name{" ours" if line.way.ours else ""}" x="{_LEFT - 12}" y="{_middle(i) + 5}" '
        f'text-anchor="end">{escape(line.way.name)}</text>'
        for i, line in enumerate(lines)
    ]
    drawn = [part for place, panel in enumerate(panels) for part in _drawn(panel, place, height)]
    said = "; ".join(
        f"{line.way.name}: {line.times_one_row:.1f} times one row, {line.units:,.0f} units, {line.error_text}"
        for line in lines
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            'aria-labelledby="title desc" font-family="system-ui, -apple-system, \'Segoe UI\', sans-serif" '
            'font-size="13">',
            '  <title id="title">Strategies for counting a hot item</title>',
            f'  <desc id="desc">{escape(said)}</desc>',
            f"  <style>{_STYLE}  </style>",
            f'  <rect class="back" width="{_WIDTH}" height="{height}" rx="10"/>',
            *names,
            *drawn,
            "</svg>",
            "",
        ]
    )


def _middle(row: int) -> int:
    return _TOP + _STEP * row + _STEP // 2


def _drawn(panel: _Panel, place: int, height: int) -> list[str]:
    left = _LEFT + place * (_PANEL + _LABEL + _GAP)
    low, high = min(0.0, *panel.values), max(0.0, *panel.values)
    scale = _PANEL / (high - low or 1)
    zero = left - low * scale
    parts = [
        f'  <text class="title" x="{left}" y="32">{panel.title}</text>',
        f'  <text class="unit" x="{left}" y="50">{panel.unit}</text>',
        f'  <line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="{_TOP}" y2="{height - 8}"/>',
    ]
    for row, (value, label, kind) in enumerate(zip(panel.values, panel.labels, panel.kinds, strict=True)):
        begin, end = sorted((zero, zero + value * scale))
        name = f"bar-{kind}" if kind else "bar"
        top = _middle(row) - _BAR // 2
        if value:
            place_of = f'x="{begin:.1f}" y="{top}" width="{max(1.0, end - begin):.1f}" height="{_BAR}"'
            parts.append(f'  <rect class="{name}" {place_of}/>')
        parts.append(f'  <text class="value" x="{end + 6:.1f}" y="{_middle(row) + 4}">{label}</text>')
    return parts
