"""What the library does when a part of it fails: nothing is said to be gone that is there, and nothing blocks the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from managing import COLD, DAY, HOT, LONG, NS, WARM, Clock, Recorder, Stub, Summaries, managed, new, policy, row

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.cognitive import CognitiveRecord, MemoryIndex
from isotherm.pipeline.tier.composite import CompositeStore
from isotherm.pipeline.tier.dual_write import DualWriteManager, MirrorError, RebuildReport
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.observers import RecordMove
from isotherm.pipeline.tier.plan import MigrationReport
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import Quota
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.pipeline.tier.settings import Settings
from isotherm.pipeline.tier.store import StoredRecord
from isotherm.pipeline.tier.summaries import ColdSummarySettings, SummarizingColdSummary

IDLE = Policy(cooldown=None)


class Stuck(MemoryStore):
    """Refuses to delete while told so, and tells of each write."""

    stuck = False
    told: Callable[[], None] | None = None

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        if self.stuck:
            raise TransientError("no bodies")
        return super().delete(namespace, record_id)

    def forget_all(self, namespace: Namespace) -> int:
        if self.stuck:
            raise TransientError("no bodies")
        return super().forget_all(namespace)

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        found = super().get(namespace, record_id)
        told, self.told = self.told, None
        if told is not None:
            told()
        return found


def parts() -> tuple[Stuck, dict[Tier, Stuck]]:
    return Stuck(), {tier: Stuck([tier]) for tier in Tier}


def held(bodies: dict[Tier, Stuck], namespace: Namespace = NS) -> int:
    return sum(store.count(namespace, tier) for tier, store in bodies.items())


def test_a_forgotten_record_whose_body_stays_is_not_verified_and_any_process_can_go_on() -> None:
    index, bodies = parts()
    manager = managed(store=CompositeStore(index, bodies, Policy()))
    manager.remember(NS, new("a"))
    bodies[HOT].stuck = True
    for ids in (["a"], None):
        with pytest.raises(TransientError):
            manager.forget(NS, ids)
    bodies[HOT].stuck = False
    another = managed(store=CompositeStore(index, bodies, Policy()))
    assert another.forget(NS, ["a"]).verified
    assert (held(bodies), index.count(NS, HOT)) == (0, 0)


def test_a_body_that_another_process_moves_during_a_removal_goes_too() -> None:
    index, bodies = parts()
    first, second = (CompositeStore(index, bodies, Policy()) for _ in range(2))
    put = first.put(NS, row("a"))
    index.told = lambda: second.put(NS, replace(put, tier=WARM))  # type: ignore[assignment, return-value]
    assert first.delete(NS, "a") is True
    assert (held(bodies), first.get(NS, "a")) == (0, None)


def test_an_eviction_whose_body_stays_is_undone() -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    put = store.put(NS, row("a", COLD))
    bodies[COLD].stuck = True
    with pytest.raises(TransientError):
        store.evict(NS, put)
    assert store.get(NS, "a") == put
    bodies[COLD].stuck = False
    assert store.evict(NS, put) is True
    assert held(bodies) == 0


def test_a_body_that_could_not_be_put_back_is_not_said_to_be_gone() -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    put = store.put(NS, row("a", COLD))
    bodies[COLD].stuck = True

    def no_swap(*_: Any) -> StoredRecord | None:
        raise TransientError("no index")

    index.swap = no_swap  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        store.evict(NS, put)
    del index.swap
    with pytest.raises(TransientError):
        store.delete(NS, "a")
    bodies[COLD].stuck = False
    assert store.delete(NS, "a") is False
    assert held(bodies) == 0


def test_an_old_body_that_stays_is_named_by_the_row_of_the_new_one() -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    put = store.put(NS, row("a"))
    bodies[HOT].stuck = True
    moved = store.put(NS, replace(put, tier=WARM))
    moved = store.put(NS, replace(moved, tier=COLD))
    another = CompositeStore(index, bodies, Policy())
    assert (another.get(NS, "a"), held(bodies)) == (moved, 2)
    touched = another.put(NS, replace(moved, access_count=1))
    with pytest.raises(TransientError):
        another.delete(NS, "a")
    bodies[HOT].stuck = False
    another = CompositeStore(index, bodies, Policy())
    assert another.get(NS, "a") == touched
    assert another.evict(NS, touched) is True
    assert held(bodies) == 0


def test_a_write_is_undone_whose_row_cannot_name_the_old_body() -> None:
    index, bodies = parts()
    store = CompositeStore(index, {**bodies, WARM: index}, Policy())
    put = store.put(NS, row("a"))
    bodies[HOT].stuck = True
    with pytest.raises(TransientError):
        store.put(NS, replace(put, tier=WARM))
    found = store.get(NS, "a")
    assert found == replace(put, version=3)
    bodies[HOT].stuck = False
    moved = store.put(NS, replace(found, tier=WARM))
    assert (store.get(NS, "a"), held({HOT: bodies[HOT]})) == (moved, 0)


def test_a_forgotten_namespace_loses_bodies_that_no_row_names() -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    store.put(NS, row("a"))
    other = replace(NS, session="another")
    store.put(other, row("a"))
    index.delete(NS, "a")
    assert held(bodies) == 1
    assert managed(store=store).forget(NS).verified
    assert (held(bodies), held(bodies, other)) == (0, 1)


def test_a_summary_that_cannot_be_removed_keeps_its_record() -> None:
    index = Summaries("a")
    summaries = SummarizingColdSummary(ColdSummarySettings(min_bytes=1), indexer=index)
    manager = managed(policy(warm_capacity=0), row("a", WARM), summaries=summaries)
    manager.reconcile(NS)
    assert set(index.held) == {"a"}
    index.away = True
    with pytest.raises(TransientError):
        manager.forget(NS)
    assert [r.id for r in manager.list_all(NS)] == ["a"]
    index.away = False
    assert manager.forget(NS).ids == ("a",)
    assert index.held == {}


def test_an_evicted_record_leaves_no_summary_behind() -> None:
    index = Summaries()
    summaries = SummarizingColdSummary(ColdSummarySettings(), indexer=index)
    manager = managed(policy(cold_capacity=0), row("a", COLD, idle=DAY, summary="of kelp"), summaries=summaries)
    manager.index_summaries(NS)
    index.away = True
    report = manager.reconcile(NS)
    assert (report.evicted, [one.record_id for one in report.set_aside]) == ((), ["a"])
    assert [r.id for r in manager.list_all(NS)] == ["a"]
    index.away = False
    manager.pin(NS, "a")
    manager.unpin(NS, "a")
    assert index.held == {}


def test_an_eviction_that_lost_its_race_keeps_the_summary() -> None:
    store = MemoryStore()

    class Racing(Summaries):
        def delete_summary(self, namespace: Namespace, record_id: str) -> None:
            super().delete_summary(namespace, record_id)
            store.put(namespace, row("a", COLD, summary="of eelgrass"))

    racing = Racing()
    summaries = SummarizingColdSummary(ColdSummarySettings(), indexer=racing)
    manager = managed(policy(cold_capacity=0), row("a", COLD, summary="of kelp"), store=store, summaries=summaries)
    assert (manager.reconcile(NS).changed, racing.held) == (1, {"a": "of eelgrass"})


def test_a_record_that_goes_while_it_is_summarized_leaves_no_summary() -> None:
    store = MemoryStore()

    class Slow(Summaries):
        def upsert_summary(self, namespace: Namespace, record_id: str, summary: str) -> None:
            super().upsert_summary(namespace, record_id, summary)
            store.delete(namespace, record_id)

    index = Slow()
    summaries = SummarizingColdSummary(ColdSummarySettings(), indexer=index)
    manager = managed(policy(warm_capacity=0), row("a", WARM), store=store, summaries=summaries)
    assert manager.reconcile(NS).changed == 1
    assert index.held == {}


def test_a_mirror_loses_entries_of_a_forgotten_namespace_whose_records_went_before() -> None:
    store, index = MemoryStore(), MemoryIndex()
    manager = DualWriteManager(managed(store=store), index)
    for record_id in ("a", "b"):
        manager.remember(NS, new(record_id))
    store.delete(NS, "a")
    assert manager.forget(NS).ids == ("b",)
    assert index.fingerprints(NS) == {}


def test_a_forgotten_namespace_is_not_told_to_be_gone_from_a_mirror_that_is_away() -> None:
    class Away(MemoryIndex):
        def forget(self, namespace: Namespace, record_id: str) -> None:
            raise TransientError(f"no index for {record_id} of {namespace.agent}")

    manager = DualWriteManager(managed(), Away())
    manager.remember(NS, new("a"))
    with pytest.raises(MirrorError):
        manager.forget(NS)


def lose(bodies: dict[Tier, Stuck], tier: Tier, content: str) -> None:
    (body,) = [one for one in bodies[tier].list(NS, tier) if one.content == content]
    bodies[tier].delete(NS, body.id)


def test_a_record_whose_text_is_lost_is_set_aside_and_blocks_no_tier() -> None:
    index, bodies = parts()
    store, clock = CompositeStore(index, bodies, Policy()), Clock()
    manager = managed(policy(hot_capacity=1), row("a", idle=DAY), row("b"), store=store, clock=clock)
    lose(bodies, HOT, "kelp a")
    first = manager.reconcile(NS)
    assert [(one.record_id, one.reason) for one in first.set_aside] == [("a", "its text cannot be read")]
    assert (first.changed, [one.record_id for one in manager.set_aside(NS)]) == (0, ["a"])
    assert manager.reconcile(NS).report.demoted == 1
    assert (store.count(NS, HOT), store.count(NS, WARM)) == (1, 1)
    clock.advance(2 * DAY)
    assert manager.reconcile(NS).set_aside == ()


def test_a_record_that_went_during_a_pass_is_not_set_aside() -> None:
    class Going(MemoryStore):
        def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
            self.delete(namespace, record_id)
            return None

    manager = managed(policy(hot_capacity=0), store=Going())
    manager.remember(NS, new("a"))
    report = manager.reconcile(NS)
    assert (report.changed, report.set_aside, manager.set_aside(NS)) == (1, (), [])


@pytest.mark.parametrize("content", ["kelp a", "eelgrass"])
@pytest.mark.parametrize("tier", [HOT, WARM])
def test_a_lost_record_may_be_remembered_again(content: str, tier: Tier) -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    manager = managed(store=store)
    manager.remember(NS, new("a", "kelp a"))
    lose(bodies, HOT, "kelp a")
    assert store.get(NS, "a") is None
    again = manager.remember(NS, new("a", content, tier=tier))
    assert (again.content, again.tier) == (content, tier)
    assert manager.get(NS, "a").content == content
    assert (store.lost(), held(bodies)) == ((), 1)


def test_a_record_is_put_over_a_lost_one_of_the_same_text() -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    put = store.put(NS, row("a"))
    lose(bodies, HOT, "kelp a")
    again = store.put(NS, put)
    assert (store.get(NS, "a"), again.version) == (again, 2)


def test_a_record_whose_store_is_away_is_not_taken_for_lost() -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    store.put(NS, row("a"))

    def away(*_: Any) -> StoredRecord | None:
        raise TransientError("no bodies")

    bodies[HOT].get = away  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        store.swap(NS, None, row("a", content="eelgrass"))
    del bodies[HOT].get
    assert store.swap(NS, None, row("a", content="eelgrass")) is None
    found = store.get(NS, "a")
    assert found is not None
    assert found.content == "kelp a"


def told(manager: Manager, seen: Recorder, record_id: str = "a") -> list[tuple[Tier, Tier | None, Reason]]:
    """What an observer was told; the log has the same."""
    moves = [(move.source, move.target, move.reason) for move in seen.moves]
    logged = [(move.source, move.target, move.reason) for move in manager.explain(NS, record_id).moves]
    assert moves == logged
    return moves


@pytest.mark.parametrize("content", ["kelp a", "eelgrass"])
def test_a_cold_record_that_is_remembered_with_a_pin_is_warm_at_once(content: str) -> None:
    seen = Recorder()
    manager = managed(Policy(), row("a", COLD, summary="of kelp"), observer=seen)
    again = manager.remember(NS, new("a", content, tier=COLD, pinned=True))
    assert (again.tier, again.pinned, again.content, again.summary) == (WARM, True, content, None)
    assert told(manager, seen) == [(COLD, WARM, Reason.PIN if content == "kelp a" else Reason.RESTORE)]


def test_a_pinned_record_stays_warm_when_another_text_asks_for_cold() -> None:
    seen = Recorder()
    manager = managed(Policy(), row("a", pinned=True), observer=seen)
    assert manager.remember(NS, new("a", "eelgrass", tier=COLD)).tier is WARM
    assert told(manager, seen) == [(HOT, WARM, Reason.RESTORE)]


@pytest.mark.parametrize(("source", "target"), [(COLD, HOT), (COLD, WARM), (WARM, HOT), (HOT, WARM), (HOT, COLD)])
def test_another_text_that_moves_a_record_tells_of_it(source: Tier, target: Tier) -> None:
    seen = Recorder()
    manager = managed(Policy(), row("a", source), observer=seen)
    assert manager.remember(NS, new("a", "eelgrass", tier=target)).moved_at is not None
    assert told(manager, seen) == [(source, target, Reason.RESTORE)]


def test_the_same_text_moves_nothing_and_tells_of_nothing() -> None:
    seen = Recorder()
    manager = managed(Policy(), row("a", WARM), observer=seen)
    assert manager.remember(NS, new("a", "kelp a", importance=0.9)).tier is WARM
    assert told(manager, seen) == []


def test_a_summary_stands_for_the_text_that_is_there() -> None:
    index = Summaries()
    summaries = SummarizingColdSummary(ColdSummarySettings(), indexer=index)
    manager = managed(Policy(), row("a", COLD, summary="of kelp"), row("b", HOT), summaries=summaries)
    manager.index_summaries(NS)
    assert manager.remember(NS, new("a", "eelgrass", tier=COLD)).summary == "eelgrass"
    assert manager.remember(NS, new("b", "kelp b", tier=COLD)).tier is HOT
    assert index.held == {"a": "eelgrass"}
    manager.remember(NS, new("a", "drift wood", tier=HOT))
    assert index.held == {}


def test_the_limit_of_pins_holds_for_what_is_remembered_too() -> None:
    manager = managed(Policy(), row("a"), max_pinned=1)
    manager.remember(NS, new("b", pinned=True))
    with pytest.raises(RejectedError, match="pinned"):
        manager.remember(NS, new("c", pinned=True))
    with pytest.raises(RejectedError, match="pinned"):
        manager.remember(NS, new("a", "kelp a", pinned=True))
    assert [r.id for r in manager.list_all(NS) if r.pinned] == ["b"]
    assert manager.remember(NS, new("b", "eelgrass", pinned=True)).pinned
    assert not manager.remember(NS, new("c")).pinned


def test_threads_that_pin_at_once_do_not_exceed_the_limit() -> None:
    manager = managed(Policy(), *(row(f"r{n}") for n in range(16)), max_pinned=3)

    def pin(n: int) -> bool:
        try:
            if n % 2:
                manager.pin(NS, f"r{n}")
            else:
                manager.remember(NS, new(f"r{n}", f"kelp r{n}", pinned=True))
        except RejectedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(pin, range(16))) == 3
    assert sum(record.pinned for record in manager.list_all(NS)) == 3


class Telling(MemoryIndex):
    """Does something before it answers, and fails while told so."""

    before: Callable[[], object] | None = None
    failing = False

    def fingerprints(self, namespace: Namespace) -> Mapping[str, bytes]:
        found = super().fingerprints(namespace)
        self._told()
        return found

    def remember(self, namespace: Namespace, record: CognitiveRecord) -> None:
        self._told()
        if self.failing:
            raise TransientError("no index")
        super().remember(namespace, record)

    def _told(self) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()


def texts(index: Telling) -> dict[str, str]:
    return {record.id: record.content for record in index.recall(NS, "", 10)}


def test_a_rebuild_does_not_write_over_what_a_writer_has_told_meanwhile() -> None:
    class Paged(MemoryStore):
        after_page: Callable[[], object] | None = None

        def list(self, *given: Any, **more: Any) -> Sequence[StoredRecord]:
            page = super().list(*given, **more)
            after, self.after_page = self.after_page, None
            if after is not None:
                after()
            return page

    store, index = Paged(), Telling()
    manager = DualWriteManager(managed(store=store), index)
    manager.inner.remember(NS, new("a", "one"))
    store.after_page = lambda: manager.remember(NS, new("a", "two"))
    manager.rebuild_index(NS)
    assert (texts(index), manager.lag) == ({"a": "two"}, 0)


def test_a_rebuild_keeps_an_entry_that_came_after_it_had_looked() -> None:
    store, index = MemoryStore(), Telling()
    manager = DualWriteManager(managed(store=store), index)
    manager.remember(NS, new("a", "one"))
    kept = store.get(NS, "a")
    assert kept is not None
    store.delete(NS, "a")
    manager.inner.remember(NS, new("b", "one"))
    # While the entry of "b" is written, "a" comes back.
    index.before = lambda: setattr(index, "before", lambda: store.put(NS, kept))
    assert manager.rebuild_index(NS) == RebuildReport(added=1)
    assert texts(index) == {"a": "one", "b": "one"}


def test_a_rebuild_leaves_behind_what_failed_while_it_ran() -> None:
    index = Telling()
    manager = DualWriteManager(managed(), index)
    manager.remember(NS, new("a", "one"))
    manager.inner.remember(NS, new("b", "one", age=DAY))

    def failing() -> None:
        index.failing = True
        with pytest.raises(MirrorError):
            manager.remember(NS, new("a", "two"))
        index.failing = False

    # While the entry of "b" is written, "a" has been compared.
    index.before = lambda: setattr(index, "before", failing)
    assert manager.rebuild_index(NS) == RebuildReport(added=1)
    assert (texts(index), manager.lag) == ({"a": "one", "b": "one"}, 1)
    assert manager.catch_up() == 0
    assert texts(index) == {"a": "two", "b": "one"}


def test_a_rebuild_that_fails_forgets_nothing_that_was_behind() -> None:
    index = Telling()
    manager = DualWriteManager(managed(), index)
    index.failing = True
    with pytest.raises(MirrorError):
        manager.remember(NS, new("a"))
    with pytest.raises(TransientError):
        manager.rebuild_index(NS)
    assert manager.lag == 1
    index.failing = False
    assert (manager.rebuild_index(NS), manager.lag) == (RebuildReport(added=1), 0)


@pytest.mark.parametrize(
    "path",
    [
        "recall_budget.total", "recall_budget.hot", "recall_budget.warm", "recall_budget.cold", "recall_weights.semantic",
        "recall_weights.recency", "recall_weights.importance", "cold_summary.min_bytes", "cold_summary.max_summary_chars",
        "cold_summary.enabled", "cold_summary.or_truncated", "cold_summary.summary_profile", "enabled",
    ],
)  # fmt: skip
@pytest.mark.parametrize("bad", ["8", "0.5", "no", "true", b"8", [1]])
def test_settings_are_strict_at_every_level(path: str, bad: object) -> None:
    if path.endswith("profile") and isinstance(bad, str):
        bad = 8
    *above, name = path.split(".")
    raw = {above[0]: {name: bad}} if above else {name: bad}
    with pytest.raises(RejectedError, match=path.replace(".", r"\.")):
        Settings.from_mapping(raw)


@pytest.mark.parametrize(
    "path", ["recall_budget.total", "recall_budget.hot", "recall_weights.recency", "cold_summary.min_bytes"]
)
@pytest.mark.parametrize("bad", [True, False])
def test_a_switch_is_no_number_and_a_number_no_switch(path: str, *, bad: bool) -> None:
    above, name = path.split(".")
    with pytest.raises(RejectedError, match=name):
        Settings.from_mapping({above: {name: bad}})
    for switch in ({"enabled": int(bad)}, {"cold_summary": {"enabled": int(bad)}}):
        with pytest.raises(RejectedError, match="enabled"):
            Settings.from_mapping(switch)


def test_what_is_derived_cannot_be_given() -> None:
    with pytest.raises(RejectedError, match=r"recall_budget: .*given"):
        Settings.from_mapping({"recall_budget": {"hot": 1, "given": []}})
    budget = Settings.parse({"recall_budget": {"total": 5, "hot": 2}}).budget()
    assert (budget.given, budget.normalize().given, budget.minimum(WARM)) == ({HOT}, {HOT}, 0)
    assert budget != RecallBudget(total=5, hot=2, warm=1, cold=2)


@pytest.mark.parametrize(
    "name", ["hot_capacity", "warm_capacity", "cold_capacity", "promote_access", "batch_size", "max_moves"]
)
def test_a_policy_takes_no_text_for_a_number(name: str) -> None:
    with pytest.raises(RejectedError, match=name):
        Policy.parse({name: "8"})
    with pytest.raises(RejectedError, match="records"):
        Quota.parse({"records": "8"})


def test_zero_is_no_limit_of_summaries() -> None:
    every = Settings.parse({"cold_summary": {"min_bytes": 0, "max_summary_chars": 10}}).summaries()
    assert every.archive(NS, row("a", content="kelp in cold water")) == "kelp in co\N{HORIZONTAL ELLIPSIS}"
    whole = Settings.parse({"cold_summary": {"max_summary_chars": 0}}).summaries()
    assert whole.archive(NS, row("a", content=LONG)) == LONG.strip()
    own = Settings.parse({"cold_summary": {"max_summary_chars": 0}}).summaries(summarizer=Stub("of vessels"))
    assert own.archive(NS, row("a", content=LONG)) == "of vessels"
    with pytest.raises(RejectedError, match="min_bytes"):
        Settings.from_mapping({"cold_summary": {"min_bytes": -1}})


def test_a_pass_asked_for_by_an_observer_of_it_does_not_wait_for_itself() -> None:
    asked = []

    class Asking(Recorder):
        def demoted(self, move: RecordMove) -> None:
            asked.append(manager.reconcile(NS).coalesced)
            super().demoted(move)

    manager = managed(IDLE, row("a", HOT, idle=2 * DAY), observer=Asking())
    assert manager.reconcile(NS).report == MigrationReport(demoted=1)
    assert asked == [True]


def test_a_pass_that_fails_lets_the_next_one_begin() -> None:
    class Away(MemoryStore):
        away = True

        def list(self, *given: Any, **more: Any) -> Sequence[StoredRecord]:
            if self.away:
                raise TransientError("no store")
            return super().list(*given, **more)

    store = Away()
    manager = managed(IDLE, row("a", HOT, idle=2 * DAY), store=store)
    for _ in range(2):
        with pytest.raises(TransientError):
            manager.reconcile(NS)
    store.away = False
    assert manager.reconcile(NS).report == MigrationReport(demoted=1)


def test_what_is_imported_leaves_what_is_there_as_it_is() -> None:
    lines = list(managed(Policy(), row("a", COLD, summary="of kelp"), row("b")).export(NS))
    seen, index = Recorder(), Summaries()
    summaries = SummarizingColdSummary(ColdSummarySettings(), indexer=index)
    manager = managed(Policy(), row("a", HOT, content="eelgrass"), observer=seen, summaries=summaries)
    assert manager.import_lines(lines) == 1
    assert (manager.get(NS, "a").content, manager.get(NS, "b").content) == ("eelgrass", "kelp b")
    assert (told(manager, seen), index.held) == ([], {})
    assert manager.import_lines(lines, overwrite=True) == 2
    assert (manager.get(NS, "a").content, manager.get(NS, "a").tier) == ("kelp a", COLD)
    assert (told(manager, seen), index.held) == ([(HOT, COLD, Reason.RESTORE)], {"a": "of kelp"})
    hot = list(managed(Policy(), row("a", HOT)).export(NS))
    assert (manager.import_lines(hot, overwrite=True), index.held) == (1, {})


def test_what_is_imported_stands_in_for_a_lost_record() -> None:
    index, bodies = parts()
    manager = managed(store=CompositeStore(index, bodies, Policy()))
    manager.remember(NS, new("a", "kelp a"))
    lines = list(manager.export(NS))
    lose(bodies, HOT, "kelp a")
    assert manager.import_lines(lines) == 1
    assert manager.get(NS, "a").content == "kelp a"


def test_a_pin_lifts_nothing_where_there_is_no_warm() -> None:
    seen = Recorder()
    manager = managed(Policy.single_level(), row("a", COLD), store=MemoryStore([COLD]), observer=seen)
    assert manager.remember(NS, new("a", "kelp a", pinned=True)).tier is COLD
    assert manager.remember(NS, new("a", "eelgrass", tier=COLD)).pinned
    assert manager.pin(NS, "a").tier is COLD
    assert told(manager, seen) == []
