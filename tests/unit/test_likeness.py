from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.tier.likeness import likenesses


@dataclass(frozen=True)
class Row:
    key: int
    overlap: float = 0.0
    cosine: float | None = None
    turn_of: int | None = None
    around: tuple[tuple[int, int], ...] = ()
    timely: bool = False


ROWS = st.lists(
    st.tuples(st.floats(0, 1), st.none() | st.floats(-1, 1), st.none() | st.integers(0, 2)), max_size=12
).map(lambda rows: [Row(key, *row) for key, row in enumerate(rows)])


@given(ROWS)
def test_shares_sum_to_a_likeness_between_0_and_1_and_the_best_has_the_larger_of_both(rows: list[Row]) -> None:
    found = likenesses(rows)
    assert [one.value for one in found] == [pytest.approx(sum(one.shares.values())) for one in found]
    assert all(0 <= one.value <= 1 + 1e-9 for one in found)
    best = max((max(row.overlap, row.cosine or 0.0) for row in rows), default=0.0)
    assert max((one.value for one in found), default=0.0) in (0.0, pytest.approx(best))


def test_by_words_alone_without_turns_each_has_its_overlap() -> None:
    found = likenesses([Row(1, 0.8), Row(2, 0.2), Row(3)])
    assert [one.value for one in found] == [pytest.approx(0.8), pytest.approx(0.2), 0.0]


def test_the_turn_beside_a_hit_comes_before_a_turn_that_is_a_little_like_the_query() -> None:
    hit, answer, far, other = (
        Row(1, 0.8, None, 1),
        Row(2, 0, None, 1, ((1, 1),)),
        Row(3, 0, None, 1),
        Row(4, 0.2, None, 2),
    )
    values = [one.value for one in likenesses([hit, answer, far, other])]
    assert values[0] > values[1] > values[3] > 0
    assert values[1] > values[2] > 0


def test_nearer_turns_gain_more_and_what_is_no_turn_gains_nothing() -> None:
    near, next_but_one, note = Row(2, 0, None, 1, ((1, 1),)), Row(3, 0, None, 1, ((1, 2),)), Row(4)
    values = [one.value for one in likenesses([Row(1, 0.8, None, 1), near, next_but_one, note])]
    assert values[1] > values[2] > values[3] == 0


def test_a_missing_vector_is_not_held_against_a_record() -> None:
    new, older = Row(1, 0.8), Row(2, 0.4, 0.6)
    assert next(one.value for one in likenesses([new, older])) == max(one.value for one in likenesses([new, older]))


def test_what_is_of_the_time_that_is_asked_about_gains_a_share_of_what_the_best_has() -> None:
    best, then, other = likenesses([Row(1, 0.8), Row(2, 0.6, timely=True), Row(3, 0.6)])
    assert then.value > best.value > other.value
    assert then.shares["time"] > 0 == other.shares["time"]
