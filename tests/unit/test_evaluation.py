from __future__ import annotations

import json

import pytest

from isotherm.pipeline import evaluation
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.evaluation import Answered, Question


def ids(*names: str) -> list[frozenset[str]]:
    return [frozenset({name, f"title of {name}"}) for name in names]


ONE = Answered(Question("?", frozenset({"a", "b"}), 1), {"words": ids("x", "a", "y", "b"), "all": ids("a", "b")})
TWO = Answered(Question("?", frozenset({"title of c"}), 2), {"words": ids("x", "y"), "all": ids("c", "c")})


def test_recall_is_the_share_of_what_is_expected_and_is_averaged_over_questions() -> None:
    words = evaluation.measure([ONE, TWO], "words")
    assert words.recall == {1: 0.0, 3: 0.25, 5: 0.5, 10: 0.5}
    assert (words.whole, words.reciprocal_rank) == (0.5, 0.25)
    both = evaluation.measure([ONE, TWO], "all")
    assert both.recall == {1: 0.75, 3: 1.0, 5: 1.0, 10: 1.0}
    assert (both.whole, both.reciprocal_rank) == (1.0, 1.0)


def test_ways_and_misses_are_told() -> None:
    assert evaluation.ways_of([ONE, TWO]) == ["words", "all"]
    assert [each.question.line for each in evaluation.missed([ONE, TWO], "words")] == [2]
    assert [each.question.line for each in evaluation.missed([ONE, TWO], "words", 3)] == [1, 2]
    with pytest.raises(ValueError, match="nothing"):
        evaluation.measure([ONE], "unknown")


def test_questions_are_read_line_by_line() -> None:
    lines = [
        json.dumps({"question": "who?", "expected": "a", "kb": "forge"}),
        "",
        json.dumps({"question": "when?", "expected": ["b", "c"], "agent": "atlas", "session": "s", "tenant": "t"}),
    ]
    first, second = evaluation.read_questions(lines)
    assert first == Question("who?", frozenset({"a"}), 1, kb="forge")
    assert second == Question("when?", frozenset({"b", "c"}), 3, agent="atlas", session="s", tenant="t")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: an object"),
        ('{"question": "secret", "expect": ["a"]}', "line 1: unknown expect"),
        ('{"question": " ", "expected": ["a"]}', "line 1: question"),
        ('{"question": "secret", "expected": []}', "line 1: expected"),
        ('{"question": "secret", "expected": [1]}', "line 1: expected"),
        ('{"question": "secret", "expected": ["a"], "kb": 3}', "line 1: kb"),
        ('{"question": "secret", "expected": ["a"], "kb": "x", "agent": "y"}', "line 1: either"),
        (" ", "no question"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_without_its_text(line: str, reason: str) -> None:
    with pytest.raises(RejectedError, match=reason) as refused:
        evaluation.read_questions([line])
    assert "secret" not in str(refused.value)
