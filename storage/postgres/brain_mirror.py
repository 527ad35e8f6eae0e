"""What the graph should hold of objects and edges, read from their newest revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from isotherm.pipeline.brain.graph_port import EdgeTombstone, GraphEdge, GraphNode, Tombstone
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.pool import Connection

_NAMESPACE = "SELECT tenant, scope, agent, session, run FROM namespaces WHERE id = %(ns)s"

_NODES = """
SELECT id, revision, kind, title, deleted_at IS NOT NULL FROM brain_objects
WHERE namespace_id = %(ns)s AND id = ANY(%(ids)s) AND parent_id IS NULL ORDER BY id"""

_EDGES = """
SELECT source, target, label, revision, note, status, role, confidence, evidence_id::text, deleted_at IS NOT NULL
FROM brain_edges WHERE namespace_id = %(ns)s AND key = ANY(%(keys)s) ORDER BY source, target, label"""

_PROPERTIES = ("note", "status", "role", "confidence", "evidence_id")


@dataclass(frozen=True, slots=True)
class Projection:
    """What to write to the graph, and what to take out of it."""

    namespace: UUID
    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    gone_nodes: tuple[Tombstone, ...] = ()
    gone_edges: tuple[EdgeTombstone, ...] = ()


def projection(
    conn: Connection, namespace_id: int, ids: Sequence[UUID], edge_keys: Sequence[int] = ()
) -> Projection | None:
    """Read the newest revisions of objects and edges of a namespace; None when the namespace is gone.

    Args: edge_keys: row keys of edges.
    """
    row = conn.execute(_NAMESPACE, {"ns": namespace_id}).fetchone()
    if row is None:
        return None
    tenant, scope, agent, session, run = row
    name = Namespace(tenant=tenant, scope=scope, agent=agent, session=session, run=run)
    nodes, gone_nodes = [], []
    for object_id, revision, kind, title, gone in conn.execute(_NODES, {"ns": namespace_id, "ids": list(ids)}):
        if gone:
            gone_nodes.append(Tombstone(object_id, revision))
        else:
            nodes.append(GraphNode(object_id, revision, kind, title))
    edges, gone_edges = _edges(conn, namespace_id, edge_keys)
    return Projection(namespace_uuid(name), tuple(nodes), edges, tuple(gone_nodes), gone_edges)


def _edges(
    conn: Connection, namespace_id: int, keys: Sequence[int]
) -> tuple[tuple[GraphEdge, ...], tuple[EdgeTombstone, ...]]:
    edges, gone = [], []
    rows = conn.execute(_EDGES, {"ns": namespace_id, "keys": list(keys)}) if keys else ()
    for source, target, label, revision, *said, is_gone in rows:
        key = EdgeKey(source, target, label)
        if is_gone:
            gone.append(EdgeTombstone(key, revision))
        else:
            properties = {n: v for n, v in zip(_PROPERTIES, said, strict=True) if v not in {None, ""}}
            edges.append(GraphEdge(key, revision, properties))
    return tuple(edges), tuple(gone)
