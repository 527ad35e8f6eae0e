"""Forgetting everywhere: rows in batches, the graph, hot copies in Redis; and a look at all of them for what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.stages import BRAIN_MIRROR
from isotherm.pipeline.tier.erasure import OUTSIDE, Level
from isotherm.storage import cold, erasure_check, interest_mirror
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import (
    cold_blobs,
    forget_objects,
    namespaces,
    rewriting,
    tier_forget,
    tier_forget_interest,
    tier_forget_ledgers,
)
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection, maintaining
from isotherm.storage.postgres.reach import over_all
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.postgres.tier_forget import Erasure

# Rows of one transaction, and of one step of a fan of objects.
_BATCH = 500
_UPLOAD_ENDED = timedelta(minutes=1)

_OBJECT_IDS = """
SELECT id FROM brain_objects WHERE namespace_id = %s AND parent_id IS NULL AND deleted_at IS NULL ORDER BY id"""
_EDGE_KEYS = "SELECT key FROM brain_edges WHERE namespace_id = %s AND deleted_at IS NULL ORDER BY key"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Which files PostgreSQL wrote anew: how many tables; whether the planner's statistics and the write-ahead log too."""

    tables: int
    statistics: bool
    log: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was forgotten, in ids and counts.

    Args: scope_sha256: hash of the names of the scope, hexadecimal; counts: what was erased, by kind; left: what a look
    everywhere still finds, by where; requested_at, finished_at: UTC; outside: what no erasure reaches; ids: of what was
    erased, by kind, with which a copy of the database can be looked through too.
    """

    operation_id: UUID
    level: Level
    scope_sha256: str
    counts: dict[str, int]
    left: dict[str, int]
    requested_at: datetime
    finished_at: datetime | None
    outside: tuple[str, ...] = OUTSIDE
    ids: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mirror:
    """Work that brings a new namespace's objects back to a graph that had to be cleared under its name."""

    operation: NewOperation
    steps: list[NewStep]


@dataclass(frozen=True, slots=True)
class Erased:
    """What one call did: whether all is done, work to start then, messages to publish."""

    done: bool
    mirrors: tuple[Mirror, ...] = ()
    messages: tuple[Message, ...] = ()


@over_all
def erase_some(opened: Storage, operation_id: UUID, batches: int) -> Erased:
    """Erase what is left of a scope, at most so many batches of it; each is a transaction of its own.

    Calling it again goes on where the last one ended.
    Raises: TransientError while a runner of the scope still writes outside of the database, or a server is away.
    """
    erasure = _of(operation_id)
    if erasure.level is Level.RECORDS:
        opened.touches.forget(erasure.record_keys)
        messages = _late_steps(opened, erasure)
        _bring_interests(opened, erasure)
        _blobs(opened)
        return Erased(done=True, messages=messages)
    if erasure.level is Level.INTERESTS:
        _bring_interests(opened, erasure)
        return Erased(done=True)
    with connection() as conn:
        if running := tier_forget.running_outside(conn, erasure):
            raise TransientError(f"{running} steps of what is forgotten still run")
    if erasure.level is Level.OBJECTS:
        return Erased(True, tuple(_discard(opened, erasure)))
    budget = _Budget(batches)
    for some in (_operations, _records, _objects):
        if not budget.spend(lambda some=some: some(opened, erasure)):  # type: ignore[misc]  # mypy cannot infer a lambda's default
            return Erased(done=False)
    with connection() as conn:
        tier_forget.statistics(conn, erasure)
    mirrors = _clear_graphs(opened, erasure)
    with connection() as conn:
        messages = tuple(tier_forget_interest.of_scope(conn, erasure, opened.patience))
    _bring_interests(opened, erasure)
    _blobs(opened)
    for namespace_id in erasure.namespace_ids:
        opened.tail.invalidate(namespace_id)
    if not budget.spend(lambda: _names(opened, erasure)):
        return Erased(done=False, messages=messages)
    namespaces.forget_places()
    return Erased(True, tuple(mirrors), messages)


def _late_steps(opened: Storage, erasure: Erasure) -> tuple[Message, ...]:
    """Take records out of steps that were written since: a pass plans from a snapshot, and locks no record meanwhile.

    It holds its namespace until its steps are there, so they are waited for.
    """
    with connection() as conn:
        namespaces.hold(conn, erasure.namespace_ids)
        scrubbed, messages = tier_forget_ledgers.scrub(
            conn, erasure.namespace_ids, erasure.bank_ids, erasure.record_keys, opened.patience
        )
        if scrubbed:
            tier_forget.count(conn, erasure, {"steps": scrubbed})
    return tuple(messages)


class _Budget:
    """How many batches may still run."""

    def __init__(self, batches: int) -> None:
        self._left = batches

    def spend(self, batch: Callable[[], int]) -> bool:
        """Run batches until one finds nothing; False when the budget ended before. Finding nothing costs none of it."""
        while batch():
            self._left -= 1
            if self._left <= 0:
                return False
        return True


def _operations(_: Storage, erasure: Erasure) -> int:
    with connection() as conn:
        return tier_forget.operations(conn, erasure, _BATCH)


def _records(opened: Storage, erasure: Erasure) -> int:
    with connection() as conn:
        keys = tier_forget.lock_records(conn, erasure, _BATCH)
        counts = tier_forget.delete_records(conn, keys)
        # Those that run again are announced by their messages in the outbox.
        scrubbed, _ = tier_forget_ledgers.scrub(conn, [], erasure.bank_ids, keys, opened.patience)
        tier_forget.count(conn, erasure, {**counts, "steps": scrubbed})
    opened.touches.forget(keys)
    return len(keys)


def _blobs(opened: Storage) -> None:
    """Remove the objects of bodies that are gone; one whose upload has not ended keeps the erasure waiting for it."""
    grace = opened.settings.task_time_limit + _UPLOAD_ENDED
    while True:
        with connection() as conn:
            cold_blobs.condemn(conn, grace=grace, limit=_BATCH)
        with connection() as conn:
            dead = cold_blobs.dead(conn, _BATCH)
        gone = cold.collect(opened.blobs, dead)
        with connection() as conn:
            cold_blobs.remove(conn, gone)
        if len(dead) < _BATCH:
            return


def _bring_interests(opened: Storage, erasure: Erasure) -> None:
    """Take interests that are gone or told anew out of the graph too, which otherwise has them until the next tick."""
    for bank_id in () if erasure.whole_banks else erasure.bank_ids:
        interest_mirror.bring(opened.brain.graph, bank_id)


def _objects(_: Storage, erasure: Erasure) -> int:
    with connection() as conn:
        return tier_forget.objects(conn, erasure, _BATCH)


def _names(_: Storage, erasure: Erasure) -> int:
    with connection() as conn:
        return tier_forget.names(conn, erasure, _BATCH)


def _clear_graphs(opened: Storage, erasure: Erasure) -> list[Mirror]:
    """Empty the graph of the scope's namespaces; one that was made anew under an old name is mirrored again."""
    if not erasure.graphs:
        return []
    for graph in erasure.graphs:
        opened.brain.graph.clear(graph)
    with connection() as conn:
        alive = erasure_check.alive(conn, erasure)
        again = [namespace for graph, namespace in alive.items() if graph in set(erasure.graphs)]
        return [mirror for namespace in again if (mirror := _mirror(conn, namespace)) is not None]


def _discard(opened: Storage, erasure: Erasure) -> list[Mirror]:
    """Take single objects out of the graph; those that were put again under their ids are mirrored again."""
    edges = [EdgeKey(UUID(source), UUID(target), label) for source, target, label in erasure.edges]
    for graph in erasure.graphs:
        opened.brain.graph.discard(graph, erasure.objects, edges)
    with connection() as conn:
        ids, keys = forget_objects.alive(conn, erasure.namespace_ids, erasure.objects)
    if not ids:
        return []
    new = NewOperation(uuid7(), BRAIN_MIRROR, uuid4(), erasure.bank_ids[0], erasure.namespace_ids[0])
    return [Mirror(new, [NewStep(BRAIN_MIRROR, {"ids": [str(i) for i in ids], "edges": keys})])]


def _mirror(conn: Connection, namespace: Namespace) -> Mirror | None:
    place = namespaces.find(namespace, again=True)
    if place is None:
        return None
    ids = [str(row[0]) for row in conn.execute(_OBJECT_IDS, (place.namespace_id,)).fetchall()]
    edges = [int(row[0]) for row in conn.execute(_EDGE_KEYS, (place.namespace_id,)).fetchall()]
    parts = [{"ids": chunk, "edges": []} for chunk in _chunks(ids)] + [
        {"ids": [], "edges": chunk} for chunk in _chunks(edges)
    ]
    new = NewOperation(uuid7(), BRAIN_MIRROR, uuid4(), place.bank_id, place.namespace_id)
    return Mirror(new, [NewStep(BRAIN_MIRROR, part, str(n)) for n, part in enumerate(parts)]) if parts else None


def _chunks(items: Sequence[Any]) -> list[list[Any]]:
    return [list(items[at : at + _BATCH]) for at in range(0, len(items), _BATCH)]


@over_all
def verify_forgotten(opened: Storage, operation_id: UUID) -> dict[str, int]:
    """Look everywhere for what an erasure was to erase; returns what is left, by where, and nothing when all is gone.

    Raises: RejectedError when there is no such erasure; TransientError when a server cannot be reached.
    """
    return erasure_check.left(opened, _of(operation_id))


def rewrite_files(opened: Storage) -> Rewritten:
    """Have the servers write their files anew, so that what was erased is no longer in them.

    Each table is locked while it is written, and needs as much free disk as it takes. Call it late and rarely. What the
    role may not do is left, and told.
    Raises: TransientError when a server cannot be reached, a table cannot be locked, or an open transaction still sees what
    was deleted.
    """
    with maintaining() as conn:
        rewriting.settled(conn)
        tables = rewriting.tables(conn)
        statistics, log = rewriting.statistics(conn), rewriting.log(conn)
    opened.tail.rewrite_files()
    return Rewritten(tables, statistics=statistics, log=log)


@over_all
def receipt(opened: Storage, operation_id: UUID) -> Receipt:
    """The receipt of an erasure, with a look at what is left now. Raises: as `verify_forgotten`."""
    left = verify_forgotten(opened, operation_id)
    erasure = _of(operation_id)
    return Receipt(
        operation_id,
        erasure.level,
        erasure.scope_sha256.hex(),
        dict(sorted(erasure.counts.items())),
        left,
        erasure.requested_at,
        erasure.finished_at,
        ids=erasure_check.ids_of(erasure),
    )


def _of(operation_id: UUID) -> Erasure:
    with connection() as conn:
        found = tier_forget.get(conn, operation_id)
    if found is None:
        raise RejectedError(f"no erasure {operation_id}")
    return found
