import math
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.text import terms
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.ranking import (
    Candidate,
    Lexical,
    lexical_overlap,
    rank,
    recency,
    score,
    select,
    spec_tokens,
)
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.weights import RecallWeights

NOW = datetime(2026, 7, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WEIGHTS = RecallWeights()


def candidate(
    key: int,
    tier: Tier = Tier.HOT,
    *,
    age: int = 0,
    importance: float = 0.5,
    overlap: float = 0.0,
    cosine: float | None = None,
) -> Candidate:
    return Candidate(key, f"id-{key:04}", tier, NOW - age * HOUR, importance, overlap, cosine)


@pytest.mark.parametrize("split", [terms, spec_tokens])
def test_tier_t04_scores_of_the_specification(split: Callable[[str], Collection[Any]]) -> None:
    query = split("hello")
    first = candidate(1, age=24, importance=0.9, overlap=lexical_overlap(query, split("hello world")))
    second = candidate(2, age=48, importance=0.2, overlap=lexical_overlap(query, split("other topic")))
    ranked = rank([second, first], WEIGHTS, NOW)
    assert [item.candidate.key for item in ranked] == [1, 2]
    assert [round(item.parts.total, 6) for item in ranked] == [0.690063, 0.265443]


@pytest.mark.parametrize(
    ("hours", "expected"), [(0, 1.0), (24, 0.866878), (48, 0.751477), (168, 0.367879), (336, 0.135335)]
)
def test_recency_of_the_specification(hours: int, expected: float) -> None:
    assert round(recency(NOW - hours * HOUR, NOW), 6) == expected


def test_tier_weak_20_the_future_is_no_more_recent_than_now() -> None:
    assert recency(NOW + timedelta(days=900), NOW) == 1.0


def test_overlap_is_shared_terms_over_the_larger_set() -> None:
    assert lexical_overlap(["a", "b"], ["b", "c", "d", "e"]) == 0.25
    assert lexical_overlap([], ["a"]) == lexical_overlap(["a"], []) == 0.0
    assert lexical_overlap([1, 1], [1]) == 1.0


def test_tier_weak_09_punctuation_and_other_scripts_overlap() -> None:
    assert lexical_overlap(terms("billing"), terms("(billing),")) == 1.0
    assert lexical_overlap(spec_tokens("billing"), spec_tokens("(billing),")) == 0.0
    assert lexical_overlap(terms("黒猫"), terms("黒猫です")) > 0
    assert spec_tokens("A bb é \ud800\ud800") == {"bb", "é", "\ud800\ud800"}


@pytest.mark.parametrize(
    ("lexical", "cosine", "semantic"),
    [
        (Lexical.RARITY, 0.7, 0.55),
        (Lexical.RARITY, 0.1, 0.25),
        (Lexical.RARITY, -0.7, 0.2),
        (Lexical.RARITY, 9.0, 0.7),
        (Lexical.OVERLAP, 0.7, 0.7),
        (Lexical.OVERLAP, 0.1, 0.4),
        (Lexical.OVERLAP, -0.7, 0.4),
    ],
)
def test_semantic_is_the_mean_of_both_and_the_larger_in_the_specification(
    lexical: Lexical, cosine: float, semantic: float
) -> None:
    found = score(candidate(1, overlap=0.4, cosine=cosine), WEIGHTS, NOW, lexical)
    assert found.semantic == pytest.approx(semantic)
    assert found.cosine == min(1.0, cosine)


@pytest.mark.parametrize("lexical", Lexical)
@pytest.mark.parametrize("cosine", [None, math.nan])
def test_without_a_cosine_the_words_alone_count(lexical: Lexical, cosine: float | None) -> None:
    found = score(candidate(1, overlap=0.4, cosine=cosine), WEIGHTS, NOW, lexical)
    assert (found.semantic, found.cosine) == (0.4, None)


def test_what_agrees_by_words_and_by_meaning_comes_before_what_agrees_by_one() -> None:
    both, one = candidate(1, overlap=0.6, cosine=0.6), candidate(2, overlap=0.0, cosine=0.8)
    assert [item.candidate.key for item in rank([one, both], WEIGHTS, NOW)] == [1, 2]
    assert [item.candidate.key for item in rank([one, both], WEIGHTS, NOW, Lexical.OVERLAP)] == [2, 1]


def test_a_weight_of_0_switches_a_part_off() -> None:
    only_importance = RecallWeights(semantic=0, recency=0, importance=1)
    assert score(candidate(1, age=5, importance=0.3, overlap=1.0), only_importance, NOW).total == 0.3


def test_equal_scores_are_ordered_by_id() -> None:
    ranked = rank([candidate(3), candidate(1), candidate(2)], WEIGHTS, NOW)
    assert [item.candidate.key for item in ranked] == [1, 2, 3]


def chosen(candidates: list[Candidate], budget: RecallBudget, weights: RecallWeights = WEIGHTS) -> list[int]:
    return [item.candidate.key for item in select(rank(candidates, weights, NOW), budget)]


def test_tier_t07_a_total_of_2_gives_2() -> None:
    assert len(chosen([candidate(n, age=n) for n in range(5)], RecallBudget(total=2, hot=2))) == 2


def test_tier_t08_shares_spill_over_to_reach_the_total() -> None:
    assert len(chosen([candidate(n, Tier.WARM) for n in range(8)], RecallBudget(total=8))) == 8
    assert len(chosen([candidate(n, Tier.WARM) for n in range(8)], RecallBudget(total=8, hot=4, warm=2, cold=2))) == 8


def test_tier_t44_the_replay_tail_is_the_newest_in_order() -> None:
    weights = RecallWeights(semantic=0.01, recency=1, importance=0.01)
    found = chosen([candidate(age, age=age) for age in range(5, 0, -1)], RecallBudget(total=3), weights)
    assert found == [3, 2, 1]


def test_tier_x12_a_total_of_1_is_the_best_of_any_tier() -> None:
    candidates = [candidate(1, Tier.COLD, age=500), candidate(2, Tier.HOT, overlap=1.0), candidate(3, Tier.WARM)]
    assert chosen(candidates, RecallBudget(total=1)) == [2]
    assert chosen(candidates, RecallBudget(total=1).normalize()) == [2]


def test_a_level_switched_off_gives_nothing() -> None:
    candidates = [candidate(1, Tier.COLD, overlap=1.0), candidate(2, Tier.HOT)]
    assert chosen(candidates, RecallBudget(total=5, cold=0)) == [2]
    assert chosen(candidates, RecallBudget(total=0)) == []


def test_a_given_share_is_a_minimum_and_a_default_share_is_not() -> None:
    candidates = [candidate(n, Tier.HOT, overlap=1.0) for n in range(5)] + [candidate(9, Tier.COLD, age=900)]
    assert 9 in chosen(candidates, RecallBudget(total=3, cold=1))
    assert 9 not in chosen(candidates, RecallBudget(total=3))


def test_answers_are_chronological_with_ties_by_id() -> None:
    candidates = [candidate(2, age=1), candidate(1, age=1), candidate(3, age=9, overlap=1.0), candidate(3, age=9)]
    assert chosen(candidates, RecallBudget(total=5)) == [3, 1, 2]


def test_a_row_that_comes_twice_counts_once_with_its_better_score() -> None:
    candidates = [candidate(1, overlap=1.0), candidate(1), candidate(2, overlap=0.5)]
    found = select(rank(candidates, WEIGHTS, NOW), RecallBudget(total=5))
    assert {item.candidate.key: item.parts.overlap for item in found} == {1: 1.0, 2: 0.5}


share = st.none() | st.integers(0, 8)
pool = st.lists(
    st.builds(
        candidate,
        st.integers(0, 20),
        st.sampled_from(Tier),
        age=st.integers(0, 500),
        importance=st.floats(0, 1),
        overlap=st.floats(0, 1),
    ),
    max_size=20,
    unique_by=lambda item: item.key,
)


@settings(deadline=None)
@given(pool, share, share, share, share)
def test_selection_fills_the_total_and_keeps_minimums(
    candidates: list[Candidate], total: int | None, hot: int | None, warm: int | None, cold: int | None
) -> None:
    budget = RecallBudget(total=total, hot=hot, warm=warm, cold=cold)
    found = select(rank(candidates, WEIGHTS, NOW), budget)
    usable = [item for item in candidates if not budget.is_off(item.tier)]
    assert len(found) == min(budget.normalize().total or 0, len(usable))
    assert [item.candidate.created_at for item in found] == sorted(item.candidate.created_at for item in found)
    for tier in Tier:
        available = sum(item.tier is tier for item in usable)
        assert sum(item.candidate.tier is tier for item in found) >= min(budget.minimum(tier), available)
    assert found == select(rank(candidates[::-1], WEIGHTS, NOW), budget.normalize())
