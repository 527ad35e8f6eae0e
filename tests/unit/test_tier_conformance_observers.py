"""Rows of the specification about who is told of moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from managing import COLD, DAY, HOT, NOW, NS, WARM, Recorder, managed, policy, row
from prometheus_client import CollectorRegistry

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.events import Event, RecordDemoted, RecordEvicted, RecordPromoted
from isotherm.pipeline.tier.depth import RECORDS, record_tier_depth
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.observers import (
    MOVES_TOTAL,
    ChainedObserver,
    EventSinkObserver,
    MetricsObserver,
    NoopObserver,
    RecordMove,
    chain_observers,
    migration_run,
)
from isotherm.pipeline.tier.plan import MigrationReport
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.storage.metrics import PrometheusRecorder

if TYPE_CHECKING:
    from isotherm.pipeline.identity import Namespace


def move(record_id: str = "rec-1", source: Tier = HOT, target: Tier | None = WARM) -> RecordMove:
    return RecordMove(NS, record_id, source, target, Reason.IDLE, NOW)


class Failing(Recorder):
    def demoted(self, move: RecordMove) -> None:
        super().demoted(move)
        raise ValueError(move.record_id)


def test_tier_t35_a_promotion_becomes_one_event_of_its_run() -> None:
    sent: list[Event] = []
    with migration_run("run-1"):
        EventSinkObserver(sent.append, "tier-memory").promoted(move(source=WARM, target=HOT))
    (event,) = sent
    assert isinstance(event, RecordPromoted)
    assert (event.record_id, event.from_tier, event.to_tier, event.run_id) == ("rec-1", "warm", "hot", "run-1")
    assert (event.scenario, event.agent, event.session, event.reason) == (
        "tier-memory",
        "assistant",
        "x:assistant",
        "idle",
    )


def test_tier_t35_a_blank_run_changes_nothing() -> None:
    with migration_run("run-1"), migration_run(" "):
        assert move().run_id == "run-1"
    assert move().run_id is None


def test_tier_t36_a_chain_tells_every_sink_once() -> None:
    first: list[Event] = []
    second: list[Event] = []
    chain_observers(EventSinkObserver(first.append, "a"), EventSinkObserver(second.append, "b")).demoted(move())
    assert [type(event) for event in (*first, *second)] == [RecordDemoted, RecordDemoted]


def test_tier_t37_without_a_sink_nothing_happens() -> None:
    observer = EventSinkObserver(None, "a")
    observer.promoted(move(target=HOT))
    observer.demoted(move())
    observer.evicted(move(target=None))
    assert managed(Policy(cooldown=None), row("a", idle=2 * DAY), observer=observer).reconcile(NS).report.demoted == 1


def test_tier_t38_a_chain_leaves_out_those_that_do_nothing() -> None:
    sent: list[Event] = []
    chain = chain_observers(None, NoopObserver(), EventSinkObserver(sent.append, "a"))
    assert isinstance(chain, ChainedObserver)
    assert len(chain.observers) == 1
    chain.evicted(move("rec-2", COLD, None))
    assert [(type(event), event.fields()["record_id"]) for event in sent] == [(RecordEvicted, "rec-2")]
    assert isinstance(chain_observers(None, NoopObserver()), NoopObserver)


def test_tier_t39_every_move_counts_and_no_recorder_is_no_error() -> None:
    registry = CollectorRegistry()
    for observer in (MetricsObserver(PrometheusRecorder(registry), "notes"), MetricsObserver(None, "notes")):
        observer.promoted(move(source=WARM, target=HOT))
        observer.demoted(move())
        observer.evicted(move(source=COLD, target=None))
    counted = {
        (sample.labels["from"], sample.labels["to"]): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == MOVES_TOTAL
    }
    assert counted == {("warm", "hot"): 1, ("hot", "warm"): 1, ("cold", "evicted"): 1}


def test_tier_t40_depth_sets_one_gauge_for_each_tier() -> None:
    registry = CollectorRegistry()
    assert record_tier_depth(MemoryStore(), PrometheusRecorder(registry), "notes", [NS]) == dict.fromkeys(Tier, 0)
    values = [registry.get_sample_value(RECORDS, {"memory": "notes", "tier": tier.value}) for tier in Tier]
    assert values == [0, 0, 0]


def test_tier_t41_doing_nothing_can_be_asked_for() -> None:
    observer = NoopObserver()
    manager = managed(Policy(cooldown=None), row("a", idle=2 * DAY), observer=observer)
    assert manager.reconcile(NS).report == MigrationReport(demoted=1)
    observer.promoted(move(target=HOT))
    observer.evicted(move(target=None))


def test_tier_weak_21_a_failing_observer_disturbs_neither_the_move_nor_the_others() -> None:
    bad, good = Failing(), Recorder()
    lost: list[str] = []
    chain = chain_observers(bad, good, failed=lambda _, error: lost.append(error))
    manager = managed(Policy(cooldown=None), row("a", idle=2 * DAY), row("b", idle=3 * DAY), observer=chain)
    report = manager.reconcile(NS)
    assert (report.report, report.set_aside) == (MigrationReport(demoted=2), ())
    assert [m.record_id for m in bad.moves] == [m.record_id for m in good.moves] == ["b", "a"]
    assert lost == ["ValueError", "ValueError"]
    with pytest.raises(ValueError, match="rec-1"):
        bad.demoted(move())


def test_tier_weak_21_every_move_has_a_reason() -> None:
    seen = Recorder()
    rules = policy(hot_capacity=2, hot_ttl=DAY, demote_idle=7 * DAY, promote_access=3, cold_ttl=90 * DAY)
    rows = [
        row("old", HOT, idle=2 * DAY), row("weak", HOT, importance=0.1), row("h1", HOT), row("h2", HOT),
        row("idle", WARM, idle=8 * DAY), row("gone", COLD, idle=91 * DAY), row("used", COLD, count=6),
    ]  # fmt: skip
    manager = managed(rules, *rows, observer=seen)
    manager.reconcile(NS)
    assert {m.record_id: m.reason.value for m in seen.moves} == {
        "old": "ttl", "weak": "capacity", "idle": "idle", "gone": "ttl", "used": "access",
    }  # fmt: skip
    manager.pin(NS, "idle")
    assert seen.moves[-1].reason is Reason.PIN


def test_tier_weak_21_depth_has_bounded_labels_and_a_count_that_fails_is_left_out() -> None:
    class NoWarm(MemoryStore):
        def count(self, namespace: Namespace, tier: Tier) -> int:
            if tier is WARM:
                raise TransientError("no warm store")
            return super().count(namespace, tier)

    registry, store = CollectorRegistry(), NoWarm()
    owners = [NS, NS.for_tenant("acme")]
    for owner in owners:
        store.put(owner, row("a", HOT))
    assert record_tier_depth(store, PrometheusRecorder(registry), "notes", owners) == {HOT: 2, COLD: 0}
    labels = [sample.labels for metric in registry.collect() for sample in metric.samples]
    assert labels == [{"memory": "notes", "tier": "hot"}, {"memory": "notes", "tier": "cold"}]
    assert record_tier_depth(None, PrometheusRecorder(registry), "notes", owners) == {}
    assert record_tier_depth(store, None, "notes", owners) == {}
