from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline import text
from isotherm.pipeline.tier import newest
from isotherm.pipeline.tier.newest import alike, asks_for_the_present, may_renew, newest_first, pairs, statement
from isotherm.pipeline.tier.ranking import Candidate, Scored, rank
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.weights import RecallWeights

NOW = datetime(2026, 7, 1, tzinfo=UTC)
WEIGHTS = dict.fromkeys(text.terms("call quota weather"), 1.0)


def scored(*overlaps: float) -> list[Scored]:
    rows = [
        Candidate(n, f"r{n}", Tier.HOT, NOW - timedelta(days=100 - n), 0.5, overlap)
        for n, overlap in enumerate(overlaps)
    ]
    return list(rank(rows, RecallWeights(semantic=1, recency=0, importance=0), NOW))


def keys(items: list[Scored]) -> list[int]:
    return [item.candidate.key for item in items]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What is the call quota?", True),
        ("What was the quota originally?", False),
        ("How did the quota change over time?", False),
        ("  ", False),
    ],
)
def test_questions_about_the_past_are_left_alone(query: str, *, expected: bool) -> None:
    assert asks_for_the_present(query) is expected


def test_a_newer_statement_that_says_so_is_lifted_just_above_the_older_one() -> None:
    items = scored(0.9, 0.7, 0.1)
    found, replaced = newest_first(items, [(0, 1)])
    assert (keys(found), replaced) == ([1, 0, 2], {0: 1})
    assert found[0].parts.total == pytest.approx(0.9, abs=1e-6)
    assert found[0].parts.renewal == pytest.approx(0.2, abs=1e-6)


def test_a_statement_that_is_rated_far_lower_is_about_something_else() -> None:
    assert newest_first(scored(0.9, 0.2), [(0, 1)]) == (scored(0.9, 0.2), {})


def test_of_three_versions_the_last_comes_first() -> None:
    found, replaced = newest_first(scored(0.9, 0.8, 0.7), [(0, 1), (0, 2), (1, 2)])
    assert keys(found) == [2, 1, 0]
    assert replaced == {0: 1, 1: 2}


def test_only_sentences_about_the_query_by_one_speaker_with_news_make_a_pair() -> None:
    old, new, other = scored(0.9, 0.8, 0.7)
    first = statement(old, "user", "Hello. The call quota is 1,000.", WEIGHTS)
    second = statement(new, "user", "By the way. The call quota is now 1,200. Bye.", WEIGHTS)
    assert (first.renews, second.renews) == (False, True)
    assert second.about == pytest.approx(2 / 3)
    assert pairs([first, second]) == [(0, 1)]
    assert pairs([first, statement(new, "assistant", "The call quota is now 1,200.", WEIGHTS)]) == []
    assert pairs([first, statement(other, "user", "My cat is new.", WEIGHTS)]) == []
    assert pairs([first, statement(new, "user", "The call quota is 1,200.", WEIGHTS)]) == []


def test_vectors_say_whether_statements_are_about_one_thing_and_words_where_there_are_none() -> None:
    old, new, _ = scored(0.9, 0.8, 0.7)
    said = [
        statement(old, "user", "The call quota is 1,000.", WEIGHTS),
        statement(new, "user", "The call quota is now 1,200.", WEIGHTS),
    ]
    assert alike(said, [(0, 1)], {}) == [(0, 1)]
    assert alike(said, [(0, 1)], {(0, 1): 0.3}) == []
    assert alike(said, [(0, 1)], {(0, 1): 0.6}) == [(0, 1)]


@given(st.from_regex(newest._RENEWED) | st.text(st.sampled_from("\u017fnew\u0131\u212aloco chagd.")) | st.text())
def test_the_quick_look_for_words_of_change_leaves_none_out(content: str) -> None:
    assert may_renew(content) is (newest._RENEWED.search(content) is not None)
