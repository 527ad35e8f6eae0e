"""Walks over PostgreSQL's graph: one statement for a step from many objects, and one for a walk of several hops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from isotherm.pipeline.brain.graph_port import Budget, Direction, Neighbor, Walked
from isotherm.pipeline.brain.links import EdgeKey, fold_label
from isotherm.storage.postgres.pool import Connection

_OUT = """
SELECT e.target AS peer, e.source, e.target, e.label, 0 AS incoming, {place} AS place FROM graph_edges AS e
WHERE e.namespace = %(ns)s AND e.source = s.id AND NOT e.deleted {labels}"""
_IN = """
SELECT e.source AS peer, e.source, e.target, e.label, 1 AS incoming, {place} AS place FROM graph_edges AS e
WHERE e.namespace = %(ns)s AND e.target = s.id AND NOT e.deleted {labels}"""
_LABELS = "AND lower(e.label) = ANY(%(labels)s)"
_PLACE = "array_position(%(labels)s::text[], lower(e.label))"

_ORDER = "{n}.place, lower({n}.label), {n}.incoming, {n}.peer, {n}.label"
_STEPS = f"""
LATERAL (
    SELECT * FROM ({{legs}}) AS e
    WHERE NOT EXISTS (SELECT 1 FROM graph_nodes AS d WHERE d.namespace = %(ns)s AND d.id = e.peer AND d.deleted)
      AND NOT EXISTS (SELECT 1 FROM graph_nodes AS d WHERE d.namespace = %(ns)s AND d.id = s.id AND d.deleted)
    ORDER BY {_ORDER.format(n="e")} LIMIT %(limit)s) AS n"""

_NEIGHBORS = f"""
SELECT s.id, n.peer, n.source, n.target, n.label, n.incoming
FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS s (id, place)
CROSS JOIN {_STEPS}
ORDER BY s.place, {_ORDER.format(n="n")}"""

# Every hop: whom to ask, in the order in which they were found and as far as the budget goes, and what they answer. One row
# more than wanted tells that there are more; one without a peer, that there is none.
_FRONTIER = """
f{hop} AS MATERIALIZED (
    SELECT p.peer AS id, row_number() OVER (ORDER BY min(p.place)) AS place FROM s{before} AS p
    WHERE p.rank < %(limit)s AND p.peer IS NOT NULL AND NOT EXISTS (SELECT 1 FROM ({asked}) AS a WHERE a.id = p.peer)
    GROUP BY p.peer ORDER BY min(p.place) LIMIT greatest(%(calls)s - (SELECT count(*) FROM ({asked}) AS a), 0))"""
_HOP = f"""
s{{hop}} AS MATERIALIZED (
    SELECT s.id, n.peer, n.source, n.target, n.label, n.incoming,
           row_number() OVER (PARTITION BY s.id ORDER BY {_ORDER.format(n="n")}) AS rank,
           row_number() OVER (ORDER BY s.place, {_ORDER.format(n="n")}) AS place
    FROM f{{hop}} AS s LEFT JOIN {_STEPS} ON true)"""
_FIRST = """
f1 AS MATERIALIZED (SELECT g.id, g.place FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS g (id, place) LIMIT %(calls)s)"""
_WALKED = "SELECT {hop} AS hop, id, peer, source, target, label, incoming, place FROM s{hop}"


class Asked:
    """Labels and direction as SQL.

    Args: labels: as `GraphPort.neighbors` takes them.
    """

    def __init__(self, namespace: UUID, labels: Sequence[str] | None, direction: Direction) -> None:
        self.wanted = None if labels is None else list(dict.fromkeys(map(fold_label, labels)))
        self.values: dict[str, Any] = {"ns": namespace, "labels": self.wanted}
        parts = {"labels": "", "place": "0"} if self.wanted is None else {"labels": _LABELS, "place": _PLACE}
        legs = {Direction.OUT: [_OUT], Direction.IN: [_IN], Direction.BOTH: [_OUT, _IN]}[direction]
        self.legs = " UNION ALL ".join(legs).format(**parts)

    @property
    def nothing(self) -> bool:
        """Whether no label is asked for."""
        return self.wanted == []


def neighbors(conn: Connection, asked: Asked, ids: Sequence[UUID], limit: int) -> list[Neighbor]:
    """One step from each of the objects."""
    if asked.nothing or limit <= 0:
        return []
    values = {**asked.values, "ids": list(dict.fromkeys(ids)), "limit": limit}
    return [_neighbor(*row) for row in conn.execute(_NEIGHBORS.format(legs=asked.legs), values).fetchall()]


def walk(conn: Connection, asked: Asked, seeds: Sequence[UUID], budget: Budget) -> Walked:
    """Steps from the seeds, from where they lead, and so on, in one statement."""
    ids = list(dict.fromkeys(seeds))
    if asked.nothing or budget.neighbors <= 0 or budget.calls <= 0:
        return Walked(dict.fromkeys(ids[: max(budget.calls, 0)], ()), truncated=len(ids) > max(budget.calls, 0))
    values = {**asked.values, "ids": ids, "limit": budget.neighbors + 1, "calls": budget.calls}
    steps: dict[UUID, list[Neighbor]] = {}
    for _, seed, peer, *rest in conn.execute(_walk_sql(asked.legs, budget.hops), values).fetchall():
        told = steps.setdefault(seed, [])
        if peer is not None:
            told.append(_neighbor(seed, peer, *rest))
    return _cut(steps, ids, budget)


def _cut(steps: dict[UUID, list[Neighbor]], ids: Sequence[UUID], budget: Budget) -> Walked:
    """Take off the row that only told of more, and see whether everybody who was to be asked was."""
    full = any(len(told) > budget.neighbors for told in steps.values())
    kept = {seed: told[: budget.neighbors] for seed, told in steps.items()}
    unasked, frontier = False, list(dict.fromkeys(ids))
    reached = set(frontier)
    for _ in range(budget.hops):
        unasked |= any(each not in kept for each in frontier)
        frontier = [n.peer for each in frontier for n in kept.get(each, ()) if n.peer not in reached]
        reached.update(frontier)
    return Walked(kept, truncated=full or unasked)


def _walk_sql(legs: str, hops: int) -> str:
    parts = [_FIRST, _HOP.format(hop=1, legs=legs)]
    for hop in range(2, hops + 1):
        asked = " UNION ALL ".join(f"SELECT id FROM f{n}" for n in range(1, hop))
        parts += [_FRONTIER.format(hop=hop, before=hop - 1, asked=asked), _HOP.format(hop=hop, legs=legs)]
    rows = " UNION ALL ".join(_WALKED.format(hop=hop) for hop in range(1, hops + 1))
    return f"WITH {', '.join(parts)} SELECT hop, id, peer, source, target, label, incoming FROM ({rows}) AS w ORDER BY hop, place"


def _neighbor(seed: UUID, peer: UUID, source: UUID, target: UUID, label: str, incoming: int) -> Neighbor:
    direction = Direction.IN if incoming else Direction.OUT
    return Neighbor(seed, peer, label, direction, EdgeKey(source, target, label))
