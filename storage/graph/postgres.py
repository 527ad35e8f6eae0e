"""The graph in tables of PostgreSQL: nothing more to run, and the default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from isotherm.pipeline.brain.graph_port import (
    Counts,
    Direction,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    Neighbor,
    Tombstone,
)
from isotherm.pipeline.brain.links import EdgeKey, fold_label
from isotherm.storage.postgres.pool import Connection, connection

# Rows come in one order, so that two writers wait for each other instead of deadlocking.
_NODES = """
INSERT INTO graph_nodes AS n (namespace, id, revision, kind, title, deleted)
SELECT %(ns)s, g.id, g.revision, g.kind, g.title, g.deleted
FROM unnest(%(ids)s::uuid[], %(revisions)s::bigint[], %(kinds)s::text[], %(titles)s::text[], %(gone)s::boolean[])
    AS g (id, revision, kind, title, deleted) ORDER BY g.id
ON CONFLICT (namespace, id) DO UPDATE
SET revision = excluded.revision, kind = excluded.kind, title = excluded.title, deleted = excluded.deleted
WHERE n.revision < excluded.revision"""

_EDGES = """
INSERT INTO graph_edges AS e (namespace, source, target, label, revision, properties, deleted)
SELECT %(ns)s, g.source, g.target, g.label, g.revision, g.properties, g.deleted
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(labels)s::text[], %(revisions)s::bigint[], %(said)s::jsonb[],
            %(gone)s::boolean[]) AS g (source, target, label, revision, properties, deleted)
ORDER BY g.source, g.target, g.label COLLATE "C"
ON CONFLICT (namespace, source, target, label) DO UPDATE
SET revision = excluded.revision, properties = excluded.properties, deleted = excluded.deleted
WHERE e.revision < excluded.revision"""

_OUT = """
SELECT e.target AS peer, e.source, e.target, e.label, 0 AS incoming, {place} AS place FROM graph_edges AS e
WHERE e.namespace = %(ns)s AND e.source = s.id AND NOT e.deleted {labels}"""
_IN = """
SELECT e.source AS peer, e.source, e.target, e.label, 1 AS incoming, {place} AS place FROM graph_edges AS e
WHERE e.namespace = %(ns)s AND e.target = s.id AND NOT e.deleted {labels}"""

_NEIGHBORS = """
SELECT s.id, n.peer, n.source, n.target, n.label, n.incoming
FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS s (id, place)
CROSS JOIN LATERAL (
    SELECT * FROM ({legs}) AS e
    WHERE NOT EXISTS (SELECT 1 FROM graph_nodes AS d WHERE d.namespace = %(ns)s AND d.id = e.peer AND d.deleted)
    ORDER BY e.place, lower(e.label), e.incoming, e.peer, e.label LIMIT %(limit)s) AS n
WHERE NOT EXISTS (SELECT 1 FROM graph_nodes AS d WHERE d.namespace = %(ns)s AND d.id = s.id AND d.deleted)
ORDER BY s.place, n.place, lower(n.label), n.incoming, n.peer, n.label"""

_LABELS = "AND lower(e.label) = ANY(%(labels)s)"
_PLACE = "array_position(%(labels)s::text[], lower(e.label))"

_REVISIONS = "SELECT id, revision FROM graph_nodes WHERE namespace = %(ns)s AND NOT deleted"


class PostgresGraph:
    """A `GraphPort` over this process's pool; every call is a transaction of its own."""

    def upsert(self, namespace: UUID, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Counts:
        """Write nodes and edges that are newer than what is there."""
        with connection() as conn:
            return _write(conn, namespace, nodes, edges)

    def remove(self, namespace: UUID, nodes: Sequence[Tombstone], edges: Sequence[EdgeTombstone] = ()) -> Counts:
        """Take out nodes and edges, unless something newer is there."""
        with connection() as conn:
            return _write(conn, namespace, nodes, edges)

    def neighbors(
        self,
        namespace: UUID,
        ids: Sequence[UUID],
        labels: Sequence[str] | None = None,
        direction: Direction = Direction.BOTH,
        limit: int = 50,
    ) -> list[Neighbor]:
        """One step from each of the objects, in one query."""
        wanted = None if labels is None else list(dict.fromkeys(map(fold_label, labels)))
        if wanted == [] or limit <= 0:
            return []
        parts = {"labels": "", "place": "0"} if wanted is None else {"labels": _LABELS, "place": _PLACE}
        legs = {Direction.OUT: [_OUT], Direction.IN: [_IN], Direction.BOTH: [_OUT, _IN]}[direction]
        sql = _NEIGHBORS.format(legs=" UNION ALL ".join(legs).format(**parts))
        values = {"ns": namespace, "ids": list(dict.fromkeys(ids)), "labels": wanted, "limit": limit}
        with connection() as conn:
            rows = conn.execute(sql, values).fetchall()
        return [_neighbor(*row) for row in rows]

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that is not gone."""
        with connection() as conn:
            return dict(conn.execute(_REVISIONS, {"ns": namespace}).fetchall())

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace."""
        with connection() as conn:
            conn.execute("DELETE FROM graph_edges WHERE namespace = %(ns)s", {"ns": namespace})
            conn.execute("DELETE FROM graph_nodes WHERE namespace = %(ns)s", {"ns": namespace})


def _neighbor(seed: UUID, peer: UUID, source: UUID, target: UUID, label: str, incoming: int) -> Neighbor:
    direction = Direction.IN if incoming else Direction.OUT
    return Neighbor(seed, peer, label, direction, EdgeKey(source, target, label))


def _write(
    conn: Connection,
    namespace: UUID,
    nodes: Sequence[GraphNode | Tombstone],
    edges: Sequence[GraphEdge | EdgeTombstone],
) -> Counts:
    changed_nodes = conn.execute(_NODES, _node_values(namespace, nodes)).rowcount if nodes else 0
    changed_edges = conn.execute(_EDGES, _edge_values(namespace, edges)).rowcount if edges else 0
    return Counts(changed_nodes, changed_edges)


def _node_values(namespace: UUID, nodes: Sequence[GraphNode | Tombstone]) -> dict[str, Any]:
    # One statement may touch a row once, so of two with one id the newest is kept here.
    newest = {node.id: node for node in sorted(nodes, key=lambda n: n.revision)}.values()
    return {
        "ns": namespace,
        "ids": [node.id for node in newest],
        "revisions": [node.revision for node in newest],
        "kinds": [node.kind if isinstance(node, GraphNode) else "" for node in newest],
        "titles": [node.title if isinstance(node, GraphNode) else "" for node in newest],
        "gone": [isinstance(node, Tombstone) for node in newest],
    }


def _edge_values(namespace: UUID, edges: Sequence[GraphEdge | EdgeTombstone]) -> dict[str, Any]:
    newest = {edge.key: edge for edge in sorted(edges, key=lambda e: e.revision)}.values()
    return {
        "ns": namespace,
        "sources": [edge.key.source for edge in newest],
        "targets": [edge.key.target for edge in newest],
        "labels": [edge.key.label for edge in newest],
        "revisions": [edge.revision for edge in newest],
        "said": [Jsonb(dict(edge.properties) if isinstance(edge, GraphEdge) else {}) for edge in newest],
        "gone": [isinstance(edge, EdgeTombstone) for edge in newest],
    }
