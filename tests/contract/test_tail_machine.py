from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from isotherm.storage.redis import announcements as announcements_module
from isotherm.storage.redis import tail as tail_module
from isotherm.storage.redis.announcements import Announced, Announcements
from isotherm.storage.redis.tail import Tail, TailRecord

if TYPE_CHECKING:
    import redis

NS = 1
MOST = 6  # small, so that trimming happens
TIMES = [datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 7, 1, 0, 0, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)]
IDS = st.text(alphabet='ab!" \\é\U0001f600', min_size=1, max_size=3)
NEW = st.lists(
    st.tuples(IDS, st.sampled_from(TIMES), st.integers(0, 2)), min_size=1, max_size=3, unique_by=lambda r: r[0]
)
WHICH = st.integers(0, 3)


class TailMachine(RuleBasedStateMachine):
    """Writers and readers of one tail against a model: what is committed, in the order of the database."""

    store: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.store.flushall()
        self.tail = Tail(self.store, prefix="test", ttl=timedelta(seconds=60))
        self.committed: dict[str, TailRecord] = {}
        # Two processes; writes of one share announcements.
        self.writers = [Announcements(self.tail), Announcements(self.tail)]
        self.raised: list[tuple[Announcements, Announced]] = []
        self.done: list[tuple[Announcements, Announced, list[TailRecord] | None]] = []
        self.readers: list[tuple[str, list[TailRecord] | None]] = []
        # Announcements that a flush has erased: until they conclude, a tail may miss records of their writers.
        self.unannounced: set[int] = set()

    def newest(self, limit: int) -> list[TailRecord]:
        return sorted(self.committed.values(), key=lambda r: (r.created_at, r.id.encode()))[-limit:]

    def ended(self, writer: Announcements, announced: Announced, copies: list[TailRecord] | None) -> None:
        writer.end([(announced, {} if copies is None else {NS: copies})])
        self.unannounced -= {id(shared) for shared in announced.opened if not shared.writes}

    @precondition(lambda self: len(self.raised) + len(self.done) < 4)
    @rule(who=st.integers(0, 1), alone=st.booleans(), late=st.booleans())
    def announce(self, who: int, *, alone: bool, late: bool) -> None:
        writer = self.writers[who]
        announcements_module._JOINED_S = -1.0 if late else 60.0
        self.raised.append((writer, writer.begin([NS], alone=alone)()))

    @precondition(lambda self: self.raised)
    @rule(which=WHICH, given=NEW)
    def commit(self, which: int, given: list[tuple[str, datetime, int]]) -> None:
        writer, announced = self.raised.pop(which % len(self.raised))
        records = [
            TailRecord(i, len(i), None, at + timedelta(microseconds=us), "text", {"n": us}) for i, at, us in given
        ]
        new = all(r.id not in self.committed for r in records)
        for one in records:
            known = self.committed.get(one.id)
            self.committed[one.id] = one if known is None else one._replace(created_at=known.created_at)
        self.done.append((writer, announced, records if new else None))

    @precondition(lambda self: self.raised)
    @rule(which=WHICH)
    def fail(self, which: int) -> None:
        self.ended(*self.raised.pop(which % len(self.raised)), None)

    @precondition(lambda self: self.done)
    @rule(which=WHICH)
    def conclude(self, which: int) -> None:
        self.ended(*self.done.pop(which % len(self.done)))

    @rule(limit=st.integers(1, MOST))
    def read(self, limit: int) -> None:
        hit, generation = self.tail.read(NS, limit)
        if hit is None:
            self.readers = [*self.readers[-2:], (generation, None)]
        elif not self.unannounced:
            assert hit == self.newest(limit)

    @precondition(lambda self: self.readers)
    @rule(which=WHICH)
    def query(self, which: int) -> None:
        at = which % len(self.readers)
        self.readers[at] = (self.readers[at][0], self.newest(MOST))

    @precondition(lambda self: any(found is not None for _, found in self.readers))
    @rule(which=WHICH)
    def offer(self, which: int) -> None:
        ready = [reader for reader in self.readers if reader[1] is not None]
        generation, found = reader = ready[which % len(ready)]
        self.readers.remove(reader)
        self.tail.offer(NS, generation, found or [])

    @rule()
    def invalidate(self) -> None:
        self.tail.invalidate(NS)

    @rule(sure=st.integers(0, 4))
    def flush(self, sure: int) -> None:
        if sure == 0:  # a rare thing
            self.store.flushall()
            open_ones = [announced for _, announced in self.raised] + [announced for _, announced, _ in self.done]
            self.unannounced = {id(shared) for announced in open_ones for shared in announced.opened}

    def teardown(self) -> None:
        """Once every writer has come to its end, the next two reads agree with the database."""
        while self.raised:
            self.fail(0)
        while self.done:
            self.conclude(0)
        hit, generation = self.tail.read(NS, MOST)
        if hit is None:
            assert self.tail.offer(NS, generation, self.newest(MOST))
            hit, _ = self.tail.read(NS, MOST)
        assert hit == self.newest(MOST)


def test_a_read_that_hits_equals_the_newest_committed_records(
    store: redis.Redis, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "MOST", MOST)
    monkeypatch.setattr(announcements_module, "_JOINED_S", 60.0)  # and back at the end
    real = "server" in request.node.name
    machine: Any = type("Machine", (TailMachine,), {"store": store})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=150 if real else 25,
            stateful_step_count=40 if real else 25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
