"""Each case from the field has tests, and they exist."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest
from field_cases import CASES

TESTS = Path(__file__).parents[1]


@lru_cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("case", CASES)
def test_every_case_from_the_field_has_a_test(case: str) -> None:
    assert CASES[case]
    for named in CASES[case]:
        path, _, name = named.partition("::")
        assert name in names_in(path), named
