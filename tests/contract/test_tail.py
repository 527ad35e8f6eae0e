from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.redis.tail import COPIED_BYTES, MOST, Tail, TailRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T0 = datetime(2026, 7, 1, 12, tzinfo=UTC)
TTL = timedelta(seconds=60)
NS = 7


def record(record_id: str, minutes: float = 0, content: str | None = "said", **metadata: object) -> TailRecord:
    return TailRecord(record_id, len(record_id), "user", T0 + timedelta(minutes=minutes), content, metadata)


def in_order(records: Iterable[TailRecord]) -> list[TailRecord]:
    """As the database orders them: by time, then by the bytes of the id."""
    return sorted(records, key=lambda r: (r.created_at, r.id.encode()))


@pytest.fixture
def tail(store: redis.Redis) -> Tail:
    return Tail(store, prefix="test", ttl=TTL)


def fill(tail: Tail, records: Iterable[TailRecord]) -> bool:
    hit, generation = tail.read(NS, MOST)
    assert hit is None
    return tail.offer(NS, generation, in_order(records))


def test_first_reader_misses_and_its_offer_answers_the_second(tail: Tail) -> None:
    records = [record("a", 1), record("b", 2, tags=["x", None, 1.5], deep={"ä": "\u2028"})]
    assert fill(tail, records)
    assert tail.read(NS, MOST) == (records, "")


def test_namespace_without_records_is_a_hit_too(tail: Tail) -> None:
    assert fill(tail, [])
    assert tail.read(NS, MOST)[0] == []
    assert tail.append(NS, tail.raise_generation(NS), [record("a")])
    assert tail.read(NS, MOST)[0] == [record("a")]


def test_appended_records_stand_in_order_of_time_whenever_they_come(tail: Tail) -> None:
    fill(tail, [record("b", 2), record("d", 4)])
    assert tail.append(NS, tail.raise_generation(NS), [record("c", 3), record("a", 1)])
    assert tail.append(NS, tail.raise_generation(NS), [record("e", 5)])
    hit, _ = tail.read(NS, MOST)
    assert hit is not None
    assert [r.id for r in hit] == ["a", "b", "c", "d", "e"]


HARD_IDS = ["a", "a!", 'a"', "a#", "a\\", "a\\b", "a b", "a/", "aa", "a\u00e9", "a\x7f", "\u20ac", "\uffff", "\U0001f600", '"', "é", "Z", "_", "0"]  # fmt: skip


def test_equal_times_are_ordered_by_the_bytes_of_the_id(tail: Tail) -> None:
    records = [record(record_id) for record_id in HARD_IDS]
    fill(tail, records[::2])
    assert tail.append(NS, tail.raise_generation(NS), records[1::2])
    hit, _ = tail.read(NS, MOST)
    assert hit == in_order(records)


@pytest.mark.parametrize("year", [1, 1066, 1969, 2300, 9999])
def test_times_a_microsecond_apart_keep_their_order_in_any_year(tail: Tail, year: int) -> None:
    first = datetime(year, 5, 5, tzinfo=UTC)
    records = [record(f"r{9 - n}")._replace(created_at=first + timedelta(microseconds=n)) for n in range(9)]
    fill(tail, records)
    assert tail.read(NS, MOST)[0] == records


def test_limit_gives_the_newest(tail: Tail) -> None:
    fill(tail, [record(f"r{n}", n) for n in range(9)])
    assert [r.id for r in tail.read(NS, 2)[0] or []] == ["r7", "r8"]


def test_long_texts_are_not_copied(tail: Tail) -> None:
    fits, too_long = "é" * (COPIED_BYTES // 2), "é" * (COPIED_BYTES // 2) + "x"
    fill(tail, [record("fits", 1, fits), record("long", 2, too_long)])
    assert [r.content for r in tail.read(NS, MOST)[0] or []] == [fits, None]


def test_tail_is_trimmed_to_the_newest(tail: Tail) -> None:
    fill(tail, [record(f"r{n:03}", n) for n in range(MOST)])
    assert tail.append(NS, tail.raise_generation(NS), [record("new", MOST), record("old", -1)])
    hit, _ = tail.read(NS, MOST)
    assert hit is not None
    assert [hit[0].id, hit[-1].id, len(hit)] == ["r001", "new", MOST]


def test_change_in_place_drops_the_tail(tail: Tail) -> None:
    fill(tail, [record("a")])
    tail.drop(NS, tail.raise_generation(NS))
    assert tail.read(NS, MOST)[0] is None
    assert fill(tail, [record("a")])
    tail.invalidate(NS)
    assert tail.read(NS, MOST)[0] is None


def test_reader_between_raise_and_append_is_sent_to_the_database_and_its_offer_is_refused(tail: Tail) -> None:
    fill(tail, [record("a", 1)])
    own = tail.raise_generation(NS)
    hit, generation = tail.read(NS, MOST)
    assert hit is None
    assert not tail.offer(NS, generation, [record("a", 1)])
    assert tail.append(NS, own, [record("b", 2)])
    assert tail.read(NS, MOST)[0] == [record("a", 1), record("b", 2)]


def test_offer_is_refused_when_a_write_came_after_the_read(tail: Tail) -> None:
    _, generation = tail.read(NS, MOST)
    tail.append(NS, tail.raise_generation(NS), [record("b")])
    assert not tail.offer(NS, generation, [])
    assert tail.read(NS, MOST)[0] is None


def test_writer_that_never_came_back_holds_up_offers_only_for_a_while(tail: Tail, store: redis.Redis) -> None:
    fill(tail, [])
    lost = tail.raise_generation(NS)
    assert not fill(tail, [])
    writers = f"test:{{{NS}}}:writers"
    store.zadd(writers, {lost: (store.zscore(writers, lost) or 0) - 31_000_000})
    assert fill(tail, [])
    tail.append(NS, tail.raise_generation(NS), [])
    assert store.zcard(writers) == 0


def test_offer_of_a_reader_that_missed_while_a_writer_was_busy_is_refused_after_it_too(tail: Tail) -> None:
    fill(tail, [])
    own = tail.raise_generation(NS)
    _, generation = tail.read(NS, MOST)
    tail.append(NS, own, [record("b")])
    tail.drop(NS, "1")  # so that a hit cannot hide the outcome
    assert not tail.offer(NS, generation, [])
    assert tail.read(NS, MOST)[0] is None


def test_writer_slower_than_that_drops_what_was_offered_meanwhile(tail: Tail, store: redis.Redis) -> None:
    slow = tail.raise_generation(NS)
    store.delete(f"test:{{{NS}}}:writers")
    assert fill(tail, [])
    assert not tail.append(NS, slow, [record("late")])
    assert tail.read(NS, MOST)[0] is None


def test_flush_leaves_no_tail_and_no_old_generation(tail: Tail, store: redis.Redis) -> None:
    fill(tail, [record("a", 1)])
    own = tail.raise_generation(NS)
    _, seen = tail.read(NS, MOST)
    store.flushall()
    assert not tail.append(NS, own, [record("b", 2)])
    hit, generation = tail.read(NS, MOST)
    assert hit is None
    assert int(generation) > int(own)
    assert not tail.offer(NS, seen, [record("a", 1)])
    assert tail.offer(NS, generation, [record("a", 1), record("b", 2)])
    assert len(tail.read(NS, MOST)[0] or []) == 2


def test_reader_that_asked_after_a_flush_cannot_hide_a_writer_that_began_before_it(
    tail: Tail, store: redis.Redis
) -> None:
    own = tail.raise_generation(NS)
    store.flushall()
    _, generation = tail.read(NS, MOST)
    assert not tail.append(NS, own, [record("committed after the reader looked")])
    assert not tail.offer(NS, generation, [])


def test_tails_of_namespaces_and_prefixes_are_apart(tail: Tail, store: redis.Redis) -> None:
    fill(tail, [record("a")])
    assert tail.read(NS + 1, MOST)[0] is None
    assert Tail(store, prefix="other", ttl=TTL).read(NS, MOST)[0] is None


def test_everything_in_redis_expires(tail: Tail, store: redis.Redis) -> None:
    fill(tail, [record("a")])
    tail.append(NS, tail.raise_generation(NS), [record("b")])
    tail.raise_generation(NS)
    lives = {bytes(key).decode().rsplit(":", 1)[1]: store.pttl(key) for key in store.keys()}  # noqa: SIM118 - the KEYS command
    assert set(lives) == {"tail", "tail_generation", "generation", "writers"}
    assert all(life > 0 for life in lives.values())
    assert max(lives["tail"], lives["tail_generation"]) <= TTL.total_seconds() * 1000


def test_redis_that_is_away_is_an_error_of_its_own_kind() -> None:
    away = redis.Redis(port=1, socket_connect_timeout=0.2, retry=Retry(NoBackoff(), 0))
    tail = Tail(away, prefix="test", ttl=TTL)
    for call in (
        lambda: tail.raise_generation(NS),
        lambda: tail.append(NS, "1", []),
        lambda: tail.read(NS, 1),
        lambda: tail.offer(NS, "1", []),
    ):
        with pytest.raises(UnavailableError):
            call()
    away.close()


class Scene:
    """Two writers and a reader over one database, each a step at a time; every hit is compared with the database."""

    def __init__(self, store: redis.Redis) -> None:
        self.tail = Tail(store, prefix="test", ttl=TTL)
        self.database = [record("a", 0)]
        self.generation: dict[str, str] = {}
        self.seen = ""
        self.found: list[TailRecord] = []
        fill(self.tail, self.database)

    def step(self, who: str, what: str) -> None:
        getattr(self, what)(who)
        hit, _ = self.tail.read(NS, MOST)
        assert hit is None or hit == in_order(self.database)

    def begin(self, who: str) -> None:
        self.generation[who] = self.tail.raise_generation(NS)

    def commit(self, who: str) -> None:
        self.database.append(self._of(who))

    def append(self, who: str) -> None:
        self.tail.append(NS, self.generation[who], [self._of(who)])

    def drop(self, who: str) -> None:
        self.tail.drop(NS, self.generation[who])

    def miss(self, who: str) -> None:
        assert who == "reader"
        _, self.seen = self.tail.read(NS, MOST)

    def query(self, who: str) -> None:
        assert who == "reader"
        self.found = in_order(self.database)

    def offer(self, who: str) -> None:
        assert who == "reader"
        self.tail.offer(NS, self.seen, self.found)

    @staticmethod
    def _of(who: str) -> TailRecord:
        return record(who, {"w1": 2, "w2": 1}[who])


def _merged(*lines: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Every interleaving that keeps the order within each line."""
    if not any(lines):
        yield []
        return
    for at, line in enumerate(lines):
        if line:
            rest = [*lines[:at], line[1:], *lines[at + 1 :]]
            for more in _merged(*rest):
                yield [line[0], *more]


WRITES = {who: [(who, what) for what in ("begin", "commit", "append")] for who in ("w1", "w2")}
FAILS = [("w2", "begin"), ("w2", "drop")]
READS = [("reader", what) for what in ("miss", "query", "offer")]


@pytest.mark.parametrize("second", [WRITES["w2"], FAILS], ids=["both commit", "one fails"])
def test_two_writers_in_every_order_never_leave_a_tail_that_misses_a_committed_record(
    store: redis.Redis, second: list[tuple[str, str]]
) -> None:
    for order in _merged(WRITES["w1"], second):
        store.flushall()
        scene = Scene(store)
        for who, what in order:
            scene.step(who, what)
        for who, what in READS:
            scene.step(who, what)
        assert scene.tail.read(NS, MOST)[0] == in_order(scene.database)


def test_two_writers_and_a_reader_in_every_order_agree_with_the_database(client: redis.Redis) -> None:
    for order in itertools.chain(_merged(WRITES["w1"], WRITES["w2"], READS), _merged(WRITES["w1"], FAILS, READS)):
        if order.index(("w2", "begin")) < order.index(("w1", "begin")) and FAILS[1] not in order:
            continue  # the same with the names of the writers exchanged
        client.flushall()
        scene = Scene(client)
        for who, what in order:
            scene.step(who, what)
