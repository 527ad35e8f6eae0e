from hypothesis import assume, given
from hypothesis import strategies as st

from isotherm.pipeline.tier.ranking import rarity_match

WEIGHT = st.floats(0.01, 100)
SIZE = st.integers(1, 10_000)


@given(WEIGHT, WEIGHT, SIZE, st.floats(1, 1_000))
def test_a_match_stays_between_nothing_and_everything(shared: float, missing: float, size: int, typical: float) -> None:
    assert 0 < rarity_match(shared, shared + missing, size, typical) <= 1


@given(WEIGHT, WEIGHT, WEIGHT, SIZE)
def test_sharing_more_weight_matches_better(shared: float, more: float, missing: float, size: int) -> None:
    query = shared + more + missing
    assert rarity_match(shared + more, query, size, 20) > rarity_match(shared, query, size, 20)


@given(WEIGHT, SIZE, SIZE)
def test_of_two_records_with_the_same_words_the_shorter_matches_better(shared: float, size: int, more: int) -> None:
    assume(more > 0)
    assert rarity_match(shared, shared * 2, size, 20) > rarity_match(shared, shared * 2, size + more, 20)


def test_tier_weak_09_a_greeting_does_not_outrank_the_answer() -> None:
    # "Does Mira eat fish?": the greeting has the frequent name only, the answer has both rare words and is longer.
    name, eat, fish = 1.0, 4.0, 5.0
    greeting = rarity_match(name, name + eat + fish, 3, 20)
    answer = rarity_match(eat + fish, name + eat + fish, 25, 20)
    assert answer > 2 * greeting


def test_nothing_shared_and_an_empty_query_match_nothing() -> None:
    assert rarity_match(0, 5, 10, 20) == 0
    assert rarity_match(0, 0, 10, 20) == 0
    assert rarity_match(1, 1, 10, 0) > 0
