"""Bringing interests to the graph: what changed, what differs, and everything."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.pipeline.brain import drift
from isotherm.pipeline.brain.drift import BUCKETS, Repair
from isotherm.pipeline.brain.graph_port import Counts, GraphPort
from isotherm.storage import brain_mirror
from isotherm.storage.brain_mirror import Drift
from isotherm.storage.postgres import interest_mirror
from isotherm.storage.postgres.pool import connection

# What one call to the graph writes, and how many buckets are compared row by row at a time.
_BATCH = 500
_BUCKETS = 16


def bring(graph: GraphPort, bank_id: int) -> Counts:
    """Write what changed in a bank since the last time, each at its newest revision.

    A batch is noted as brought after the graph has it, so that a runner that dies leaves it to be written again, which the
    graph ignores. Raises: TransientError when the graph or PostgreSQL is out of reach.
    """
    nodes = edges = 0
    while True:
        with connection() as conn:
            some = interest_mirror.changed(conn, bank_id, _BATCH)
            keys = [one.key for one in some if not one.is_point]
            points = [one.key.source for one in some if one.is_point]
            wanted = interest_mirror.projection(conn, bank_id, points, keys)
        if not some:
            return Counts(nodes, edges)
        counts = brain_mirror.apply(graph, wanted)
        nodes, edges = nodes + counts.nodes, edges + counts.edges
        with connection() as conn:
            interest_mirror.brought(conn, bank_id, some)


def compare(graph: GraphPort, bank_id: int) -> Drift:
    """What the graph has of a bank other than its truth; nothing is changed. Raises: as `bring`."""
    found = Drift()
    buckets = _differing(graph, bank_id)
    for start in range(0, len(buckets), _BUCKETS):
        found += _counted(_plan(graph, bank_id, buckets[start : start + _BUCKETS]))
    return found


def repair(graph: GraphPort, bank_id: int, *, told: Callable[[int], object] = lambda _: None) -> Drift:
    """Write again what the graph lacks or has wrong; nothing in the truth is touched.

    Args: told: is given how many of the 256 buckets are done. Raises: as `bring`.
    """
    found = _repair(graph, bank_id, told)
    with connection() as conn:
        interest_mirror.note(conn, bank_id, found.nodes, found.edges)
    return found


def _repair(graph: GraphPort, bank_id: int, told: Callable[[int], object]) -> Drift:
    found, buckets = Drift(), _differing(graph, bank_id)
    told(BUCKETS - len(buckets))
    for start in range(0, len(buckets), _BUCKETS):
        some = buckets[start : start + _BUCKETS]
        plan = _plan(graph, bank_id, some)
        _mend(graph, bank_id, plan)
        found += _counted(plan)
        told(BUCKETS - len(buckets) + start + len(some))
    return found


def rebuild(graph: GraphPort, bank_id: int, *, told: Callable[[int], object] = lambda _: None) -> Drift:
    """Drop the graph of a bank and fill it again. Returns: what was written. Raises: as `bring`."""
    graph.clear(interest_mirror.graph_of(bank_id))
    written = _repair(graph, bank_id, told)
    with connection() as conn:
        interest_mirror.note(conn, bank_id, 0, 0)  # an empty graph was asked for: nothing had gone wrong
    return written


def _differing(graph: GraphPort, bank_id: int) -> list[int]:
    # The graph is read first: what is written meanwhile makes the truth newer, which is repaired, never the graph.
    there = graph.digest(interest_mirror.graph_of(bank_id))
    with connection() as conn:
        return drift.differing(there, interest_mirror.digest(conn, bank_id))


def _plan(graph: GraphPort, bank_id: int, buckets: list[int]) -> Repair:
    there = graph.held(interest_mirror.graph_of(bank_id), buckets)
    with connection() as conn:
        return drift.plan_repair(there, interest_mirror.held(conn, bank_id, buckets))


def _mend(graph: GraphPort, bank_id: int, plan: Repair) -> None:
    if plan.odd_nodes or plan.odd_edges:
        graph.discard(interest_mirror.graph_of(bank_id), plan.odd_nodes, plan.odd_edges)
    for start in range(0, max(len(plan.nodes), len(plan.edges)), _BATCH):
        part = slice(start, start + _BATCH)
        with connection() as conn:
            wanted = interest_mirror.projection(conn, bank_id, plan.nodes[part], plan.edges[part])
        brain_mirror.apply(graph, wanted)


def _counted(plan: Repair) -> Drift:
    nodes, edges = {*plan.nodes, *plan.odd_nodes}, {*plan.edges, *plan.odd_edges}
    return Drift(len(nodes), len(edges), len(plan.odd_nodes) + len(plan.odd_edges))
