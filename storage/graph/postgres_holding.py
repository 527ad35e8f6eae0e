"""What PostgreSQL's graph holds, to be compared with its truth."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from isotherm.pipeline.brain.drift import Digest, Held, Holding
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.storage.postgres.brain_drift import BUCKET, NUMBER
from isotherm.storage.postgres.pool import Connection

_STATE = "CASE WHEN d.deleted THEN 'gone' ELSE 'here' END"
_NODE = f"d.id::text || ':' || d.revision || ':' || {_STATE}"
_EDGE = f"d.source::text || ':' || d.target::text || ':' || d.label || ':' || d.revision || ':' || {_STATE}"
_NODE_BUCKET, _EDGE_BUCKET = BUCKET.format("d.id"), BUCKET.format("d.source")

_DIGEST_NODES = f"""
SELECT {_NODE_BUCKET}, sum({NUMBER.format(_NODE)}) FROM graph_nodes AS d WHERE d.namespace = %(ns)s GROUP BY 1"""
_DIGEST_EDGES = f"""
SELECT {_EDGE_BUCKET}, sum({NUMBER.format(_EDGE)}) FROM graph_edges AS d WHERE d.namespace = %(ns)s GROUP BY 1"""

_HELD_NODES = f"""
SELECT d.id, d.revision, d.deleted FROM graph_nodes AS d
WHERE d.namespace = %(ns)s AND {_NODE_BUCKET} = ANY(%(buckets)s)"""
_HELD_EDGES = f"""
SELECT d.source, d.target, d.label, d.revision, d.deleted FROM graph_edges AS d
WHERE d.namespace = %(ns)s AND {_EDGE_BUCKET} = ANY(%(buckets)s)"""

_DISCARD_NODES = "DELETE FROM graph_nodes WHERE namespace = %(ns)s AND id = ANY(%(ids)s)"
_DISCARD_EDGES = """
DELETE FROM graph_edges AS e
USING unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(labels)s::text[]) AS g (source, target, label)
WHERE e.namespace = %(ns)s AND e.source = g.source AND e.target = g.target AND e.label = g.label COLLATE "C\""""

# One look into an index for each namespace, however many rows it has.
_NEXT = """(SELECT n FROM (
        (SELECT namespace AS n FROM graph_nodes {after} ORDER BY namespace LIMIT 1) UNION ALL
        (SELECT namespace FROM graph_edges {after} ORDER BY namespace LIMIT 1)) AS next ORDER BY n LIMIT 1)"""
_NAMESPACES = f"""
WITH RECURSIVE found AS (
    SELECT {_NEXT.format(after="")} AS namespace
    UNION ALL
    SELECT {_NEXT.format(after="WHERE namespace > found.namespace")} FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL"""


def digest(conn: Connection, namespace: UUID) -> Digest:
    """What is held, as one number for each bucket."""
    nodes = conn.execute(_DIGEST_NODES, {"ns": namespace}).fetchall()
    edges = conn.execute(_DIGEST_EDGES, {"ns": namespace}).fetchall()
    return Digest({int(b): int(n) for b, n in nodes}, {int(b): int(n) for b, n in edges})


def held(conn: Connection, namespace: UUID, buckets: Sequence[int]) -> Holding:
    """What is held of the objects and edges in these buckets."""
    values = {"ns": namespace, "buckets": list(buckets)}
    nodes = {key: Held(revision, gone) for key, revision, gone in conn.execute(_HELD_NODES, values)}
    edges = {
        EdgeKey(source, target, label): Held(revision, gone)
        for source, target, label, revision, gone in conn.execute(_HELD_EDGES, values)
    }
    return Holding(nodes, edges)


def discard(conn: Connection, namespace: UUID, nodes: Sequence[UUID], edges: Sequence[EdgeKey]) -> None:
    """Forget objects and edges without a trace."""
    if nodes:
        conn.execute(_DISCARD_NODES, {"ns": namespace, "ids": list(nodes)})
    if edges:
        values = {
            "ns": namespace,
            "sources": [key.source for key in edges],
            "targets": [key.target for key in edges],
            "labels": [key.label for key in edges],
        }
        conn.execute(_DISCARD_EDGES, values)


def namespaces(conn: Connection) -> list[UUID]:
    """Every namespace of which something is held."""
    return [row[0] for row in conn.execute(_NAMESPACES).fetchall()]
