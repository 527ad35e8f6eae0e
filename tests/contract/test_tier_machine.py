"""Everything a manager does, in any order, over every store, against a model of what its records must be."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from managing import Summaries
from tier_model import VERBS, Call, Kept, Left, edits, may_fall, news, one_of_each
from tier_stores import KINDS, NS, T0, Opened

from isotherm.pipeline.errors import NotFoundError, VersionConflictError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.pipeline.tier.summaries import ColdSummarySettings, SummarizingColdSummary
from isotherm.pipeline.tier.touching import TouchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from isotherm.pipeline.tier.answers import Recall
    from isotherm.pipeline.tier.edits import RecordEdit
    from isotherm.pipeline.tier.store import Store, StoredRecord

HOUR = timedelta(hours=1)
# Small enough that every limit is met; one keeps everything, the other evicts.
POLICIES = [
    Policy(hot_capacity=1, warm_capacity=1, promote_access=2, cooldown=HOUR, hot_ttl=24 * HOUR),
    Policy(hot_capacity=1, warm_capacity=1, cold_capacity=1, promote_access=1, cooldown=HOUR, cold_ttl=60 * 24 * HOUR),
]
NAMES = ["a", "a:b", "a_b", "é", "e"]
IDS = st.sampled_from(NAMES)
TEXTS = st.sampled_from(["kelp", "kelp forest", "eelgrass", "kelp " * 30, "eelgrass " * 20, "\U0001f30a"])
QUERIES = st.sampled_from(["kelp", "eelgrass meadow", "harbor", ""])
STEPS = st.sampled_from([timedelta(seconds=1), HOUR, 25 * HOUR, 8 * 24 * HOUR, 31 * 24 * HOUR])
WHO = st.integers(0, 1)
CALLS = st.lists(st.tuples(VERBS, IDS, TEXTS), min_size=2, max_size=5)
ELSEWHERE = Namespace.of("atlas:s1", None, tenant="another")


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    with ExitStack() as held:
        yield Opened(request, tmp_path, held)


class Yielding:
    """A store that gives other threads a turn between a read and the write that follows, while `racing` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.racing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        found = self._store.get(namespace, record_id)
        if self.racing:
            time.sleep(0.0005)
        return found


class TierMachine(RuleBasedStateMachine):
    """Two managers share one store, as two processes would; the model holds all of a record that no move may touch."""

    make: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.store = Yielding(self.make())
        self.now = T0
        self.several = len(self.store.levels) > 1
        self.model: dict[str, Kept] = {}
        # Accesses that each manager has counted and not added yet.
        self.waiting: list[Counter[str]] = [Counter(), Counter()]

    @initialize(policy=st.sampled_from(POLICIES), first=one_of_each(NAMES, TEXTS, *Tier))
    def begin(self, policy: Policy, first: list[NewRecord]) -> None:
        self.policy = policy if self.several else Policy.single_level()
        self.index = Summaries()
        limits = ColdSummarySettings(enabled=True, min_bytes=40, max_summary_chars=16)
        summaries = SummarizingColdSummary(limits, indexer=self.index)
        self.managers = [
            Manager(self.store, self.policy, clock=lambda: self.now, summaries=summaries) for _ in range(2)
        ]
        self.managers[1].remember(ELSEWHERE, NewRecord("a", "theirs", self.now))
        self.remembers(first, 0)

    @property
    def manager(self) -> Manager:
        return self.managers[0]

    @rule(given=st.lists(news(IDS, TEXTS, *Tier), min_size=1, max_size=4), who=WHO)
    def remembers(self, given: list[NewRecord], who: int) -> None:
        for new in given:
            now = replace(new, created_at=self.now)
            self.managers[who].remember(NS, now)
            known = self.model.get(new.id)
            self.model[new.id] = Kept.first(now) if known is None else known.again(now)
            self.check_never_below_warm(new.id)

    @rule(new=news(IDS, TEXTS, *Tier), who=WHO)
    def remembers_the_same(self, new: NewRecord, who: int) -> None:
        if new.id in self.model:
            self.remembers([replace(new, content=self.model[new.id].content)], who)

    def check_never_below_warm(self, record_id: str) -> None:
        if self.several and self.model[record_id].pinned:
            assert self.manager.get(NS, record_id).tier is not Tier.COLD

    @rule(record_id=IDS, edit=edits(TEXTS), who=WHO, stale=st.booleans())
    def updates(self, record_id: str, edit: RecordEdit, who: int, stale: bool) -> None:  # noqa: FBT001 - drawn by name
        known = self.store.get(NS, record_id)
        version = 1 if known is None else known.version + stale
        change = partial(self.managers[who].update, NS, record_id, edit, expected_version=version)
        if known is not None and stale:
            with pytest.raises(VersionConflictError):
                change()
        elif self.known(record_id, change):
            self.model[record_id] = self.model[record_id].edited(edit)

    @rule(record_id=IDS, who=WHO, pinned=st.booleans())
    def pins(self, record_id: str, who: int, pinned: bool) -> None:  # noqa: FBT001 - drawn by name
        manager = self.managers[who]
        if self.known(record_id, partial(manager.pin if pinned else manager.unpin, NS, record_id)):
            self.model[record_id] = replace(self.model[record_id], pinned=pinned)
            self.check_never_below_warm(record_id)

    @precondition(lambda self: self.several)
    @rule(record_id=IDS, who=WHO)
    def restores(self, record_id: str, who: int) -> None:
        if self.known(record_id, lambda: self.managers[who].restore(NS, record_id)):
            assert self.manager.get(NS, record_id).tier is not Tier.COLD

    @rule(ids=st.sets(IDS, min_size=1, max_size=2), everything=st.integers(0, 7), who=WHO)
    def forgets(self, ids: set[str], everything: int, who: int) -> None:
        self.gone(who, sorted(ids) if everything else None)

    def gone(self, who: int, ids: list[str] | None) -> None:
        receipt = self.managers[who].forget(NS, ids)
        assert receipt.verified
        left = sorted(self.model) if ids is None else [i for i in ids if i in self.model]
        assert sorted(receipt.ids) == left
        for record_id in left if ids is None else ids:
            self.model.pop(record_id, None)
            self.waiting[who].pop(record_id, None)

    @rule(query=QUERIES, touch=st.sampled_from(TouchMode), who=WHO)
    def recalls(self, query: str, touch: TouchMode, who: int) -> None:
        before = self.rows()
        answer = self.managers[who].recall(NS, query, touch=touch)
        found = [item.record.id for item in answer.items]
        assert sorted(found) == sorted(self.model), "so few records are all in the answer, each once"
        hits = hits_of(query, touch, answer)
        self.waiting[who].update(hits)
        if touch is TouchMode.NOW and hits:
            self.add_touches(who)
        else:
            assert self.rows() == before  # reading moves nothing and writes nothing
        assert self.tiers() == {i: row.tier for i, row in before.items()}

    @rule(who=WHO)
    def applies_touches(self, who: int) -> None:
        self.managers[who].apply_touches(NS)
        self.add_touches(who)

    def add_touches(self, who: int) -> None:
        """A touch of a record that is gone is dropped."""
        for record_id, times in self.waiting[who].items():
            if record_id in self.model:
                self.model[record_id] = self.model[record_id].touched(times)
        self.waiting[who].clear()

    @rule(some=st.sets(IDS), who=WHO)
    def goes_out_and_comes_in(self, some: set[str], who: int) -> None:
        """An export holds everything: what was forgotten after it comes back whole, and what was not stays as it is."""
        manager = self.managers[who]
        lines = list(manager.export(NS))
        kept = dict(self.model)
        tiers = self.tiers()
        self.gone(who, sorted(some | {"never there"}))
        assert manager.import_lines(lines, overwrite=True) == len(kept)
        self.model = kept
        assert list(manager.export(NS)) == lines
        assert self.tiers() == tiers

    @rule(who=WHO)
    def reads(self, who: int) -> None:
        rows, listed = self.rows(), list(self.managers[who].list_all(NS))
        assert sorted(record.id for record in listed) == sorted(rows)
        for record in listed:
            row = rows[record.id]
            assert self.store.get(NS, record.id) == row
            assert (record.content, record.tier, record.version) == (row.content, row.tier, row.version)
            assert self.managers[who].get(NS, record.id) == record

    @rule(record_id=IDS, query=QUERIES)
    def explains(self, record_id: str, query: str) -> None:
        before = self.rows()
        planned = {move.id: (move.target, move.reason) for move in self.manager.plan(NS).moves}
        if self.known(record_id, lambda: self.manager.explain(NS, record_id, query)):
            told = self.manager.explain(NS, record_id, query)
            assert told.next_move == planned.get(record_id)
            assert told.rating is not None
            assert told.rating.of == len(self.model)
        assert self.rows() == before

    @rule(step=STEPS)
    def waits(self, step: timedelta) -> None:
        self.now += step

    @rule(who=WHO)
    def reconciles(self, who: int) -> None:
        self.one_pass(who)

    @rule()
    def settles(self) -> None:
        """Passes come to an end; then limits are kept, and another pass changes nothing."""
        self.now += 2 * HOUR
        for who in range(2):
            self.applies_touches(who)
        for _ in range(12):
            if not self.one_pass():
                break
        else:
            pytest.fail("passes do not come to an end")
        before = self.rows()
        assert self.one_pass() == 0
        assert self.rows() == before
        for tier in self.store.levels:
            capacity = self.policy.capacity(tier)
            pinned = sum(row.pinned for row in before.values() if row.tier is tier)
            assert capacity is None or self.store.count(NS, tier) <= max(capacity, pinned)
        assert not any(row.pinned and row.tier is Tier.COLD for row in before.values()) or not self.several

    @rule(calls=CALLS)
    def concurrently(self, calls: list[tuple[str, str, str]]) -> None:
        """Whatever the order in which they come to be done, each record ends as one of them left it."""
        for who in range(2):
            self.applies_touches(who)
        before, made = self.tiers(), [Call(n, *call) for n, call in enumerate(calls)]
        self.store.racing = True
        with ThreadPoolExecutor(len(made)) as threads:
            hits = sum(threads.map(self.call, made), Counter[str]())
        self.store.racing = False
        for manager in self.managers:
            manager.apply_touches(NS)
        # Of a record that went cold as another process warmed it, the index may have lost the summary.
        self.manager.index_summaries(NS)
        self.agree_after(made, before, hits)

    def call(self, call: Call) -> Counter[str]:
        """Make a call; returns the accesses it counts."""
        manager = self.managers[call.number % 2]
        with suppress(NotFoundError):
            if call.verb == "remember":
                manager.remember(NS, call.new(self.now))
            elif call.verb == "recall":
                answer = manager.recall(NS, call.text, touch=TouchMode.NOW)
                assert answer.degraded == ()
                return Counter(hits_of(call.text, TouchMode.NOW, answer))
            elif call.verb == "reconcile":
                assert manager.reconcile(NS, self.now).set_aside == ()
            elif call.verb == "forget":
                manager.forget(NS, [call.id])
            elif call.verb == "update":
                manager.update(NS, call.id, call.edit)
            else:
                getattr(manager, call.verb)(NS, call.id)
        return Counter()

    def agree_after(self, calls: list[Call], tiers: dict[str, Tier], hits: Counter[str]) -> None:
        """Check what the calls may have left of each record, then take it for the model."""
        for record_id in {*self.model, *(call.id for call in calls)}:
            row, before = self.store.get(NS, record_id), self.model.pop(record_id, None)
            found = None if row is None else Kept.of(row)
            falls = self.policy.evicts and may_fall(before, tiers.get(record_id, Tier.HOT), calls, record_id)
            mine = [call for call in calls if call.id == record_id]
            Left(before, found, mine, hits[record_id], falls, self.now).check()
            if found is not None:
                self.model[record_id] = found

    def known(self, record_id: str, call: Callable[[], Any]) -> bool:
        if record_id in self.model:
            call()
            return True
        with pytest.raises(NotFoundError):
            call()
        return False

    def one_pass(self, who: int = 0) -> int:
        """A pass does what was planned, one step a record at most and none of a pinned one; returns how many it moved."""
        self.applies_touches(who)
        before, manager = self.tiers(), self.managers[who]
        plan = manager.plan(NS)
        assert self.tiers() == before
        done = manager.reconcile(NS, self.now)
        after = self.tiers()
        assert (done.set_aside, done.changed, done.report) == ((), 0, plan.report)
        assert done.report.evicted == 0 or self.policy.evicts
        assert {move.id: move.target for move in plan.moves} == {
            i: after.get(i) for i in before if after.get(i) is not before[i]
        }
        for move in plan.moves:
            if move.target is None:
                assert move.source is Tier.COLD
                assert not self.model.pop(move.id).pinned
                continue
            assert abs(move.target.rank - move.source.rank) == 1
            assert not self.model[move.id].pinned or move.target is Tier.WARM  # a pinned one is lifted out of cold
        return len(plan.moves)

    def tiers(self) -> dict[str, Tier]:
        return {record_id: row.tier for record_id, row in self.rows().items()}

    def rows(self) -> dict[str, StoredRecord]:
        """All records, whole, each of which is in one tier."""
        found = [record for tier in self.store.levels for record in self.store.list(NS, tier)]
        assert len({record.id for record in found}) == len(found), "in two tiers"
        return {record.id: record for record in found}

    @invariant()
    def each_record_is_whole_and_in_one_tier(self) -> None:
        rows = self.rows()
        assert {record_id: Kept.of(row) for record_id, row in rows.items()} == self.model
        assert all((row.heat_log is None) == (row.access_count == 0) for row in rows.values())
        for tier in Tier:
            assert self.store.count(NS, tier) == sum(row.tier is tier for row in rows.values())
        if self.several:
            cold = {record_id: row.summary for record_id, row in rows.items() if row.tier is Tier.COLD}
            assert {record_id: self.index.held.get(record_id) for record_id in cold} == cold
            assert all((row.summary is None) == (record_id not in cold) for record_id, row in rows.items())
        theirs = [r for tier in self.store.levels for r in self.store.list(ELSEWHERE, tier)]
        assert [(r.id, r.content, r.version) for r in theirs] == [("a", "theirs", 1)]

    def teardown(self) -> None:
        if hasattr(self, "managers"):
            self.settles()
            self.reads(1)
            self.each_record_is_whole_and_in_one_tier()


def hits_of(query: str, touch: TouchMode, answer: Recall) -> list[str]:
    """What a recall counts as accessed: what the query found, by a word or by its summary."""
    if touch is TouchMode.OFF or not query.strip():
        return []
    return [item.record.id for item in answer.items if item.score.is_relevant or "summary" in item.legs]


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_of_calls_keeps_every_record_in_one_tier(opened: Opened, kind: str) -> None:
    class Machine(TierMachine):
        make = staticmethod(lambda: opened.open(kind))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60 if kind == "in process" else 4,
            stateful_step_count=30 if kind == "in process" else 20,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],  # to make a failure smaller would take longer than a test may
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
