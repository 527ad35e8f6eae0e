"""Every row of the specification of the knowledge base has a test of its name, or stands here with the reason why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
_NAMED = re.compile(r"def test_brain_((?:(?:[rsxewflgkvcph]|weak_)\d+_)+)")
_ROW = re.compile(r"(weak_|[rsxewflgkvcph])(\d+)_")

_COUNTS = {"r": 9, "s": 12, "x": 5, "e": 18, "w": 14, "f": 3, "l": 1, "g": 1, "k": 5, "v": 2, "c": 1, "p": 2, "h": 4}
CASES = {f"{letter}{number}" for letter, count in _COUNTS.items() for number in range(1, count + 1)}
WEAKNESSES = {f"weak_{number}" for number in range(1, 30)}

EXCUSED: dict[str, str] = {}


def rows_with_tests() -> set[str]:
    """Rows that some test of this project carries in its name."""
    sources = [path.read_text() for path in sorted(TESTS.glob("*/test_*.py"))]
    named = [rows for source in sources for rows in _NAMED.findall(source)]
    return {f"{kind}{int(number)}" for rows in named for kind, number in _ROW.findall(rows)}


@pytest.mark.parametrize("rows", [CASES, WEAKNESSES], ids=["cases", "weaknesses"])
def test_every_row_is_tested_or_excused(rows: set[str]) -> None:
    assert rows - rows_with_tests() - set(EXCUSED) == set()


def test_nothing_is_excused_that_is_tested_or_is_no_row() -> None:
    assert set(EXCUSED) & rows_with_tests() == set()
    assert set(EXCUSED) <= CASES | WEAKNESSES


def test_no_test_names_a_row_that_does_not_exist() -> None:
    assert rows_with_tests() <= CASES | WEAKNESSES
