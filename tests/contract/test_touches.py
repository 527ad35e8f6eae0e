from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from isotherm.storage.redis.touches import Touches

if TYPE_CHECKING:
    import redis

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.fixture
def touches(store: redis.Redis) -> Touches:
    return Touches(store, prefix="test")


def test_accesses_are_summed_until_they_are_taken(touches: Touches) -> None:
    touches.count([1, 2])
    touches.count([2])
    batch = touches.take(NOW)
    assert batch is not None
    assert (batch.counts, batch.taken_at) == ({1: 1, 2: 2}, NOW)


def test_nothing_counted_is_no_batch(touches: Touches, store: redis.Redis) -> None:
    touches.count([])
    assert touches.take(NOW) is None
    assert store.dbsize() == 0


def test_accesses_after_the_taking_belong_to_the_next_batch(touches: Touches) -> None:
    touches.count([1])
    first = touches.take(NOW)
    assert first is not None
    touches.count([1])
    touches.remove(first)
    second = touches.take(NOW + timedelta(seconds=10))
    assert second is not None
    assert (second.counts, second.id != first.id) == ({1: 1}, True)


def test_batch_left_behind_is_found_again_as_it_was(touches: Touches) -> None:
    touches.count([1])
    first = touches.take(NOW)
    touches.count([2])
    assert touches.take(NOW + timedelta(hours=1)) == first
    assert first is not None
    touches.remove(first)
    second = touches.take(NOW + timedelta(hours=2))
    assert second is not None
    assert second.counts == {2: 1}


def test_removed_batches_leave_nothing_behind(touches: Touches, store: redis.Redis) -> None:
    touches.count([1])
    batch = touches.take(NOW)
    assert batch is not None
    touches.remove(batch)
    touches.remove(batch)
    assert touches.take(NOW) is None
    assert store.dbsize() == 0


def test_flush_between_taking_and_removing_loses_counts_and_nothing_else(touches: Touches, store: redis.Redis) -> None:
    touches.count([1])
    batch = touches.take(NOW)
    store.flushall()
    assert batch is not None
    touches.remove(batch)
    assert touches.take(NOW) is None
    touches.count([3])
    again = touches.take(NOW)
    assert again is not None
    assert again.counts == {3: 1}


def test_prefixes_do_not_share_counts(touches: Touches, store: redis.Redis) -> None:
    touches.count([1])
    assert Touches(store, prefix="other").take(NOW) is None
