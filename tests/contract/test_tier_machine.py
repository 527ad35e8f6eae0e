"""Everything a manager does, in any order, over every store, against a model of what its records must be."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tier_stores import KINDS, NS, T0, Opened

from isotherm.pipeline.errors import NotFoundError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.pipeline.tier.summaries import ColdSummarySettings, SummarizingColdSummary
from isotherm.pipeline.tier.touching import TouchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from isotherm.pipeline.tier.store import Store, StoredRecord

HOUR = timedelta(hours=1)
# Small enough that every limit is met; one keeps everything, the other evicts.
POLICIES = [
    Policy(hot_capacity=2, warm_capacity=2, promote_access=2, cooldown=HOUR, hot_ttl=24 * HOUR),
    Policy(hot_capacity=1, warm_capacity=2, cold_capacity=2, promote_access=2, cooldown=HOUR, cold_ttl=60 * 24 * HOUR),
]
IDS = st.sampled_from(["a", "a:b", "a_b", "é", "e"])
TEXTS = st.sampled_from(["kelp", "kelp forest", "eelgrass", "kelp " * 30, "eelgrass " * 20, "\U0001f30a"])
STEPS = st.sampled_from([timedelta(seconds=1), HOUR, 25 * HOUR, 8 * 24 * HOUR, 31 * 24 * HOUR])
CALLS = st.lists(
    st.tuples(st.sampled_from(["remember", "update", "recall", "pin", "unpin", "forget", "restore", "reconcile"]), IDS, TEXTS),
    min_size=2,
    max_size=4,
)  # fmt: skip
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
    """Two managers share one store, as two processes would; the model holds the text and the pin of each record."""

    make: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.store = Yielding(self.make())
        self.now = T0
        self.several = len(self.store.levels) > 1
        self.model: dict[str, tuple[str, bool]] = {}

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        self.policy = policy if self.several else Policy.single_level()
        summaries = SummarizingColdSummary(ColdSummarySettings(enabled=True, min_bytes=40, max_summary_chars=16))
        self.managers = [
            Manager(self.store, self.policy, clock=lambda: self.now, summaries=summaries) for _ in range(2)
        ]
        self.managers[1].remember(ELSEWHERE, NewRecord("a", "theirs", self.now))

    @property
    def manager(self) -> Manager:
        return self.managers[0]

    def remember(self, record_id: str, text: str, manager: Manager | None = None, *, pinned: bool = False) -> None:
        (manager or self.manager).remember(NS, NewRecord(record_id, text, self.now, pinned=pinned))

    @rule(record_id=IDS, text=TEXTS, pinned=st.booleans())
    def remembers(self, record_id: str, text: str, pinned: bool) -> None:  # noqa: FBT001 - drawn by name
        self.remember(record_id, text, pinned=pinned)
        before = self.model.get(record_id)
        self.model[record_id] = (text, pinned or bool(before and before[1]))

    @rule(record_id=IDS, text=TEXTS)
    def updates(self, record_id: str, text: str) -> None:
        if self.known(record_id, lambda: self.manager.update(NS, record_id, RecordEdit(content=text))):
            self.model[record_id] = (text, self.model[record_id][1])

    @rule(record_id=IDS)
    def pins(self, record_id: str) -> None:
        if self.known(record_id, lambda: self.manager.pin(NS, record_id)):
            self.model[record_id] = (self.model[record_id][0], True)

    @rule(record_id=IDS)
    def unpins(self, record_id: str) -> None:
        if self.known(record_id, lambda: self.manager.unpin(NS, record_id)):
            self.model[record_id] = (self.model[record_id][0], False)

    @precondition(lambda self: self.several)
    @rule(record_id=IDS)
    def restores(self, record_id: str) -> None:
        if self.known(record_id, lambda: self.manager.restore(NS, record_id)):
            assert self.manager.get(NS, record_id).tier is not Tier.COLD

    @rule(record_id=IDS)
    def forgets(self, record_id: str) -> None:
        receipt = self.manager.forget(NS, [record_id])
        assert receipt.verified
        assert receipt.ids == ((record_id,) if record_id in self.model else ())
        self.model.pop(record_id, None)

    @rule(query=st.sampled_from(["kelp", "eelgrass", ""]), touch=st.sampled_from(TouchMode))
    def recalls(self, query: str, touch: TouchMode) -> None:
        before = self.tiers()
        answer = self.manager.recall(NS, query, touch=touch)
        assert {item.record.id for item in answer.items} <= set(self.model)
        assert len({item.record.id for item in answer.items}) == len(answer.items)
        assert self.tiers() == before  # reading moves nothing

    @rule(step=STEPS)
    def waits(self, step: timedelta) -> None:
        self.now += step

    @rule()
    def reconciles(self) -> None:
        self.one_pass()

    @rule()
    def settles(self) -> None:
        """Passes come to an end; then limits are kept, and another pass changes nothing."""
        self.now += 2 * HOUR
        for _ in range(12):
            if not self.one_pass():
                break
        else:
            pytest.fail("passes do not come to an end")
        assert self.one_pass() == 0
        for tier in self.store.levels:
            capacity = self.policy.capacity(tier)
            pinned = sum(record.pinned for record in self.store.list(NS, tier))
            assert capacity is None or self.store.count(NS, tier) <= max(capacity, pinned)
        assert not any(record.pinned for record in self.store.list(NS, Tier.COLD)) or not self.several

    @rule(calls=CALLS)
    def concurrently(self, calls: list[tuple[str, str, str]]) -> None:
        """Whatever the order in which they come to be done, each record ends as one of them left it."""
        self.store.racing = True
        with ThreadPoolExecutor(len(calls)) as threads:
            jobs = [partial(self.call, n, *call) for n, call in enumerate(calls)]
            list(threads.map(lambda job: job(), jobs))
        self.store.racing = False
        self.agree_after(calls)

    def call(self, number: int, verb: str, record_id: str, text: str) -> None:
        manager = self.managers[number % 2]
        if verb == "remember":
            self.remember(record_id, text, manager)
        elif verb == "recall":
            manager.recall(NS, text, touch=TouchMode.NOW)
        elif verb == "reconcile":
            manager.reconcile(NS, self.now)
        elif verb == "forget":
            manager.forget(NS, [record_id])
        elif verb == "update":
            with suppress(NotFoundError):
                manager.update(NS, record_id, RecordEdit(content=text))
        else:
            with suppress(NotFoundError):
                getattr(manager, verb)(NS, record_id)

    def agree_after(self, calls: list[tuple[str, str, str]]) -> None:
        """Check what the calls may have left of each record, then take it for the model."""
        for record_id in {*self.model, *(call[1] for call in calls)}:
            mine = [(verb, text) for verb, called, text in calls if called == record_id]
            verbs = {verb for verb, _ in mine}
            found = self.store.get(NS, record_id)
            before = self.model.pop(record_id, None)
            if found is None:
                evicts = self.policy.evicts and "reconcile" in {verb for verb, *_ in calls}
                assert evicts or "forget" in verbs or (before is None and "remember" not in verbs)
                continue
            self.check_left(found, before, mine)
            self.model[record_id] = (found.content, found.pinned)

    def check_left(self, found: StoredRecord, before: tuple[str, bool] | None, mine: list[tuple[str, str]]) -> None:
        """A record that is there: no call undid another one, and each that must have had an effect has had it."""
        verbs = {verb for verb, _ in mine}
        given = {text for verb, text in mine if verb in {"remember", "update"}}
        if before is None:
            assert "remember" in verbs
        if before is None or "forget" in verbs:
            assert found.content in given | ({before[0]} if before else set())
            return
        assert found.content in (given or {before[0]})
        if {"pin", "unpin"} <= verbs:
            return
        assert found.pinned == ("pin" in verbs or (before[1] and "unpin" not in verbs))

    def known(self, record_id: str, call: Callable[[], Any]) -> bool:
        if record_id in self.model:
            call()
            return True
        with pytest.raises(NotFoundError):
            call()
        return False

    def one_pass(self) -> int:
        """A pass; returns how many records it moved, each by one step at most and none of them pinned."""
        before = self.tiers()
        done = self.manager.reconcile(NS, self.now)
        after = self.tiers()
        gone = set(before) - set(after)
        assert done.set_aside == ()
        assert gone == set() or self.policy.evicts
        assert len(gone) == done.report.evicted
        moved = [record_id for record_id in after if after[record_id] is not before[record_id]]
        assert len(moved) == done.report.promoted + done.report.demoted
        for record_id in moved:
            assert abs(after[record_id].rank - before[record_id].rank) == 1
            assert not self.model[record_id][1] or after[record_id] is Tier.WARM  # a pinned one is lifted out of cold
        for record_id in gone:
            assert before[record_id] is Tier.COLD
            assert not self.model.pop(record_id)[1]
        return len(moved) + len(gone)

    def tiers(self) -> dict[str, Tier]:
        return {record.id: tier for tier in self.store.levels for record in self.store.list(NS, tier)}

    @invariant()
    def each_record_is_whole_and_in_one_tier(self) -> None:
        found = [record for tier in self.store.levels for record in self.store.list(NS, tier)]
        assert sorted(record.id for record in found) == sorted(self.model)
        assert {record.id: (record.content, record.pinned) for record in found} == self.model
        for tier in Tier:
            assert self.store.count(NS, tier) == sum(record.tier is tier for record in found)
        assert [r.content for tier in self.store.levels for r in self.store.list(ELSEWHERE, tier)] in (["theirs"], [])

    def teardown(self) -> None:
        if hasattr(self, "managers"):
            self.settles()
            self.each_record_is_whole_and_in_one_tier()


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_of_calls_keeps_every_record_in_one_tier(opened: Opened, kind: str) -> None:
    class Machine(TierMachine):
        make = staticmethod(lambda: opened.open(kind))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=100 if kind == "in process" else 6,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
