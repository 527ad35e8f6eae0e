"""Every verb that programs call, over PostgreSQL and Redis, and the steps behind them in any order, against a model."""

from __future__ import annotations

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from inprocess import STAGES, check_database, drive, run_pass
from tier_model import VERBS, Call, Kept, Left, edits, may_fall, news, one_of_each

from isotherm.pipeline.errors import RejectedError, VersionConflictError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.portable import PortableRecord, read_line
from isotherm.pipeline.tier.ranking import Touch
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.reach import system
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from redis import Redis

    from isotherm.pipeline.tier.answers import Recall
    from isotherm.pipeline.tier.edits import RecordEdit
    from isotherm.storage.opened import Storage

NS = Namespace.of("atlas", "s1")
ELSEWHERE = Namespace.of("atlas", "s2")  # of the same bank, so that both share words and statistics
HOUR = timedelta(hours=1)
# Small enough that every limit is met; one keeps everything, the other evicts.
POLICIES = {
    "keeps": Policy(hot_capacity=1, warm_capacity=1, promote_access=1, cooldown=HOUR, batch_size=2),
    "evicts": Policy(hot_capacity=1, warm_capacity=1, cold_capacity=1, promote_access=1, cooldown=HOUR,
                     cold_ttl=60 * 24 * HOUR),
}  # fmt: skip
NAMES = ["a", "a:b", "a_b", "é", "e"]
IDS = st.sampled_from(NAMES)
# Cold whole, compressed in the database, and in the blob store.
_LARGE = " ".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(8))
TEXTS = st.sampled_from(["kelp", "eelgrass", "kelp " * 30, "eelgrass " * 20, "\U0001f30a" * 30, f"kelp {_LARGE}"])
QUERIES = st.sampled_from(["kelp", "eelgrass meadow", "harbor", ""])
STEPS = st.sampled_from([timedelta(seconds=1), HOUR, 25 * HOUR, 8 * 24 * HOUR, 31 * 24 * HOUR])
SOME = st.lists(IDS, min_size=1, max_size=3, unique=True)
CALLS = st.lists(st.tuples(VERBS, IDS, TEXTS), min_size=2, max_size=4)

_EMPTY = "TRUNCATE banks, tier_records, tier_postings, cold_blobs, operations, outbox, erasures, touch_batches CASCADE"
_OPEN = """
SELECT s.id, s.operation_id, o.trace_id, s.stage FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE s.state = 'pending' ORDER BY s.id"""
# As if what is stored had been there for longer; when it was said stays, since that is part of a record.
_OLDER = """
WITH aged AS (
    UPDATE tier_records SET last_access_at = last_access_at - %(by)s, moved_at = moved_at - %(by)s,
        heat_log = heat_log - %(decay)s, value_log = value_log - %(decay)s
    WHERE namespace_id = %(ns)s
), due AS (
    UPDATE namespaces SET due_at = due_at - %(by)s WHERE id = %(ns)s
)
UPDATE tier_set_aside SET held_until = held_until - %(by)s WHERE namespace_id = %(ns)s"""
_ROWS = "SELECT to_jsonb(r) FROM tier_records AS r ORDER BY key"
_DROPS = "DELETE FROM outbox WHERE builder = 'tail_refresh' RETURNING payload"
_MOVES = "SELECT count(*) FROM tier_moves"


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def pace(request: pytest.FixtureRequest) -> dict[str, str]:
    return {
        "ISOTHERM_TIER": POLICIES[request.getfixturevalue("kind")].model_dump_json(),
        "ISOTHERM_COLD_MIN_BYTES": "64",
        "ISOTHERM_COLD_SUMMARY_CHARS": "32",
        "ISOTHERM_BLOB_MIN_BYTES": "200",
        "ISOTHERM_RETRY_BASE": "0.01",
    }


class ProducersMachine(RuleBasedStateMachine):
    """The model holds all of a record that no move may touch; steps wait until a rule runs them."""

    memory: Storage
    client: Redis

    def __init__(self) -> None:
        super().__init__()
        for (key,) in fetch_all(
            "SELECT object_key FROM cold_blobs"
        ):  # or no erasure under this name would come to an end
            self.memory.blobs.delete(key)
        with system(), connection() as conn:
            conn.execute(_EMPTY)
        self.client.flushall()
        namespaces.forget_places()
        self.policy = self.memory.settings.tier
        self.begun = datetime.now(UTC)
        self.model: dict[str, Kept] = {}
        self.waiting: Counter[str] = Counter()  # accesses that Redis holds
        self.erasures: list[UUID] = []
        self.keys = 0

    @initialize(first=one_of_each(NAMES, TEXTS, Tier.HOT, Tier.WARM))
    def begin(self, first: list[NewRecord]) -> None:
        producers.remember_records(ELSEWHERE, [NewRecord("a", "theirs, of kelp", self.begun)])
        drive()
        self.theirs = list(producers.export(ELSEWHERE))
        self.remembers(first)

    # what programs call

    @rule(given=st.lists(news(IDS, TEXTS, Tier.HOT, Tier.WARM), min_size=1, max_size=4))
    def remembers(self, given: list[NewRecord]) -> None:
        # Of some the times are equal, and then the ids order them.
        timed = [replace(one, created_at=self.begun - timedelta(seconds=len(one.content) % 3)) for one in given]
        self.keys += 1
        done = producers.remember_records(NS, timed, key=f"k{self.keys}")
        again = producers.remember_records(NS, timed, key=f"k{self.keys}")
        assert (again.operation_id, again.new) == (done.operation_id, False)
        for one in {one.id: one for one in timed}.values():
            known = self.model.get(one.id)
            self.model[one.id] = Kept.first(one) if known is None else known.again(one)

    @rule(new=news(IDS, TEXTS, Tier.HOT, Tier.WARM))
    def remembers_the_same(self, new: NewRecord) -> None:
        if new.id in self.model:
            self.remembers([replace(new, content=self.model[new.id].content)])

    @rule(record_id=IDS, edit=edits(TEXTS), stale=st.booleans())
    def updates(self, record_id: str, edit: RecordEdit, stale: bool) -> None:  # noqa: FBT001 - drawn by name
        version = producers.get(NS, record_id).version + stale if record_id in self.model else 1
        parts = {name: getattr(edit, name) for name in edit.__slots__}
        change = partial(producers.update, NS, record_id, **parts, expected_version=version)
        if record_id in self.model and stale:
            with pytest.raises(VersionConflictError):
                change()
        elif self.known([record_id], change):
            self.model[record_id] = self.model[record_id].edited(edit)

    @rule(ids=SOME, pinned=st.booleans())
    def pins(self, ids: list[str], pinned: bool) -> None:  # noqa: FBT001 - drawn by name
        """All of them, or none when one is not there."""
        if self.known(ids, partial(producers.pin if pinned else producers.unpin, NS, ids)):
            self.model |= {record_id: replace(self.model[record_id], pinned=pinned) for record_id in ids}

    @rule(ids=SOME)
    def restores(self, ids: list[str]) -> None:
        self.known(ids, partial(producers.restore, NS, ids))

    @rule(ids=st.lists(IDS, min_size=1, max_size=2, unique=True), everything=st.integers(0, 7))
    def forgets(self, ids: list[str], everything: int) -> None:
        if not everything:
            self.gone(producers.forget(NS).operation_id, list(self.model))
            return
        done = producers.forget(NS, ids)
        assert done.written == sum(record_id in self.model for record_id in ids)
        self.gone(done.operation_id, ids)

    def gone(self, erasure: UUID, ids: list[str]) -> None:
        self.erasures.append(erasure)
        for record_id in ids:
            self.model.pop(record_id, None)
            self.waiting.pop(record_id, None)  # another record of this id is another one

    @rule(queries=st.lists(QUERIES, min_size=1, max_size=3), touch=st.sampled_from(Touch), counted=st.booleans())
    def recalls(self, queries: list[str], touch: Touch, counted: bool) -> None:  # noqa: FBT001 - drawn by name
        for query in queries:
            self.recall(query, touch)
        if counted:
            self.counts()

    def recall(self, query: str, touch: Touch) -> None:
        before = stored()
        answer = producers.recall(NS, query, touch=touch)
        assert stored() == before  # reading writes nothing
        assert answer.degraded == ()
        found = [item.record for item in answer.items]
        assert sorted(record.id for record in found) == sorted(self.model), "so few are all in the answer, each once"
        for record in found:
            kept = self.model[record.id]
            assert record.content == kept.content or (record.content is None and record.tier is Tier.COLD)
            assert (record.metadata, record.importance) == (kept.metadata, kept.importance)
        self.waiting.update(hits_of(query, touch, answer))

    @rule(record_id=IDS, query=QUERIES)
    def reads(self, record_id: str, query: str) -> None:
        """Pages, single records and explanations agree with each other, and write nothing."""
        before = stored()
        planned = {move.id: (move.target, move.reason) for move in producers.plan(NS).moves}
        if self.known([record_id], lambda: producers.get(NS, record_id, whole=True)):
            record = producers.get(NS, record_id, whole=True)
            assert record.content == self.model[record_id].content
            told = producers.explain(NS, record_id, query=query)
            assert (told.record.version, told.record.tier) == (record.version, record.tier)
            assert (told.next_move and (told.next_move.target, told.next_move.reason)) == planned.get(record_id)
            assert told.rating is not None
            assert told.rating.of == len(self.model)
        assert self.listed() == [record.id for record in self.rows().values()]
        assert stored() == before

    def listed(self) -> list[str]:
        found: list[str] = []
        after: str | None = None
        while True:
            page = producers.list_all(NS, after=after, limit=2)
            found += [record.id for record in page.records]
            if page.next is None:
                return found
            after = page.next

    @rule(some=SOME)
    def goes_out_and_comes_in(self, some: list[str]) -> None:
        """An export holds everything: what was forgotten after it comes back whole, and what was not stays as it is."""
        if not self.model:
            return
        self.counts()
        lines, kept = list(producers.export(NS)), dict(self.model)
        self.forgets(some, everything=1)
        done = producers.import_records([read_line(line.encode()) for line in lines])
        assert done.written == len(kept) - len(self.model)
        self.model = kept
        assert list(producers.export(NS)) == lines

    # what ticks and workers do

    @rule()
    def counts(self) -> None:
        """The tick that adds accesses; those of records that are gone are dropped."""
        assert ticks.touch()["records"] == sum(record_id in self.model for record_id in self.waiting)
        for record_id, times in self.waiting.items():
            if record_id in self.model:
                self.model[record_id] = self.model[record_id].touched(times)
        self.waiting.clear()

    @rule(by=STEPS)
    def waits(self, by: timedelta) -> None:
        place = namespaces.find(NS)
        if place is None:
            return
        with system(), connection() as conn:
            conn.execute(
                _OLDER, {"ns": place.namespace_id, "by": by, "decay": heat.DECAY_PER_SECOND * by.total_seconds()}
            )

    @rule()
    def asks_for_a_pass(self) -> None:
        asked = producers.reconcile(NS)
        again = producers.reconcile(NS)
        assert (again.operation_id, again.new) == (asked.operation_id, False), "one that waits already will do"

    @rule()
    def looks_for_what_is_due(self) -> None:
        ticks.due()

    @rule(turns=st.lists(st.integers(0, 9), min_size=1, max_size=8))
    def works(self, turns: list[int]) -> None:
        """Workers take steps of whatever operations there are, in any order."""
        for turn in turns:
            if waiting := fetch_all(_OPEN):
                self.step(*waiting[turn % len(waiting)])

    @rule()
    def works_off(self) -> None:
        while waiting := fetch_all(_OPEN):
            self.step(*waiting[0])
        for erasure in self.erasures:
            assert not any(producers.forget_receipt(erasure).left.values())
            assert producers.operation(erasure).state == "done"
        self.erasures.clear()
        assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]
        check_database()

    def step(self, step_id: int, operation_id: UUID, trace_id: UUID, stage: str) -> None:
        """One step moves a record one tier at most, and no pinned one down."""
        before = self.tiers()
        STAGES[stage]({"step_id": step_id, "operation_id": str(operation_id), "trace_id": str(trace_id)})
        after = self.tiers()
        for record_id, tier in before.items():
            now = after.get(record_id)
            if now is None:
                assert self.policy.evicts
                assert tier is Tier.COLD
                assert not self.model.pop(record_id).pinned
                self.waiting.pop(record_id, None)
                continue
            assert abs(now.rank - tier.rank) <= 1
            assert not self.model[record_id].pinned or now.rank >= tier.rank

    @rule(by=STEPS, passes=st.integers(1, 3))
    def reconciles(self, by: timedelta, passes: int) -> None:
        self.waits(by)
        for _ in range(passes):
            self.one_pass()

    def one_pass(self) -> int:
        """A pass does what was planned; returns how many records it moved."""
        self.works_off()
        self.counts()
        before, plan = self.tiers(), producers.plan(NS)
        assert self.tiers() == before
        report = run_pass(NS, self.policy)
        told = {"promoted": plan.report.promoted, "demoted": plan.report.demoted, "evicted": plan.report.evicted}
        assert report == {**report, **told, "set_aside": 0, "unfinished": 0}
        after = self.tiers()
        changed = {i: after.get(i) for i in before if after.get(i) is not before[i]}
        assert {move.id: move.target for move in plan.moves} == changed
        for move in plan.moves:
            if move.target is None:
                assert not self.model.pop(move.id).pinned
        return len(changed)

    @rule(by_due=st.booleans())
    def settles(self, by_due: bool) -> None:  # noqa: FBT001 - drawn by name
        """Passes come to an end, whether somebody asks or only the tick; then limits are kept and nothing changes."""
        self.works_off()
        self.counts()
        self.waits(2 * HOUR)
        for _ in range(12):
            if by_due:
                ticks.due()
                moving = bool(fetch_all(_OPEN))
                self.works_off()
            else:
                moving = bool(self.one_pass())
            if not moving:
                break
        else:
            pytest.fail("passes do not come to an end")
        before = stored()
        assert self.one_pass() == 0
        assert stored() == before, "a pass with nothing to do changes something"
        found = self.rows().values()
        for tier in Tier:
            capacity, mine = self.policy.capacity(tier), [record for record in found if record.tier is tier]
            assert capacity is None or len(mine) <= max(capacity, sum(record.pinned for record in mine))
        assert not [record.id for record in found if record.pinned and record.tier is Tier.COLD]

    @rule(calls=CALLS)
    def concurrently(self, calls: list[tuple[str, str, str]]) -> None:
        """Whatever the order in which they come to be done, each record ends as one of them left it."""
        self.works_off()
        self.counts()
        before, made = self.tiers(), [Call(n, *call) for n, call in enumerate(calls)]
        with ThreadPoolExecutor(len(made)) as threads:
            hits = sum(threads.map(self.call, made), Counter[str]())
        drive()
        ticks.touch()
        rows = {record_id: Kept.of(record) for record_id, record in self.rows().items()}
        for record_id in {*self.model, *(call.id for call in made)}:
            known = self.model.pop(record_id, None)
            falls = self.policy.evicts and may_fall(known, before.get(record_id, Tier.HOT), made, record_id)
            mine = [call for call in made if call.id == record_id]
            Left(known, rows.get(record_id), mine, hits[record_id], falls, self.begun).check()
        self.model = rows
        self.works_off()

    def call(self, call: Call) -> Counter[str]:
        """Make a call and do the work behind it; returns the accesses it counts."""
        hits: Counter[str] = Counter()
        with suppress(RejectedError):
            if call.verb == "remember":
                producers.remember_records(NS, [call.new(self.begun)])
            elif call.verb == "recall":
                hits.update(hits_of(call.text, Touch.SELECTED, producers.recall(NS, call.text, touch=Touch.SELECTED)))
            elif call.verb == "reconcile":
                producers.reconcile(NS)
            elif call.verb == "update":
                edit = call.edit
                producers.update(NS, call.id, **{name: getattr(edit, name) for name in edit.__slots__})
            else:
                getattr(producers, call.verb)(NS, [call.id])
        drive()
        return hits

    def known(self, ids: list[str], call: Callable[[], Any]) -> bool:
        if self.model.keys() >= set(ids):
            call()
            return True
        with pytest.raises(RejectedError):
            call()
        return False

    def rows(self) -> dict[str, PortableRecord]:
        """All records, whole, by the export; each has the text its hash is of."""
        found = [read_line(line.encode()) for line in producers.export(NS)]
        assert len({record.id for record in found}) == len(found)
        return {record.id: record for record in found}

    def tiers(self) -> dict[str, Tier]:
        return {record_id: record.tier for record_id, record in self.rows().items()}

    @invariant()
    def each_record_is_whole_and_in_one_tier(self) -> None:
        rows = self.rows()
        assert {record_id: Kept.of(record) for record_id, record in rows.items()} == self.model
        assert list(producers.export(ELSEWHERE)) == self.theirs
        newest = sorted(rows.values(), key=lambda record: (record.created_at, record.id.encode()))
        for (payload,) in fetch_all(_DROPS):  # of tails that hold what was evicted
            ticks.refresh(payload)
        replayed = self.memory.tier.tail(NS)
        assert [(r.id, r.content, r.metadata) for r in replayed] == [(r.id, r.content, r.metadata) for r in newest]

    def teardown(self) -> None:
        if hasattr(self, "theirs"):
            self.settles(by_due=len(self.model) % 2 == 0)
            self.each_record_is_whole_and_in_one_tier()


def stored() -> tuple[list[Any], list[Any]]:
    """Every column of every record, and how many moves were made."""
    return fetch_all(_ROWS), fetch_all(_MOVES)


def hits_of(query: str, touch: Touch, answer: Recall) -> list[str]:
    """What a recall counts as accessed."""
    return [item.record.id for item in answer.items if query.strip() and touch.counts(item.score)]


@pytest.mark.parametrize("kind", POLICIES)
def test_any_order_of_calls_and_steps_keeps_every_record_whole_and_in_one_tier(
    memory: Storage, client: Redis, kind: str
) -> None:
    class Machine(ProducersMachine):
        pass

    Machine.memory, Machine.client = memory, client
    assert memory.settings.tier == POLICIES[kind]
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # to make a failure smaller would take longer than a test may
            suppress_health_check=list(HealthCheck),
        ),
    )
