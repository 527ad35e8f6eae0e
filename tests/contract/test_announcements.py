from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from isotherm.storage.redis import announcements as announcements_module
from isotherm.storage.redis.announcements import Announced, Announcements, Copies
from isotherm.storage.redis.client import open_client
from isotherm.storage.redis.tail import MOST, Tail, TailRecord

if TYPE_CHECKING:
    import redis

NS, OTHER = 1, 2
START = datetime(2026, 7, 1, tzinfo=UTC)


def record(name: str, second: int) -> TailRecord:
    return TailRecord(name, second, "user", START + timedelta(seconds=second), "text", {})


@pytest.fixture
def tail(store: redis.Redis) -> Tail:
    return Tail(store, prefix="test", ttl=timedelta(seconds=60))


@pytest.fixture
def announcements(tail: Tail) -> Announcements:
    return Announcements(tail)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here grows old by itself."""
    monkeypatch.setattr(announcements_module, "_JOINED_S", 60.0)


def filled(tail: Tail, *records: TailRecord) -> None:
    for namespace_id in (NS, OTHER):
        _, generation = tail.read(namespace_id, MOST)
        assert tail.offer(namespace_id, generation, records)


def end(announcements: Announcements, announced: Announced, copies: Copies) -> None:
    announcements.end([(announced, {NS: copies})])


def generations(*writes: Announced) -> set[str]:
    return {shared.generation for announced in writes for shared in announced.opened}


def test_writes_that_overlap_share_an_announcement_and_readers_wait_for_the_last(
    tail: Tail, announcements: Announcements
) -> None:
    filled(tail, record("a", 0))
    first, second = announcements.begin([NS])(), announcements.begin([NS])()
    assert len(generations(first, second)) == 1

    end(announcements, first, [record("b", 1)])
    hit, generation = tail.read(NS, MOST)
    assert hit is None
    assert not tail.offer(NS, generation, [record("a", 0), record("b", 1)])

    end(announcements, second, [record("c", 2)])
    assert tail.read(NS, MOST)[0] == [record("a", 0), record("b", 1), record("c", 2)]


def test_a_write_after_the_last_of_an_announcement_makes_its_own(tail: Tail, announcements: Announcements) -> None:
    filled(tail, record("a", 0))
    first = announcements.begin([NS])()
    end(announcements, first, [record("b", 1)])
    second = announcements.begin([NS])()
    assert len(generations(first, second)) == 2
    end(announcements, second, [record("c", 2)])
    assert tail.read(NS, MOST)[0] == [record("a", 0), record("b", 1), record("c", 2)]


@pytest.mark.parametrize("failed", [0, 1])
def test_one_write_that_changed_something_in_place_drops_the_tail_of_all(
    tail: Tail, announcements: Announcements, failed: int
) -> None:
    filled(tail, record("a", 0))
    writes = [announcements.begin([NS])(), announcements.begin([NS])()]
    for at, announced in enumerate(writes):
        end(announcements, announced, None if at == failed else [record("b", 1)])
    hit, generation = tail.read(NS, MOST)
    assert hit is None
    assert tail.offer(NS, generation, [record("z", 9)])  # nobody is left open


def test_a_write_joins_where_it_can_and_announces_the_rest(tail: Tail, announcements: Announcements) -> None:
    filled(tail)
    first, both = announcements.begin([NS])(), announcements.begin([NS, OTHER])()
    assert sorted(both.namespace_ids) == [NS, OTHER]
    assert len(generations(first, both)) == 2
    announcements.end([(both, {NS: [record("b", 1)], OTHER: [record("o", 1)]}), (first, {NS: []})])
    assert tail.read(NS, MOST)[0] == [record("b", 1)]
    assert tail.read(OTHER, MOST)[0] == [record("o", 1)]


def test_an_old_announcement_is_not_joined(
    tail: Tail, announcements: Announcements, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tail)
    first = announcements.begin([NS])()
    monkeypatch.setattr(announcements_module, "_JOINED_S", -1.0)
    second = announcements.begin([NS])()
    assert len(generations(first, second)) == 2
    end(announcements, first, [record("b", 1)])
    end(announcements, second, [record("c", 2)])
    assert tail.read(NS, MOST)[0] == [record("b", 1), record("c", 2)]


def test_a_write_that_is_alone_has_rid_the_tail_of_its_records_as_it_ends(
    tail: Tail, announcements: Announcements
) -> None:
    filled(tail, record("a", 0))
    first = announcements.begin([NS])()
    erasing = announcements.begin([NS], alone=True)()
    third = announcements.begin([NS])()
    assert len(generations(first, erasing)) == 2
    assert generations(third) == generations(first)
    end(announcements, erasing, None)
    assert tail.holds(NS) == 0
    end(announcements, third, [record("b", 1)])
    end(announcements, first, [record("c", 2)])
    assert tail.holds(NS) == 0
    assert tail.read(NS, MOST)[0] is None


def test_what_redis_could_not_be_told_is_said_and_shared_with_nobody() -> None:
    away = Announcements(Tail(open_client("redis://127.0.0.1:1/0"), prefix="test", ttl=timedelta(seconds=60)))
    first, second = away.begin([OTHER, NS])(), away.begin([NS])()
    assert (first.untold, second.untold) == ([NS, OTHER], [NS])
    assert first.namespace_ids == second.namespace_ids == []
    away.end([(first, {}), (second, {})])


def test_writers_of_many_threads_leave_a_whole_tail(tail: Tail, announcements: Announcements) -> None:
    filled(tail)

    def write(at: int) -> None:
        end(announcements, announcements.begin([NS])(), [record(f"r{at:03d}", at)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(100)))
    expected = [record(f"r{at:03d}", at) for at in range(100)]
    hit, generation = tail.read(NS, MOST)
    assert hit in (None, expected)  # dropped where announcements crossed
    assert hit is not None or tail.offer(NS, generation, expected)
