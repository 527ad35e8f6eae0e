"""What the graph should hold of objects and edges, read from their newest revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from isotherm.pipeline.brain.graph_port import EdgeTombstone, GraphEdge, GraphNode, Tombstone
from isotherm.pipeline.brain.index_text import entity_index_text
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.pool import Connection

_NAMESPACE = "SELECT tenant, scope, agent, session, run FROM namespaces WHERE id = %(ns)s"

_NODES = """
SELECT id, projected, kind, title, summary, left(content, %(chars)s), properties, created_at, updated_at, vector,
       vector_model, deleted_at IS NOT NULL
FROM brain_objects WHERE namespace_id = %(ns)s AND id = ANY(%(ids)s) AND parent_id IS NULL ORDER BY id"""

_EDGES = """
SELECT source, target, label, revision, note, status, role, confidence, evidence_id::text, mentions,
       created_at, updated_at, deleted_at IS NOT NULL
FROM brain_edges WHERE namespace_id = %(ns)s AND key = ANY(%(keys)s) ORDER BY source, target, label"""

_KEYS = """
SELECT e.key FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(labels)s::text[]) AS g (source, target, label)
JOIN brain_edges AS e ON e.source = g.source AND e.target = g.target AND e.label = g.label COLLATE "C"
WHERE e.namespace_id = %(ns)s"""

_FIRST_CLASS = """
SELECT id FROM brain_objects WHERE namespace_id = %(ns)s AND key = ANY(%(keys)s) AND parent_id IS NULL ORDER BY id"""

# How much of an object's text the graph can be searched by.
CHARS = 2_000

_PROPERTIES = ("note", "status", "role", "confidence", "evidence_id", "mentions")


@dataclass(frozen=True, slots=True)
class Projection:
    """What to write to the graph, and what to take out of it."""

    namespace: UUID
    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    gone_nodes: tuple[Tombstone, ...] = ()
    gone_edges: tuple[EdgeTombstone, ...] = ()


def graph_name(conn: Connection, namespace_id: int) -> UUID | None:
    """What a namespace is called in the graph; None when it is gone."""
    row = conn.execute(_NAMESPACE, {"ns": namespace_id}).fetchone()
    if row is None:
        return None
    tenant, scope, agent, session, run = row
    return namespace_uuid(Namespace(tenant=tenant, scope=scope, agent=agent, session=session, run=run))


def projection(
    conn: Connection,
    namespace_id: int,
    ids: Sequence[UUID],
    edge_keys: Sequence[int] = (),
    edges: Sequence[EdgeKey] = (),
) -> Projection | None:
    """Read the newest revisions of objects and edges of a namespace; None when the namespace is gone.

    Args: edge_keys: row keys of edges; edges: more of them, by what identifies them.
    """
    name = graph_name(conn, namespace_id)
    if name is None:
        return None
    nodes, gone_nodes = _nodes(conn, namespace_id, ids) if ids else ((), ())
    row_keys = [*edge_keys, *(_keys(conn, namespace_id, edges) if edges else ())]
    found, gone_edges = _edges(conn, namespace_id, row_keys) if row_keys else ((), ())
    return Projection(name, nodes, found, gone_nodes, gone_edges)


def _nodes(
    conn: Connection, namespace_id: int, ids: Sequence[UUID]
) -> tuple[tuple[GraphNode, ...], tuple[Tombstone, ...]]:
    nodes, gone = [], []
    values = {"ns": namespace_id, "ids": list(ids), "chars": CHARS}
    for row in conn.execute(_NODES, values):
        key, revision, kind, title, summary, content, properties, created, updated, vector, model, is_gone = row
        if is_gone:
            gone.append(Tombstone(key, revision))
            continue
        nodes.append(
            GraphNode(
                key,
                revision,
                kind,
                title,
                summary=summary,
                text=entity_index_text(title, summary, content, properties),
                properties=properties,
                created_at=created,
                updated_at=updated,
                vector=None if vector is None else tuple(vector.to_list()),
                vector_model=model or "",
            )
        )
    return tuple(nodes), tuple(gone)


def first_class(conn: Connection, namespace_id: int, keys: Sequence[int]) -> list[UUID]:
    """Ids of those of the rows that are no parts."""
    rows = conn.execute(_FIRST_CLASS, {"ns": namespace_id, "keys": list(keys)}).fetchall()
    return [row[0] for row in rows]


def _keys(conn: Connection, namespace_id: int, edges: Sequence[EdgeKey]) -> list[int]:
    values = {
        "ns": namespace_id,
        "sources": [key.source for key in edges],
        "targets": [key.target for key in edges],
        "labels": [key.label for key in edges],
    }
    return [int(row[0]) for row in conn.execute(_KEYS, values).fetchall()]


def _edges(
    conn: Connection, namespace_id: int, keys: Sequence[int]
) -> tuple[tuple[GraphEdge, ...], tuple[EdgeTombstone, ...]]:
    edges, gone = [], []
    values = {"ns": namespace_id, "keys": list(keys)}
    for source, target, label, revision, *said, created, updated, is_gone in conn.execute(_EDGES, values):
        key = EdgeKey(source, target, label)
        if is_gone:
            gone.append(EdgeTombstone(key, revision))
        else:
            properties = {n: v for n, v in zip(_PROPERTIES, said, strict=True) if v not in {None, ""}}
            times = {"created_at": created.isoformat(), "updated_at": updated.isoformat()}
            edges.append(GraphEdge(key, revision, properties | times))
    return tuple(edges), tuple(gone)
