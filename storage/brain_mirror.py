"""Bringing the truth to the graph: what messages ask for, what differs, and everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeGuard, TypeVar
from uuid import UUID

from isotherm.pipeline.brain import drift
from isotherm.pipeline.brain.drift import BUCKETS, Repair
from isotherm.pipeline.brain.graph_port import Counts, GraphPort
from isotherm.pipeline.stages import BRAIN_MIRROR
from isotherm.storage.postgres import brain_drift, brain_mirror, outbox, steps
from isotherm.storage.postgres.brain_mirror import Projection
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.steps import FOR_EVER, ClaimedStep, NewStep
from isotherm.storage.postgres.tier_write import Patience

# What one call to the graph writes, and how many buckets are compared row by row at a time.
_BATCH = 500
_BUCKETS = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """Objects, and edges by row key, of a namespace that are to be brought to the graph."""

    namespace_id: int
    ids: Sequence[UUID]
    edges: Sequence[int]


class TakesRows(GraphPort, Protocol):
    """A graph that stands beside the rows of objects and needs nobody to carry them."""

    def take(self, namespace: UUID, namespace_id: int, ids: Sequence[UUID]) -> tuple[Counts, list[UUID]]:
        """Write the nodes of objects from their rows. Returns: what changed, and the objects that must come by `upsert`."""
        ...


@dataclass(frozen=True, slots=True)
class Drift:
    """What a graph had other than its truth, and what was brought to it.

    Args: nodes, edges: that differed; discarded: of them, those that the graph had newer than the truth, or alone.
    """

    nodes: int = 0
    edges: int = 0
    discarded: int = 0

    def __add__(self, other: Drift) -> Drift:
        """Both together."""
        return Drift(self.nodes + other.nodes, self.edges + other.edges, self.discarded + other.discarded)

    @property
    def nothing(self) -> bool:
        """Whether nothing differed."""
        return not (self.nodes or self.edges)


def bring(graph: GraphPort, asked: Sequence[Asked]) -> Counts:
    """Write objects and edges at their newest revision, each once however often it was asked for.

    Raises: TransientError when the graph or PostgreSQL is out of reach.
    """
    nodes = edges = 0
    for namespace_id in dict.fromkeys(each.namespace_id for each in asked):
        mine = [each for each in asked if each.namespace_id == namespace_id]
        ids = list(dict.fromkeys(i for each in mine for i in each.ids))
        keys = list(dict.fromkeys(key for each in mine for key in each.edges))
        for some_ids in _batches(ids):
            counts = _write_nodes(graph, namespace_id, some_ids)
            nodes, edges = nodes + counts.nodes, edges + counts.edges
        for some_keys in _batches(keys):
            counts = _write(graph, namespace_id, [], some_keys)
            nodes, edges = nodes + counts.nodes, edges + counts.edges
    return Counts(nodes, edges)


def _takes_rows(graph: GraphPort) -> TypeGuard[TakesRows]:
    return hasattr(graph, "take")


def _write_nodes(graph: GraphPort, namespace_id: int, ids: Sequence[UUID]) -> Counts:
    if not _takes_rows(graph):
        return _write(graph, namespace_id, ids, [])
    with connection() as conn:
        name = brain_mirror.graph_name(conn, namespace_id)
    if name is None:
        return Counts()
    taken, left = graph.take(name, namespace_id, ids)
    by_row = _write(graph, namespace_id, left, []) if left else Counts()
    return Counts(taken.nodes + by_row.nodes, 0)


def _write(graph: GraphPort, namespace_id: int, ids: Sequence[UUID], keys: Sequence[int]) -> Counts:
    with connection() as conn:
        wanted = brain_mirror.projection(conn, namespace_id, ids, keys)
    return Counts() if wanted is None else apply(graph, wanted)


def apply(graph: GraphPort, wanted: Projection) -> Counts:
    """Write a projection to the graph. Raises: TransientError when the graph is out of reach."""
    written = removed = Counts()
    if wanted.nodes or wanted.edges:
        written = graph.upsert(wanted.namespace, wanted.nodes, wanted.edges)
    if wanted.gone_nodes or wanted.gone_edges:
        removed = graph.remove(wanted.namespace, wanted.gone_nodes, wanted.gone_edges)
    return Counts(written.nodes + removed.nodes, written.edges + removed.edges)


def follow(conn: Connection, step: ClaimedStep, keys: Sequence[int], patience: Patience) -> list[Message]:
    """Write the step that brings the objects of these rows to the graph, since they got vectors; parts are not in it.

    Args: step: whose operation it belongs to. Returns: the message to publish after the commit, if there is one.
    """
    ids = [] if step.namespace_id is None else brain_mirror.first_class(conn, step.namespace_id, keys)
    wanted = {"ids": [str(i) for i in ids], "edges": []}
    return _follow(conn, step, NewStep(BRAIN_MIRROR, wanted, f"vectors/{step.unit}"), patience) if ids else []


def follow_edges(
    conn: Connection, step: ClaimedStep, keys: Sequence[int], unit: str, patience: Patience
) -> list[Message]:
    """Write the step that brings edges to the graph, by row key; the same as `follow` besides."""
    wanted = {"ids": [], "edges": list(keys)}
    return _follow(conn, step, NewStep(BRAIN_MIRROR, wanted, unit), patience) if keys else []


def _follow(conn: Connection, step: ClaimedStep, new: NewStep, patience: Patience) -> list[Message]:
    [added] = steps.add(conn, step.operation_id, [new], retry_for=FOR_EVER, nudge_after=patience.nudge_after)
    trace = step.trace_id
    return [
        outbox.announce(conn, BRAIN_MIRROR, added, operation_id=step.operation_id, trace_id=trace, delay=patience.grace)
    ]


def compare(graph: GraphPort, namespace_id: int, name: UUID) -> Drift:
    """What the graph of a namespace has other than its truth; nothing is changed.

    Raises: TransientError when the graph or PostgreSQL is out of reach.
    """
    found = Drift()
    for some in _batches(_differing(graph, namespace_id, name), _BUCKETS):
        found += _counted(_plan(graph, namespace_id, name, some))
    return found


def repair(graph: GraphPort, namespace_id: int, name: UUID, *, told: Callable[[int], object] = lambda _: None) -> Drift:
    """Write again what the graph lacks or has wrong; nothing in the truth is touched.

    Args: name: of the namespace in the graph; told: is given how many of the 256 buckets are done.
    Raises: as `compare`.
    """
    found = _repair(graph, namespace_id, name, told)
    with connection() as conn:
        brain_drift.note(conn, namespace_id, found.nodes, found.edges)
    return found


def _repair(graph: GraphPort, namespace_id: int, name: UUID, told: Callable[[int], object]) -> Drift:
    found, buckets = Drift(), _differing(graph, namespace_id, name)
    done = BUCKETS - len(buckets)
    told(done)
    for some in _batches(buckets, _BUCKETS):
        plan = _plan(graph, namespace_id, name, some)
        _mend(graph, namespace_id, name, plan)
        found += _counted(plan)
        done += len(some)
        told(done)
    return found


def rebuild(
    graph: GraphPort, namespace_id: int, name: UUID, *, told: Callable[[int], object] = lambda _: None
) -> Drift:
    """Drop the graph of a namespace and fill it again. Returns: what was written. Raises: as `compare`."""
    graph.clear(name)
    written = _repair(graph, namespace_id, name, told)
    with connection() as conn:
        brain_drift.note(conn, namespace_id, 0, 0)  # an empty graph was asked for: nothing had gone wrong
    return written


def _differing(graph: GraphPort, namespace_id: int, name: UUID) -> list[int]:
    # The graph is read first: what is written meanwhile makes the truth newer, which is repaired, never the graph.
    there = graph.digest(name)
    with connection() as conn:
        return drift.differing(there, brain_drift.digest(conn, namespace_id))


def _plan(graph: GraphPort, namespace_id: int, name: UUID, buckets: Sequence[int]) -> Repair:
    there = graph.held(name, buckets)
    with connection() as conn:
        return drift.plan_repair(there, brain_drift.held(conn, namespace_id, buckets))


def _mend(graph: GraphPort, namespace_id: int, name: UUID, plan: Repair) -> None:
    if plan.odd_nodes or plan.odd_edges:
        graph.discard(name, plan.odd_nodes, plan.odd_edges)
    for ids in _batches(plan.nodes):
        _write_nodes(graph, namespace_id, ids)
    for edges in _batches(plan.edges):
        with connection() as conn:
            wanted = brain_mirror.projection(conn, namespace_id, [], edges=edges)
        if wanted is not None:
            apply(graph, wanted)


def _counted(plan: Repair) -> Drift:
    nodes, edges = {*plan.nodes, *plan.odd_nodes}, {*plan.edges, *plan.odd_edges}
    return Drift(len(nodes), len(edges), len(plan.odd_nodes) + len(plan.odd_edges))


def _batches(found: Sequence[T], size: int = _BATCH) -> Iterator[list[T]]:
    left = iter(found)
    while batch := list(islice(left, size)):
        yield batch
