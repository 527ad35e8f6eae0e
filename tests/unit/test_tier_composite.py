from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from managing import COLD, DAY, HOT, LONG, NS, WARM, FailingStore, managed, new, policy, row, tiers_of

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.bodies import LostBody
from isotherm.pipeline.tier.composite import CompositeStore
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.plan import MigrationReport
from isotherm.pipeline.tier.policy import Policy, reachable
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import StoredRecord


class Bodies(MemoryStore):
    """Counts what is read, and can refuse to delete."""

    def __init__(self, *levels: Tier) -> None:
        super().__init__(levels)
        self.read = 0
        self.stuck = False

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        self.read += 1
        return super().get(namespace, record_id)

    def list(self, *_: object, **__: object) -> Sequence[StoredRecord]:
        raise AssertionError("bodies are never listed")

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        if self.stuck:
            raise TransientError("no bodies")
        return super().delete(namespace, record_id)

    def held(self) -> int:
        return sum(self.count(NS, tier) for tier in Tier)


def parts() -> tuple[MemoryStore, dict[Tier, Bodies]]:
    return MemoryStore(), {tier: Bodies(tier) for tier in Tier}


def composed() -> tuple[CompositeStore, dict[Tier, Bodies]]:
    index, bodies = parts()
    return CompositeStore(index, bodies, Policy()), bodies


def where(bodies: dict[Tier, Bodies]) -> dict[Tier, int]:
    return {tier: store.held() for tier, store in bodies.items()}


def test_the_tiers_a_policy_may_use() -> None:
    assert reachable(Policy()) == {HOT, WARM, COLD}
    assert reachable(Policy.single_level()) == {HOT}
    assert reachable(Policy.single_level(), [WARM]) == {WARM}
    assert reachable(policy(hot_capacity=1)) == {HOT, WARM}
    assert reachable(policy(promote_access=3), [COLD]) == {HOT, WARM, COLD}
    assert reachable(policy(promote_access=3, hot_ttl=DAY), [WARM]) == {HOT, WARM}


def test_a_record_is_read_as_it_was_written_and_lies_in_one_body() -> None:
    store, bodies = composed()
    put = store.put(NS, row("a", content=LONG, metadata={"k": [1]}))
    assert store.get(NS, "a") == put
    assert put.content == LONG
    assert store.list(NS, HOT) == [put]
    for number, tier in enumerate((WARM, COLD, HOT), start=2):
        put = store.put(NS, replace(put, tier=tier))
        assert (put.version, store.get(NS, "a")) == (number, put)
        assert where(bodies) == {other: int(other is tier) for other in Tier}
    assert store.delete(NS, "a")
    assert not store.delete(NS, "a")
    assert sum(where(bodies).values()) == 0


def test_a_swap_needs_the_record_as_it_is() -> None:
    store, _ = composed()
    first = store.swap(NS, None, row("a"))
    assert first is not None
    assert store.swap(NS, None, row("a")) is None
    assert store.swap(NS, replace(first, content="other"), first) is None
    second = store.swap(NS, first, replace(first, tier=WARM))
    assert second is not None
    assert store.swap(NS, first, replace(first, tier=COLD)) is None
    assert store.get(NS, "a") == second


def test_touching_a_record_writes_no_body() -> None:
    store, bodies = composed()
    put = store.put(NS, row("a"))
    before = [record.id for record in MemoryStore.list(bodies[HOT], NS, HOT)]
    store.put(NS, replace(put, access_count=1))
    assert [record.id for record in MemoryStore.list(bodies[HOT], NS, HOT)] == before


def test_a_body_that_cannot_be_removed_is_tried_again() -> None:
    store, bodies = composed()
    put = store.put(NS, row("a"))
    bodies[HOT].stuck = True
    moved = store.put(NS, replace(put, tier=WARM))
    assert (store.get(NS, "a"), where(bodies)[HOT]) == (moved, 1)
    assert store.collect() == 1
    bodies[HOT].stuck = False
    store.put(NS, row("b", WARM))
    assert where(bodies) == {HOT: 0, WARM: 2, COLD: 0}


def test_a_write_that_succeeded_though_it_was_reported_failed_keeps_its_body() -> None:
    class Lossy(MemoryStore):
        losing = False

        def swap(self, *given: Any) -> StoredRecord | None:
            done = super().swap(*given)
            if self.losing:
                raise TransientError("the connection was lost after the commit")
            return done

    index, bodies = Lossy(), {tier: Bodies(tier) for tier in Tier}
    store = CompositeStore(index, bodies, Policy())
    put = store.put(NS, row("a"))
    index.losing = True
    with pytest.raises(TransientError):
        store.swap(NS, put, replace(put, content="changed", tier=WARM))
    index.losing = False
    assert store.collect() == 0
    found = store.get(NS, "a")
    assert found is not None
    assert (found.content, found.tier) == ("changed", WARM)


def test_a_lost_body_is_reported_once_and_stops_no_read() -> None:
    index, bodies = parts()
    seen: list[LostBody] = []
    store = CompositeStore(index, bodies, Policy(), report=seen.append)
    for record_id in ("a", "b"):
        store.put(NS, row(record_id))
    (lost,) = [r for r in MemoryStore.list(bodies[HOT], NS, HOT) if r.content == "kelp a"]
    bodies[HOT].put(NS, replace(lost, content="changed"))
    assert [record.id for record in store.list(NS, HOT, limit=1)] == ["b"]
    assert store.get(NS, "a") is None
    assert seen == list(store.lost()) == [LostBody(NS, "a", HOT)]
    manager = managed(policy(), store=store)
    assert [item.record.id for item in manager.recall(NS, "kelp").items] == ["b"]
    assert manager.forget(NS, ["a"]).verified


def test_a_pass_reads_only_the_bodies_that_move() -> None:
    store, bodies = composed()
    manager = managed(policy(hot_capacity=8), store=store)
    for number in range(10):
        manager.remember(NS, new(f"r{number}", age=number * DAY))
    before = bodies[HOT].read
    assert manager.reconcile(NS).report == MigrationReport(demoted=2)
    assert bodies[HOT].read - before == 2


def test_a_recall_reads_no_cold_body() -> None:
    store, bodies = composed()
    manager = managed(Policy(cooldown=None), row("a", COLD, content=LONG, summary="vessels of the harbor"), store=store)
    (item,) = manager.recall(NS, "vessels").items
    assert (item.record.content, item.record.summary, item.record.size_bytes) == (
        None,
        "vessels of the harbor",
        len(LONG),
    )
    assert bodies[COLD].read == 0
    assert manager.get(NS, "a").content == LONG


def test_bodies_may_stay_in_the_index() -> None:
    index, bodies = parts()
    store = CompositeStore(index, {HOT: index, WARM: index, COLD: bodies[COLD]}, Policy())
    put = store.put(NS, row("a", content=LONG))
    assert index.get(NS, "a") == put
    cold = store.put(NS, replace(put, tier=COLD))
    assert where(bodies) == {HOT: 0, WARM: 0, COLD: 1}
    back = store.put(NS, replace(cold, tier=WARM))
    assert (index.get(NS, "a"), where(bodies)[COLD]) == (back, 0)
    assert [outline.size_bytes for outline in store.outline(NS, WARM)] == [len(LONG)]


def test_a_failing_move_sets_one_record_aside_and_loses_nothing() -> None:
    index, bodies = parts()
    warm = FailingStore(bodies[WARM], WARM)
    store = CompositeStore(index, {**bodies, WARM: warm}, Policy())
    manager = managed(policy(hot_capacity=1), row("a", idle=DAY), row("b"), store=store)
    report = manager.reconcile(NS)
    assert [held.record_id for held in report.set_aside] == ["a"]
    assert tiers_of(manager) == {"b": HOT, "a": HOT}
    warm.failing = False
    manager.update(NS, "a", RecordEdit(importance=0.4))
    assert manager.reconcile(NS).report == MigrationReport(demoted=1)
    assert (manager.get(NS, "a").content, where(bodies)) == ("kelp a", {HOT: 1, WARM: 1, COLD: 0})


def test_stores_that_do_not_fit_are_refused() -> None:
    index, bodies = parts()
    with pytest.raises(RejectedError, match="warm: a store given for it"):
        CompositeStore(index, {**bodies, WARM: bodies[HOT]}, Policy())
    with pytest.raises(RejectedError, match="cold: a store given for it"):
        CompositeStore(MemoryStore([HOT, WARM]), bodies, Policy())
    hot_only = CompositeStore(index, {HOT: bodies[HOT], WARM: bodies[WARM]}, policy(hot_capacity=1))
    with pytest.raises(RejectedError, match="cold"):
        hot_only.put(NS, row("a", COLD))
    assert list(hot_only.list(NS, COLD)) == []


def test_an_index_that_cannot_list_its_namespaces_says_so() -> None:
    index, bodies = parts()
    store = CompositeStore(index, bodies, Policy())
    store.put(NS, row("a"))
    assert list(store.namespaces()) == [NS]

    class Silent(MemoryStore):
        namespaces = None

    with pytest.raises(RejectedError, match="namespaces"):
        CompositeStore(Silent(), bodies, Policy()).namespaces()
