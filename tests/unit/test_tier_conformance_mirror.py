"""Rows of the specification about plain memories, the adapter and the mirrored index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from managing import COLD, DAY, HOT, HOUR, LONG, NOW, NS, WARM, managed, new, policy, row

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.adapter import CognitiveAdapter
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.cognitive import CognitiveRecord, MemoryIndex
from isotherm.pipeline.tier.dual_write import DualWriteManager, MirrorError, RebuildReport
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.messages import ChatMessage, message_record
from isotherm.pipeline.tier.plan import MigrationReport
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.weights import RecallWeights


class Index(MemoryIndex):
    """An index that can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.writes = 0

    def remember(self, namespace: Namespace, record: CognitiveRecord) -> None:
        self._reach()
        super().remember(namespace, record)

    def forget(self, namespace: Namespace, record_id: str) -> None:
        self._reach()
        super().forget(namespace, record_id)

    def contents(self) -> Mapping[str, str]:
        return {record.id: record.content for record in self.recall(NS, "", 1_000)}

    def _reach(self) -> None:
        self.writes += 1
        if self.away:
            raise TransientError("no index")


def fact(record_id: str, content: str, **more: float) -> CognitiveRecord:
    return CognitiveRecord(record_id, content, NOW, **more)  # type: ignore[arg-type]


def contents(records: Sequence[CognitiveRecord]) -> list[str]:
    return [record.content for record in records]


def test_tier_t22_an_adapter_finds_the_fact() -> None:
    adapter = CognitiveAdapter(managed(Policy()))
    kept = adapter.remember(NS, fact("fact-1", "user prefers dark mode", importance=0.8))
    assert list(adapter.recall(NS, "dark mode", 5)) == [kept]
    assert (kept.id, kept.importance, kept.created_at) == ("fact-1", 0.8, NOW)


def test_tier_t23_the_index_gets_the_searchable_text() -> None:
    index = Index()
    mirrored = DualWriteManager(managed(), index)
    mirrored.remember(NS, new("msg-1", '{"role": "user"}', metadata={"searchable": " billing issue "}))
    assert index.contents() == {"msg-1": "billing issue"}


def test_tier_t24_an_index_that_failed_is_rebuilt() -> None:
    """In process it raises as the specification says. Through Celery it is replaced on purpose: the mirror is a message in
    the outbox and the answer is a success (tests/integration/test_redis_away.py).
    """
    index = Index()
    index.away = True
    mirrored = DualWriteManager(managed(), index)
    with pytest.raises(MirrorError, match="msg-1 is stored") as failed:
        mirrored.remember(NS, new("msg-1", "{}", metadata={"searchable": "billing issue"}))
    assert failed.value.record_id == "msg-1"
    assert (index.contents(), mirrored.lag) == ({}, 1)
    index.away = False
    assert mirrored.rebuild_index(NS) == RebuildReport(added=1)
    assert (index.contents(), mirrored.lag) == ({"msg-1": "billing issue"}, 0)


def test_tier_t25_without_an_index_there_is_nothing_to_mirror() -> None:
    mirrored = DualWriteManager(managed(), None)
    mirrored.remember(NS, new("msg-1", "hello"))
    assert [item.record.id for item in mirrored.recall(NS, "hello", RecallBudget(total=5)).items] == ["msg-1"]
    assert mirrored.rebuild_index(NS) == RebuildReport()


def test_tier_t26_t63_a_pass_over_an_empty_namespace_does_nothing() -> None:
    mirrored = DualWriteManager(managed(Policy(), row("m1", idle=2 * DAY)), Index())
    assert mirrored.reconcile(Namespace.of("assistant", "session")).report == MigrationReport()
    assert mirrored.inner.get(NS, "m1").tier is HOT


def test_tier_t52_an_index_in_memory_replaces_and_finds() -> None:
    index = MemoryIndex()
    with pytest.raises(RejectedError, match="id"):
        index.remember(NS, fact("", "user prefers dark mode"))
    index.remember(NS, fact("fact-1", "user prefers dark mode"))
    index.remember(NS, fact("fact-1", "user prefers light mode"))
    assert contents(index.recall(NS, "light", 5)) == ["user prefers light mode"]
    assert contents(index.recall(NS, "dark", 5)) == []
    assert list(index.recall(NS, "light", 0)) == []
    assert list(index.recall(NS.for_tenant("acme"), "light", 5)) == []


def test_tier_t60_a_limit_of_two_gives_two() -> None:
    manager = managed(policy(hot_capacity=100))
    for number in range(4):
        manager.remember(NS, new(f"m{number}", f"old-{number}", age=(4 - number) * HOUR))
    assert contents(CognitiveAdapter(manager).recall(NS, "latest", 2)) == ["old-2", "old-3"]
    assert len(CognitiveAdapter(manager).recall(NS, "latest", -1)) == 4


def test_tier_x16_a_record_without_an_id_is_mirrored_under_the_one_it_got() -> None:
    index = Index()
    stored = DualWriteManager(managed(), index).remember(NS, new("", "hello"))
    assert index.contents() == {stored.id: "hello"}


def test_tier_x24_messages_are_all_stored_while_the_index_is_away_and_never_twice() -> None:
    index = Index()
    index.away = True
    mirrored = DualWriteManager(managed(), index)
    messages = [ChatMessage(role="user", content=text, time=NOW) for text in ("first", "second")]
    for _ in range(2):
        for position, message in enumerate(messages):
            with pytest.raises(MirrorError):
                mirrored.remember(NS, message_record(NS, message, position))
    assert [record.content for record in mirrored.list_all(NS)] != []
    assert sorted(record.text for record in mirrored.list_all(NS)) == ["first", "second"]
    index.away = False
    assert mirrored.catch_up() == 0
    assert sorted(index.contents().values()) == ["first", "second"]


def test_tier_weak_10_deletions_and_evictions_reach_the_index() -> None:
    index = Index()
    mirrored = DualWriteManager(managed(policy(cold_capacity=0)), index)
    for record_id, tier in (("a", HOT), ("b", WARM), ("c", COLD)):
        mirrored.remember(NS, new(record_id, record_id * 3, tier=tier))
    mirrored.update(NS, "a", RecordEdit(content="aaaa"))
    assert index.contents() == {"a": "aaaa", "b": "bbb", "c": "ccc"}
    index.away = True
    assert mirrored.reconcile(NS).evicted == ("c",)
    assert mirrored.lag == 1
    index.away = False
    assert mirrored.forget(NS, ["a"]).ids == ("a",)
    assert index.contents() == {"b": "bbb"}
    mirrored.forget(NS)
    assert index.contents() == {}


def test_tier_weak_10_a_rebuild_writes_only_what_differs() -> None:
    index = Index()
    mirrored = DualWriteManager(managed(), index)
    for record_id in ("same", "changed", "missing"):
        mirrored.remember(NS, new(record_id))
    index.remember(NS, fact("changed", "stale"))
    index.remember(NS, fact("gone", "stale"))
    index.forget(NS, "missing")
    index.writes = 0
    assert mirrored.rebuild_index(NS) == RebuildReport(added=1, updated=1, removed=1)
    assert index.writes == 3
    assert mirrored.rebuild_index(NS) == RebuildReport()
    assert set(index.contents()) == {"same", "changed", "missing"}


def test_an_adapter_uses_its_weights() -> None:
    manager = managed(policy(), row("old", idle=300 * DAY, importance=1.0), row("fresh", importance=0.1))
    worth = RecallWeights(semantic=0, recency=0, importance=1)
    assert [r.id for r in CognitiveAdapter(manager, worth).recall(NS, "", 1)] == ["old"]
    assert [r.id for r in CognitiveAdapter(manager).recall(NS, "", 1)] == ["fresh"]


def test_an_adapter_keeps_the_use_of_what_is_remembered_again() -> None:
    manager = managed(policy(), row("a", WARM, count=4, content=LONG))
    adapter = CognitiveAdapter(manager)
    adapter.remember(NS, fact("a", LONG))
    assert (manager.get(NS, "a").access_count, manager.get(NS, "a").tier) == (4, WARM)
