"""The table, for people at a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import Line
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("RESULTS.md")
_COLUMNS = ("bench", "figure", "floor", "ours", "ratio", "range", "gate", "verdict")
_STYLES = {"pass": "green", "miss": "red"}

_HEAD = """# Results

Written by `python bench/run.py --write`. Floor and ours are measured in turns in the same process and minute; every
figure is a median over rounds, `ratio` is ours / floor, `range` the smallest and the largest ratio of a single round.
A gate with ≥ wants at least that ratio, with ≤ at most. Absolute figures depend on the machine and on what else it does.
"""


def show(lines: Sequence[Line], about: Mapping[str, str]) -> None:
    """Print the table and what it was measured on."""
    table = Table(*_COLUMNS)
    for cells in map(_cells, lines):
        table.add_row(*cells, style=_STYLES.get(cells[-1], ""))
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    console.print(table)
    for name, value in about.items():
        console.print(f"{name}: {value}", highlight=False)


def write(lines: Sequence[Line], about: Mapping[str, str]) -> None:
    """Write the same as Markdown, with the sizes of each figure."""
    columns = (*_COLUMNS, "how")
    rows = [" | ".join(columns), " | ".join("---" for _ in columns)]
    rows += [" | ".join((*_cells(line), line.note)) for line in lines]
    table = "\n".join(f"| {row} |" for row in rows)
    machine = "\n".join(f"- {name}: {value}" for name, value in about.items())
    RESULTS.write_text(f"{_HEAD}\n## Machine\n\n{machine}\n\n## Figures\n\n{table}\n", encoding="utf-8")


def _cells(line: Line) -> tuple[str, ...]:
    gate = "" if line.gate is None else f"{'≥' if line.better == 'higher' else '≤'} {line.gate:g}"
    spread = "" if line.spread is None else f"{line.spread[0]:.2f} to {line.spread[1]:.2f}"
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    floor = "" if line.floor is None else _number(line.floor, line.unit)
    return line.bench, line.name, floor, _number(line.ours, line.unit), ratio, spread, gate, line.verdict


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"
    return f"{text} {unit}"
