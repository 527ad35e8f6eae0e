"""Every row of the specification of tiered memory has a test of its name, or stands here with the reason why it has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
_NAMED = re.compile(r"def test_tier_((?:(?:t|x|weak_)\d+_)+)")
_ROW = re.compile(r"(t|x|weak_)(\d+)_")

CASES = {f"t{number}" for number in range(1, 68)}
CONSEQUENCES = {f"x{number}" for number in range(1, 29)}
WEAKNESSES = {f"weak_{number}" for number in range(1, 23)}

# Rows about parts of the framework that the specification was written for, which have no counterpart here.
EXCUSED = {
    "t53": "a helper that appends by role to a repository that may be missing; a manager always has a store",
    "t55": "memory types of a YAML file; a program builds the store it wants, and what does not fit is refused then (t56, x20)",
    "t59": "presets of a builder; `Settings` is the only form of configuration",
    "t66": "options of a framework with an empty name or a nil value; here they are typed arguments without defaults to forget",
    "t67": "options of a framework used together; there is no framework that wraps a manager",
}


def rows_with_tests() -> set[str]:
    """Rows that some test of this project carries in its name."""
    sources = [path.read_text() for path in sorted(TESTS.glob("*/test_*.py"))]
    named = [rows for source in sources for rows in _NAMED.findall(source)]
    return {f"{kind}{int(number)}" for rows in named for kind, number in _ROW.findall(rows)}


@pytest.mark.parametrize("rows", [CASES, CONSEQUENCES, WEAKNESSES], ids=["cases", "consequences", "weaknesses"])
def test_every_row_is_tested_or_excused(rows: set[str]) -> None:
    assert rows - rows_with_tests() - set(EXCUSED) == set()


def test_nothing_is_excused_that_is_tested_or_is_no_row() -> None:
    assert set(EXCUSED) & rows_with_tests() == set()
    assert set(EXCUSED) <= CASES | CONSEQUENCES | WEAKNESSES


def test_no_test_names_a_row_that_does_not_exist() -> None:
    assert rows_with_tests() <= CASES | CONSEQUENCES | WEAKNESSES
