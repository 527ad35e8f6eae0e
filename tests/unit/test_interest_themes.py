from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from isotherm.pipeline.interest.themes import Placed, counted, grouped, middle, named, placed


def blobs(count: int, each: int, spread: float = 0.25, seed: int = 0) -> NDArray[np.float32]:
    """Points around directions that have nothing to do with each other."""
    random = np.random.default_rng(seed)
    middles = np.repeat(np.eye(64)[:count], each, axis=0)
    found = middles + random.normal(0, spread / 8, (count * each, 64))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("count", "each"), [(1, 6), (3, 4), (12, 20)])
def test_groups_are_found_without_being_told_how_many(count: int, each: int) -> None:
    found = grouped(blobs(count, each))
    assert found == [list(range(n * each, (n + 1) * each)) for n in range(count)]


def test_what_has_nothing_to_do_with_anything_stays_alone() -> None:
    assert grouped(np.eye(5, dtype=np.float32)) == [[n] for n in range(5)]
    assert [grouped(np.eye(n, 3, dtype=np.float32)) for n in (0, 1)] == [[], [[0]]]
    with pytest.raises(ValueError, match="shape"):
        grouped(np.zeros(3, dtype=np.float32))


@given(st.integers(0, 40), st.integers(0, 10_000))
def test_every_point_is_in_exactly_one_group_and_order_makes_no_difference(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(count, 8))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    found = grouped(vectors)
    assert sorted(i for group in found for i in group) == list(range(count))
    order = random.permutation(count)
    again = grouped(vectors[order])
    assert {frozenset(int(order[i]) for i in group) for group in again} == {frozenset(group) for group in found}


def test_a_new_point_joins_the_nearest_theme_or_none() -> None:
    middles = np.stack([middle(blobs(1, 5)), np.eye(64, dtype=np.float32)[1]])
    assert placed(np.eye(64, dtype=np.float32)[0], middles).theme == 0
    assert placed(np.eye(64, dtype=np.float32)[9], middles).theme is None
    assert placed(middles[0], middles[:0]) == Placed(None, -1.0)


def test_a_theme_is_named_by_the_words_that_its_members_share_and_others_do_not() -> None:
    others = ["sea kayaking", "kayaking in fjords", "a new kayaking paddle", "sea view", "bake bread"]
    assert named(others[:3], counted(others)) == "sea kayaking"
    assert named(["bake bread", "tea"], counted(others)) == "tea"


def test_many_points_are_joined_in_parts_first_and_found_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.pipeline.interest.themes.PART", 40)
    expected = [list(range(n * 20, (n + 1) * 20)) for n in range(12)]
    assert grouped(blobs(12, 20), whole=60) == expected


@pytest.mark.parametrize("each", [2, 4, 15, 60])
def test_how_many_groups_are_found_does_not_depend_on_how_large_they_are(each: int) -> None:
    assert len(grouped(blobs(10, each, spread=0.8))) == 10
