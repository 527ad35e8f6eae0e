"""A manager over a store in memory, with a clock that stands still, and stores and models that fail when told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.observers import RecordMove
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.pipeline.tier.store import Store, StoredRecord

NS = Namespace.of("assistant", "x:assistant")
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOT, WARM, COLD = Tier
QUIET = Policy.single_level()
LONG = "The harbor master keeps a log of every vessel, its cargo, its berth and the tide at which it came in. " * 60


class Clock:
    """A clock that moves when told to."""

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta) -> datetime:
        self.now += by
        return self.now


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.moves: list[RecordMove] = []

    def promoted(self, move: RecordMove) -> None:
        self.moves.append(move)

    def demoted(self, move: RecordMove) -> None:
        self.moves.append(move)

    def evicted(self, move: RecordMove) -> None:
        self.moves.append(move)


class Summaries:
    """An index of summaries that proposes what it is told to, and can be out of reach."""

    def __init__(self, *proposed: str) -> None:
        self.proposed = proposed
        self.held: dict[str, str] = {}
        self.away = False

    def upsert_summary(self, namespace: Namespace, record_id: str, summary: str) -> None:
        self._reach(namespace)
        self.held[record_id] = summary

    def search_summaries(self, namespace: Namespace, query: str, limit: int) -> Sequence[str]:
        self._reach(namespace)
        return self.proposed[:limit] if query else ()

    def delete_summary(self, namespace: Namespace, record_id: str) -> None:
        self._reach(namespace)
        self.held.pop(record_id, None)

    def _reach(self, namespace: Namespace) -> None:
        if self.away:
            raise TransientError(f"no index for {namespace.scope}")


class Stub:
    """A summarizer that answers one text, or raises."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def summarize(self, text: str, *, max_chars: int) -> str:
        self.asked.append(f"{max_chars}:{text}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FailingStore:
    """A store whose writes to one tier fail while it is told so."""

    def __init__(self, inner: Store, tier: Tier) -> None:
        self.inner = inner
        self.tier = tier
        self.failing = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        self._fail(record)
        return self.inner.put(namespace, record)

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        self._fail(new)
        return self.inner.swap(namespace, old, new)

    def _fail(self, record: StoredRecord) -> None:
        if self.failing and record.tier is self.tier:
            raise TransientError(f"no {self.tier} store")


def policy(**limits: Any) -> Policy:
    return QUIET.model_copy(update={"cooldown": None, **limits})


def new(record_id: str, content: str = "kelp", *, age: timedelta = timedelta(0), **more: Any) -> NewRecord:
    return NewRecord(record_id, content, NOW - age, **more)


def row(
    record_id: str, tier: Tier = HOT, *, count: int = 0, idle: timedelta = timedelta(0), **more: Any
) -> StoredRecord:
    """A record that was accessed `count` times, the last time `idle` ago."""
    seen = NOW - idle
    base = StoredRecord(id=record_id, content=f"kelp {record_id}", created_at=seen, last_access_at=seen, tier=tier)
    base = replace(base, **more)
    value = heat.add(heat.value_log(base.importance, seen), seen, count)
    return replace(base, access_count=count, heat_log=heat.add(None, seen, count), value_log=value)


def managed(rules: Policy = QUIET, *rows: StoredRecord, store: Store | None = None, **more: Any) -> Manager:
    held = MemoryStore() if store is None else store
    for one in rows:
        held.put(NS, one)
    return Manager(held, rules, **{"clock": Clock(), **more})


def tiers_of(manager: Manager, namespace: Namespace = NS) -> dict[str, Tier]:
    return {record.id: record.tier for record in manager.list_all(namespace)}
