"""Every row of the specification of interests (5.1 to 5.4) has a test of its name, or stands here with the reason why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
_NAMED = re.compile(r"def test_interest_((?:(?:and_)?(?:s1|s2|ad|pe|st|[fvlrpbxw])_\d+_)+)")
_ROW = re.compile(r"(s1|s2|ad|pe|st|[fvlrpbxw])_(\d+)_")


def rows(kind: str, last: int) -> set[str]:
    return {f"{kind}_{number}" for number in range(1, last + 1)}


PINNED = rows("s1", 9) | rows("s2", 4) | rows("ad", 10) | rows("pe", 5)
NEIGHBORS = rows("f", 9) | rows("v", 2) | rows("l", 2) | rows("st", 3) | rows("w", 1) | rows("r", 3) | rows("p", 1)
BOUNDARIES = rows("b", 6)
REQUIRED = rows("x", 15)

EXCUSED = {
    "f_1": "windows that grow from the beginning, so that a provider's cache of prefixes helps; here each message is read in "
    "exactly one window (f_2), and no message is left out by a cap on windows",
}


def rows_with_tests() -> set[str]:
    """Rows that some test of this project carries in its name."""
    sources = [path.read_text() for path in sorted(TESTS.glob("*/test_*.py"))]
    named = [found for source in sources for found in _NAMED.findall(source)]
    return {f"{kind}_{int(number)}" for found in named for kind, number in _ROW.findall(found)}


@pytest.mark.parametrize(
    "wanted", [PINNED, NEIGHBORS, BOUNDARIES, REQUIRED], ids=["pinned", "neighbors", "boundaries", "required"]
)
def test_every_row_is_tested_or_excused(wanted: set[str]) -> None:
    assert wanted - rows_with_tests() - set(EXCUSED) == set()


def test_nothing_is_excused_that_is_tested_or_is_no_row() -> None:
    assert set(EXCUSED) & rows_with_tests() == set()
    assert set(EXCUSED) <= PINNED | NEIGHBORS | BOUNDARIES | REQUIRED


def test_no_test_names_a_row_that_does_not_exist() -> None:
    assert rows_with_tests() <= PINNED | NEIGHBORS | BOUNDARIES | REQUIRED
