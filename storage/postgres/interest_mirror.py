"""What the graph should hold of interests: points, their edges, and which of them changed since it was brought there.

Triggers note every change of a point or an edge in `interest_mirror`, in its transaction, whoever makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid5

from isotherm.pipeline.brain.drift import Digest, Held, Holding
from isotherm.pipeline.brain.graph_port import EdgeTombstone, GraphEdge, GraphNode, Tombstone
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.identity import Bank
from isotherm.storage.postgres.brain_drift import BUCKET, NUMBER
from isotherm.storage.postgres.brain_mirror import Projection
from isotherm.storage.postgres.pool import Connection

_GRAPHS: Final = UUID("6d2f6a3e-9f1b-5c58-8a55-3d6f0d6b7c11")

_STATE = "CASE WHEN d.gone THEN 'gone' ELSE 'here' END"
_NODE = f"d.source_id::text || ':' || d.revision || ':' || {_STATE}"
_EDGE = f"d.source_id::text || ':' || d.target_id::text || ':' || d.kind || ':' || d.revision || ':' || {_STATE}"
_BUCKET = BUCKET.format("d.source_id")
_OF_BANK = "FROM interest_mirror AS d WHERE d.bank_id = %(bank)s"

_DIGEST = f"""
SELECT {_BUCKET}, sum({NUMBER.format(_NODE)}) FILTER (WHERE d.kind = ''),
       sum({NUMBER.format(_EDGE)}) FILTER (WHERE d.kind <> '') {_OF_BANK} GROUP BY 1"""
_HELD = f"SELECT d.source_id, d.target_id, d.kind, d.revision, d.gone {_OF_BANK} AND {_BUCKET} = ANY(%(buckets)s)"

_CHANGED_BANKS = """
SELECT b.id FROM banks AS b
WHERE EXISTS (SELECT 1 FROM interest_mirror AS m WHERE m.bank_id = b.id AND m.mirrored < m.revision)
ORDER BY b.id LIMIT %(limit)s"""
_CHANGED = f"""
SELECT d.source_id, d.target_id, d.kind, d.revision {_OF_BANK} AND d.mirrored < d.revision LIMIT %(limit)s"""
_BROUGHT = """
UPDATE interest_mirror AS m SET mirrored = u.revision
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(kinds)s::text[], %(revisions)s::bigint[])
  AS u (source, target, kind, revision)
WHERE m.bank_id = %(bank)s AND m.source_id = u.source AND m.kind = u.kind COLLATE "C" AND m.target_id = u.target
  AND m.mirrored < u.revision"""

_NODES = """
SELECT m.source_id, m.revision, m.gone, p.kind, p.name, p.summary, p.keywords, p.status, p.importance, p.confidence,
       p.reliability, p.seen_count, p.first_seen_at, p.last_seen_at, p.updated_at, p.embedding, p.embedding_model
FROM interest_mirror AS m LEFT JOIN interest_points AS p ON p.id = m.source_id AND p.bank_id = m.bank_id
WHERE m.bank_id = %(bank)s AND m.kind = '' AND m.source_id = ANY(%(ids)s) ORDER BY m.source_id"""
_EDGES = """
SELECT m.source_id, m.target_id, m.kind, m.revision, m.gone, e.weight, e.created_at
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(kinds)s::text[]) AS u (source, target, kind)
JOIN interest_mirror AS m ON m.bank_id = %(bank)s AND m.source_id = u.source AND m.kind = u.kind COLLATE "C"
                         AND m.target_id = u.target
LEFT JOIN interest_edges AS e ON e.bank_id = m.bank_id AND e.source_id = m.source_id AND e.target_id = m.target_id
                             AND e.kind = m.kind
ORDER BY m.source_id, m.kind, m.target_id"""

# Each bank is taken by one check at a time, the one that waits longest first.
_TAKE = """
UPDATE interest_banks SET compared_at = now() WHERE bank_id = (
    SELECT b.bank_id FROM interest_banks AS b
    WHERE (b.compared_at IS NULL OR b.compared_at < now() - %(every)s)
      AND EXISTS (SELECT 1 FROM interest_mirror AS m WHERE m.bank_id = b.bank_id)
    ORDER BY b.compared_at NULLS FIRST, b.bank_id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING bank_id"""
_NOTE = """
UPDATE interest_banks SET compared_at = now(), differing_points = %(nodes)s, differing_edges = %(edges)s
WHERE bank_id = %(bank)s"""
_KNOWN = """
SELECT b.id, b.tenant, b.agent, i.compared_at, coalesce(i.differing_points, 0), coalesce(i.differing_edges, 0)
FROM banks AS b LEFT JOIN interest_banks AS i ON i.bank_id = b.id
WHERE EXISTS (SELECT 1 FROM interest_mirror AS m WHERE m.bank_id = b.id) ORDER BY b.id"""
_COUNTS = f"""
SELECT count(*) FILTER (WHERE d.kind = '' AND NOT d.gone), count(*) FILTER (WHERE d.kind <> '' AND NOT d.gone) {_OF_BANK}"""

_GONE_AND_DUE = """
SELECT count(*) FROM interest_mirror AS m WHERE m.bank_id = ANY(%(banks)s) AND m.gone AND m.mirrored < m.revision"""

_NUMBERS = ("importance", "confidence", "reliability", "sessions")


@dataclass(frozen=True, slots=True)
class Changed:
    """A point, its own target and of no kind, or an edge, and its revision when that was read."""

    key: EdgeKey
    revision: int

    @property
    def is_point(self) -> bool:
        """Whether it is a point."""
        return not self.key.label


@dataclass(frozen=True, slots=True)
class Place:
    """A bank with interests, and what the last comparison found different; compared_at is None before the first."""

    bank_id: int
    bank: Bank
    compared_at: datetime | None
    nodes: int
    edges: int

    @property
    def graph(self) -> UUID:
        """Its name in the graph."""
        return graph_of(self.bank_id)


def graph_of(bank_id: int) -> UUID:
    """The name of a bank's interests in the graph. Ids of banks are never used again, so neither is a name."""
    return uuid5(_GRAPHS, str(bank_id))


def gone_and_due(conn: Connection, bank_ids: Sequence[int]) -> int:
    """How many points and edges of banks are gone, and in the graph still."""
    row = conn.execute(_GONE_AND_DUE, {"banks": list(bank_ids)}).fetchone()
    return int(row[0]) if row else 0


def changed_banks(conn: Connection, limit: int) -> list[int]:
    """Banks of which something is not in the graph yet."""
    return [int(row[0]) for row in conn.execute(_CHANGED_BANKS, {"limit": limit}).fetchall()]


def changed(conn: Connection, bank_id: int, limit: int) -> list[Changed]:
    """What is not in the graph yet."""
    rows = conn.execute(_CHANGED, {"bank": bank_id, "limit": limit}).fetchall()
    return [Changed(EdgeKey(source, target, kind), int(revision)) for source, target, kind, revision in rows]


def brought(conn: Connection, bank_id: int, done: Sequence[Changed]) -> None:
    """Note that the graph has these revisions, or newer ones."""
    keys = [one.key for one in done]
    conn.execute(_BROUGHT, {"bank": bank_id, **_columns(keys), "revisions": [one.revision for one in done]})


def projection(conn: Connection, bank_id: int, ids: Sequence[UUID], edges: Sequence[EdgeKey]) -> Projection:
    """Points and edges as they are now."""
    nodes, gone_nodes = _nodes(conn, bank_id, ids) if ids else ((), ())
    found, gone_edges = _edges(conn, bank_id, edges) if edges else ((), ())
    return Projection(graph_of(bank_id), nodes, found, gone_nodes, gone_edges)


def _nodes(conn: Connection, bank_id: int, ids: Sequence[UUID]) -> tuple[tuple[GraphNode, ...], tuple[Tombstone, ...]]:
    nodes, gone = [], []
    for row in conn.execute(_NODES, {"bank": bank_id, "ids": list(ids)}):
        point, revision, is_gone, kind, name, summary, keywords, status, *numbers = row[:12]
        if is_gone or name is None:
            gone.append(Tombstone(point, revision))
            continue
        first, last, updated, vec, model = row[12:]
        properties = {"status": status, **dict(zip(_NUMBERS, numbers, strict=True)), "last_seen_at": last.isoformat()}
        nodes.append(
            GraphNode(
                point,
                revision,
                kind,
                name,
                summary=summary,
                text="\n".join([name, summary, *keywords]),
                properties=properties,
                created_at=first,
                updated_at=updated,
                vector=None if vec is None else tuple(vec.to_list()),
                vector_model=model or "",
            )
        )
    return tuple(nodes), tuple(gone)


def _edges(
    conn: Connection, bank_id: int, edges: Sequence[EdgeKey]
) -> tuple[tuple[GraphEdge, ...], tuple[EdgeTombstone, ...]]:
    found, gone = [], []
    for source, target, kind, revision, is_gone, weight, created in conn.execute(
        _EDGES, {"bank": bank_id, **_columns(edges)}
    ):
        key = EdgeKey(source, target, kind)
        if is_gone or weight is None:
            gone.append(EdgeTombstone(key, revision))
        else:
            found.append(GraphEdge(key, revision, {"weight": weight, "created_at": created.isoformat()}))
    return tuple(found), tuple(gone)


def _columns(keys: Sequence[EdgeKey]) -> dict[str, object]:
    return {
        "sources": [key.source for key in keys],
        "targets": [key.target for key in keys],
        "kinds": [key.label for key in keys],
    }


def digest(conn: Connection, bank_id: int) -> Digest:
    """What should be held, as one number for each bucket."""
    rows = conn.execute(_DIGEST, {"bank": bank_id}).fetchall()
    nodes = {int(bucket): int(n) for bucket, n, _ in rows if n is not None}
    return Digest(nodes, {int(bucket): int(n) for bucket, _, n in rows if n is not None})


def held(conn: Connection, bank_id: int, buckets: Sequence[int]) -> Holding:
    """What should be held of the points and edges in these buckets."""
    nodes: dict[UUID, Held] = {}
    edges: dict[EdgeKey, Held] = {}
    for source, target, kind, revision, gone in conn.execute(_HELD, {"bank": bank_id, "buckets": list(buckets)}):
        if kind:
            edges[EdgeKey(source, target, kind)] = Held(int(revision), gone)
        else:
            nodes[source] = Held(int(revision), gone)
    return Holding(nodes, edges)


def take(conn: Connection, every: timedelta) -> int | None:
    """A bank whose last comparison is longer ago than that; nobody else is given it for as long."""
    row = conn.execute(_TAKE, {"every": every}).fetchone()
    return None if row is None else int(row[0])


def note(conn: Connection, bank_id: int, nodes: int, edges: int) -> None:
    """Note what a comparison found different."""
    conn.execute(_NOTE, {"bank": bank_id, "nodes": nodes, "edges": edges})


def known(conn: Connection) -> list[Place]:
    """Banks with interests."""
    return [
        Place(int(bank_id), Bank(tenant, agent), compared, int(nodes), int(edges))
        for bank_id, tenant, agent, compared, nodes, edges in conn.execute(_KNOWN).fetchall()
    ]


def counts(conn: Connection, bank_id: int) -> tuple[int, int]:
    """How many points and edges the graph should hold."""
    row = conn.execute(_COUNTS, {"bank": bank_id}).fetchone() or (0, 0)
    return int(row[0]), int(row[1])
