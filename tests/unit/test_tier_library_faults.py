"""What the library does when a part of it fails: nothing is said to be gone that is there, and nothing blocks the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from managing import COLD, DAY, HOT, NS, WARM, Clock, Summaries, managed, new, policy, row

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.cognitive import MemoryIndex
from isotherm.pipeline.tier.composite import CompositeStore
from isotherm.pipeline.tier.dual_write import DualWriteManager, MirrorError
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import StoredRecord
from isotherm.pipeline.tier.summaries import ColdSummarySettings, SummarizingColdSummary


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
