"""What a graph should hold, summed up by bucket as `isotherm.pipeline.brain.drift` does, and when that was last compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from isotherm.pipeline.brain.drift import Digest, Held, Holding
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.pool import Connection

BUCKET: Final = "get_byte(decode(md5({}::text), 'hex'), 0)"
NUMBER: Final = "('x' || left(md5({}), 14))::bit(56)::bigint"

_STATE = "CASE WHEN d.deleted_at IS NULL THEN 'here' ELSE 'gone' END"
_NODE = f"d.id::text || ':' || d.projected || ':' || {_STATE}"
_EDGE = f"d.source::text || ':' || d.target::text || ':' || d.label || ':' || d.revision || ':' || {_STATE}"
_NODE_BUCKET, _EDGE_BUCKET = BUCKET.format("d.id"), BUCKET.format("d.source")

_DIGEST_NODES = f"""
SELECT {_NODE_BUCKET}, sum({NUMBER.format(_NODE)}) FROM brain_objects AS d
WHERE d.namespace_id = %(ns)s AND d.parent_id IS NULL GROUP BY 1"""
_DIGEST_EDGES = f"""
SELECT {_EDGE_BUCKET}, sum({NUMBER.format(_EDGE)}) FROM brain_edges AS d WHERE d.namespace_id = %(ns)s GROUP BY 1"""

_HELD_NODES = f"""
SELECT d.id, d.projected, d.deleted_at IS NOT NULL FROM brain_objects AS d
WHERE d.namespace_id = %(ns)s AND d.parent_id IS NULL AND {_NODE_BUCKET} = ANY(%(buckets)s)"""
_HELD_EDGES = f"""
SELECT d.source, d.target, d.label, d.revision, d.deleted_at IS NOT NULL FROM brain_edges AS d
WHERE d.namespace_id = %(ns)s AND {_EDGE_BUCKET} = ANY(%(buckets)s)"""

# Each namespace is taken by one check at a time, the one that waits longest first.
_TAKE = """
INSERT INTO brain_drift AS d (namespace_id, checked_at)
SELECT n.id, now() FROM namespaces AS n LEFT JOIN brain_drift AS b ON b.namespace_id = n.id
WHERE (b.checked_at IS NULL OR b.checked_at < now() - %(every)s)
  AND EXISTS (SELECT 1 FROM brain_objects AS o WHERE o.namespace_id = n.id)
ORDER BY b.checked_at NULLS FIRST, n.id LIMIT %(limit)s
ON CONFLICT (namespace_id) DO UPDATE SET checked_at = now() WHERE d.checked_at < now() - %(every)s
RETURNING namespace_id"""

_NOTE = """
INSERT INTO brain_drift (namespace_id, checked_at, nodes, edges) SELECT n.id, now(), %(nodes)s, %(edges)s
FROM namespaces AS n WHERE n.id = %(ns)s
ON CONFLICT (namespace_id) DO UPDATE SET checked_at = now(), nodes = excluded.nodes, edges = excluded.edges"""

_KNOWN = """
SELECT n.id, n.tenant, n.scope, n.agent, n.session, n.run, b.checked_at, coalesce(b.nodes, 0), coalesce(b.edges, 0)
FROM namespaces AS n LEFT JOIN brain_drift AS b ON b.namespace_id = n.id
WHERE EXISTS (SELECT 1 FROM brain_objects AS o WHERE o.namespace_id = n.id)
  AND (%(only)s::bigint IS NULL OR n.id = %(only)s)
ORDER BY n.id"""

_COUNTS = """
SELECT (SELECT count(*) FROM brain_objects WHERE namespace_id = %(ns)s AND parent_id IS NULL AND deleted_at IS NULL),
       (SELECT count(*) FROM brain_edges WHERE namespace_id = %(ns)s AND deleted_at IS NULL)"""


@dataclass(frozen=True, slots=True)
class Checked:
    """A namespace with objects, and what the last comparison found wrong; checked_at is None before the first."""

    namespace_id: int
    name: Namespace
    checked_at: datetime | None
    nodes: int
    edges: int

    @property
    def graph(self) -> UUID:
        """Its name in the graph."""
        return namespace_uuid(self.name)


def digest(conn: Connection, namespace_id: int) -> Digest:
    """What should be held, as one number for each bucket."""
    nodes = conn.execute(_DIGEST_NODES, {"ns": namespace_id}).fetchall()
    edges = conn.execute(_DIGEST_EDGES, {"ns": namespace_id}).fetchall()
    return Digest({int(b): int(n) for b, n in nodes}, {int(b): int(n) for b, n in edges})


def held(conn: Connection, namespace_id: int, buckets: Sequence[int]) -> Holding:
    """What should be held of the objects and edges in these buckets."""
    values = {"ns": namespace_id, "buckets": list(buckets)}
    nodes = {key: Held(revision, gone) for key, revision, gone in conn.execute(_HELD_NODES, values)}
    edges = {
        EdgeKey(source, target, label): Held(revision, gone)
        for source, target, label, revision, gone in conn.execute(_HELD_EDGES, values)
    }
    return Holding(nodes, edges)


def take(conn: Connection, every: timedelta, limit: int) -> list[int]:
    """Namespaces whose last comparison is longer ago than that; nobody else is given them for as long."""
    return [int(row[0]) for row in conn.execute(_TAKE, {"every": every, "limit": limit}).fetchall()]


def note(conn: Connection, namespace_id: int, nodes: int, edges: int) -> None:
    """Note what a comparison found wrong; without effect when the namespace is gone."""
    conn.execute(_NOTE, {"ns": namespace_id, "nodes": nodes, "edges": edges})


def known(conn: Connection, only: int | None = None) -> list[Checked]:
    """Namespaces with objects. Args: only: this one."""
    return [
        Checked(int(row[0]), Namespace(**dict(zip(_PARTS, row[1:6], strict=True))), *row[6:])
        for row in conn.execute(_KNOWN, {"only": only}).fetchall()
    ]


def counts(conn: Connection, namespace_id: int) -> tuple[int, int]:
    """How many objects and edges the graph should hold."""
    row = conn.execute(_COUNTS, {"ns": namespace_id}).fetchone() or (0, 0)
    return int(row[0]), int(row[1])


_PARTS = ("tenant", "scope", "agent", "session", "run")
