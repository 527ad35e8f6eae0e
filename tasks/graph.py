"""The graph as a copy: whether a write is there yet, and the tick that compares graphs with their truth and repairs them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.brain.graph_port import Counts
from isotherm.pipeline.errors import IsothermError, TransientError
from isotherm.pipeline.events import GraphRepaired, InterestsMirrored
from isotherm.pipeline.work import StepState
from isotherm.storage import brain_mirror, interest_mirror
from isotherm.storage.postgres import brain_drift, operations
from isotherm.storage.postgres import interest_mirror as mirror_rows
from isotherm.storage.postgres.operations import StepRow
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.tasks import publish
from isotherm.tasks.observe import emit
from isotherm.tasks.ticks import tick

# Namespaces that one tick compares at most, and for how long; the next tick goes on.
_TAKEN = 20
_BANKS = 100
_SECONDS = 20.0
_FIRST_LOOK_S, _LONGEST_PAUSE_S = 0.01, 0.25
_OPEN = frozenset({StepState.PENDING, StepState.RUNNING})


class MirrorError(IsothermError):
    """The graph does not have a write, and will not get it by itself; the write itself is stored."""


class MirrorLateError(TransientError):
    """The graph does not have a write yet. It is stored, and the graph gets it without another call."""


def wait_mirrored(operation_id: UUID, within: timedelta = timedelta(seconds=10)) -> None:
    """Return once the graph has everything that an operation wrote.

    Raises: MirrorLateError when that takes longer, as while the graph or the workers are away; MirrorError when its step
    failed for good; RejectedError when there is no such operation.
    """
    storage.open()
    publish.flush()
    deadline, pause = time.monotonic() + within.total_seconds(), _FIRST_LOOK_S
    while True:
        with system(), connection() as conn:
            operations.get(conn, operation_id)
            rows = operations.steps_of(conn, operation_id)
        late = [row for row in rows if row.stage in {stages.BRAIN_MIRROR, stages.BRAIN_EMBED} and row.state in _OPEN]
        _raise_failed(operation_id, rows)
        if not any(row.stage == stages.BRAIN_MIRROR for row in late):
            return
        if time.monotonic() + pause > deadline:
            raise MirrorLateError(
                f"operation {operation_id} is not in the graph yet: {late[-1].last_error or 'waiting'}"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _raise_failed(operation_id: UUID, rows: list[StepRow]) -> None:
    for row in rows:
        if row.stage == stages.BRAIN_MIRROR and row.state not in {*_OPEN, StepState.DONE}:
            raise MirrorError(f"operation {operation_id} is not in the graph: step {row.id} is {row.state}")


@tick(stages.BRAIN_DRIFT)
def drift() -> dict[str, Any]:
    """Compare the graphs that are due with their truth, and repair them."""
    opened = storage.open()
    graph, begun = opened.brain.graph, time.monotonic()
    _drop_strangers()
    checked, found = 0, brain_mirror.Drift()
    while checked < _TAKEN and time.monotonic() - begun < _SECONDS:
        with connection() as conn:
            taken = brain_drift.take(conn, opened.settings.drift_every, 1)
            [place] = brain_drift.known(conn, taken[0]) if taken else [None]
        if place is None:
            break
        found += brain_mirror.repair(graph, place.namespace_id, place.graph)
        checked += 1
    of_interests, more = _drift_of_interests(begun)
    checked, found = checked + of_interests, found + more
    if not found.nothing:
        emit(GraphRepaired(found.nodes, found.edges, found.discarded))
    return {"namespaces": checked, "nodes": found.nodes, "edges": found.edges, "discarded": found.discarded}


def _drift_of_interests(begun: float) -> tuple[int, brain_mirror.Drift]:
    """The same for the interests of banks, in the time that is left."""
    opened = storage.open()
    checked, found = 0, brain_mirror.Drift()
    while checked < _TAKEN and time.monotonic() - begun < _SECONDS:
        with connection() as conn:
            bank_id = mirror_rows.take(conn, opened.settings.drift_every)
        if bank_id is None:
            break
        found += interest_mirror.repair(opened.brain.graph, bank_id)
        checked += 1
    return checked, found


@tick(stages.INTEREST_MIRROR)
def mirror_interests() -> dict[str, Any]:
    """Bring to the graph what changed of interests, wherever it was changed; what is not brought now is by the next tick."""
    graph, begun, counts = storage.open().brain.graph, time.monotonic(), Counts()
    with connection() as conn:
        banks = mirror_rows.changed_banks(conn, _BANKS)
    for bank_id in banks:
        if time.monotonic() - begun > _SECONDS:
            break
        more = interest_mirror.bring(graph, bank_id)
        counts = Counts(counts.nodes + more.nodes, counts.edges + more.edges)
    if counts.nodes or counts.edges:
        emit(InterestsMirrored(counts.nodes, counts.edges))
    return {"nodes": counts.nodes, "edges": counts.edges}


def _drop_strangers() -> None:
    """Empty the graphs of namespaces and banks that are gone, as after a graph was away while they were erased."""
    graph = storage.open().brain.graph
    there = graph.namespaces()
    with connection() as conn:
        known = {place.graph for place in brain_drift.known(conn)}
        known |= {place.graph for place in mirror_rows.known(conn)}
    for name in there:
        if name not in known:
            graph.clear(name)
