"""The graph in tables of PostgreSQL: nothing more to run, and the default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pgvector import HalfVector
from psycopg.types.json import Jsonb

from isotherm.pipeline import text
from isotherm.pipeline.brain.drift import Digest, Holding
from isotherm.pipeline.brain.graph_port import (
    Budget,
    Counts,
    Direction,
    EdgeHit,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    Neighbor,
    NodeHit,
    Tombstone,
    Walked,
)
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.storage.graph import postgres_beside, postgres_holding, postgres_search, postgres_walk
from isotherm.storage.graph.postgres_walk import Asked
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import graph_of, system

# Rows come in one order, so that two writers wait for each other instead of deadlocking.
_NODES = """
INSERT INTO graph_nodes AS n (
    namespace, id, revision, kind, title, terms, counts, length, vector, vector_model, deleted)
SELECT %(ns)s, g.id, g.revision, g.kind, g.title, g.terms::bigint[], g.counts::integer[], g.length, g.vector, g.model, g.deleted
FROM unnest(%(ids)s::uuid[], %(revisions)s::bigint[], %(kinds)s::text[], %(titles)s::text[], %(terms)s::text[],
            %(counts)s::text[], %(lengths)s::integer[], %(vectors)s::halfvec[], %(models)s::text[], %(gone)s::boolean[])
    AS g (id, revision, kind, title, terms, counts, length, vector, model, deleted) ORDER BY g.id
ON CONFLICT (namespace, id) DO UPDATE
SET revision = excluded.revision, kind = excluded.kind, title = excluded.title, terms = excluded.terms,
    counts = excluded.counts, length = excluded.length, vector = excluded.vector, vector_model = excluded.vector_model,
    deleted = excluded.deleted
WHERE n.revision < excluded.revision"""

_EDGES = """
INSERT INTO graph_edges AS e (namespace, source, target, label, revision, properties, terms, counts, length, deleted)
SELECT %(ns)s, g.source, g.target, g.label, g.revision, g.properties, g.terms::bigint[], g.counts::integer[], g.length, g.deleted
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(labels)s::text[], %(revisions)s::bigint[], %(said)s::jsonb[],
            %(terms)s::text[], %(counts)s::text[], %(lengths)s::integer[], %(gone)s::boolean[])
    AS g (source, target, label, revision, properties, terms, counts, length, deleted)
ORDER BY g.source, g.target, g.label COLLATE "C"
ON CONFLICT (namespace, source, target, label) DO UPDATE
SET revision = excluded.revision, properties = excluded.properties, terms = excluded.terms, counts = excluded.counts,
    length = excluded.length, deleted = excluded.deleted
WHERE e.revision < excluded.revision"""

_REVISIONS = "SELECT id, revision FROM graph_nodes WHERE namespace = %(ns)s AND NOT deleted"


class PostgresGraph:
    """A `GraphPort` over this process's pool; every call is a transaction of its own."""

    own_search = False
    object_search = True
    edge_search = True

    def upsert(self, namespace: UUID, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Counts:
        """Write nodes and edges that are newer than what is there."""
        with graph_of(namespace), connection() as conn:
            return _write(conn, namespace, nodes, edges)

    def remove(self, namespace: UUID, nodes: Sequence[Tombstone], edges: Sequence[EdgeTombstone] = ()) -> Counts:
        """Take out nodes and edges, unless something newer is there."""
        with graph_of(namespace), connection() as conn:
            return _write(conn, namespace, nodes, edges)

    def take(self, namespace: UUID, namespace_id: int, ids: Sequence[UUID]) -> tuple[Counts, list[UUID]]:
        """Write the nodes of objects from the rows beside the graph.

        Args: namespace_id: of the rows. Returns: what changed, and the objects that must come by `upsert`.
        """
        with graph_of(namespace), connection() as conn:
            written, left = postgres_beside.take(conn, namespace, namespace_id, ids)
        return Counts(written, 0), left

    def neighbors(
        self,
        namespace: UUID,
        ids: Sequence[UUID],
        labels: Sequence[str] | None = None,
        direction: Direction = Direction.BOTH,
        limit: int = 50,
    ) -> list[Neighbor]:
        """One step from each of the objects, in one query."""
        with graph_of(namespace), connection() as conn:
            return postgres_walk.neighbors(conn, Asked(namespace, labels, direction), ids, limit)

    def walk(
        self,
        namespace: UUID,
        seeds: Sequence[UUID],
        labels: Sequence[str] | None,
        direction: Direction,
        budget: Budget,
    ) -> Walked:
        """Steps from the seeds, and from where they lead, in one query however many hops it takes."""
        with graph_of(namespace), connection() as conn:
            return postgres_walk.walk(conn, Asked(namespace, labels, direction), seeds, budget)

    def search_text(self, namespace: UUID, query: str, limit: int, kinds: Sequence[str] | None = None) -> list[NodeHit]:
        """Objects with words of the query."""
        with graph_of(namespace), connection() as conn:
            return postgres_search.by_text(conn, namespace, query, limit, kinds)

    def search_vector(
        self, namespace: UUID, vector: Sequence[float], model: str, limit: int, kinds: Sequence[str] | None = None
    ) -> list[NodeHit]:
        """Objects whose vector of the same model is near."""
        with graph_of(namespace), connection() as conn:
            return postgres_search.by_vector(conn, namespace, vector, model, limit, kinds)

    def search_edges(self, namespace: UUID, label: str, query: str, limit: int) -> list[EdgeHit]:
        """Edges of a label whose note has words of the query."""
        with graph_of(namespace), connection() as conn:
            return postgres_search.by_note(conn, namespace, label, query, limit)

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that is not gone."""
        with graph_of(namespace), connection() as conn:
            return dict(conn.execute(_REVISIONS, {"ns": namespace}).fetchall())

    def digest(self, namespace: UUID) -> Digest:
        """What is held, as one number for each bucket."""
        with graph_of(namespace), connection() as conn:
            return postgres_holding.digest(conn, namespace)

    def held(self, namespace: UUID, buckets: Sequence[int]) -> Holding:
        """What is held of the objects and edges in these buckets."""
        with graph_of(namespace), connection() as conn:
            return postgres_holding.held(conn, namespace, buckets)

    def discard(self, namespace: UUID, nodes: Sequence[UUID], edges: Sequence[EdgeKey]) -> None:
        """Forget objects and edges without a trace."""
        with graph_of(namespace), connection() as conn:
            postgres_holding.discard(conn, namespace, nodes, edges)

    def namespaces(self) -> list[UUID]:
        """Every namespace of which something is held."""
        with system(), connection() as conn:
            return postgres_holding.namespaces(conn)

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace."""
        with graph_of(namespace), connection() as conn:
            conn.execute("DELETE FROM graph_edges WHERE namespace = %(ns)s", {"ns": namespace})
            conn.execute("DELETE FROM graph_nodes WHERE namespace = %(ns)s", {"ns": namespace})


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
    live = [node if isinstance(node, GraphNode) else GraphNode(node.id, node.revision) for node in newest]
    return {
        "ns": namespace,
        "ids": [node.id for node in live],
        "revisions": [node.revision for node in live],
        "kinds": [node.kind for node in live],
        "titles": [node.title for node in live],
        **_words([node.text for node in live]),
        "vectors": [None if node.vector is None else HalfVector(list(node.vector)).to_text() for node in live],
        "models": [None if node.vector is None else node.vector_model for node in live],
        "gone": [isinstance(node, Tombstone) for node in newest],
    }


def _edge_values(namespace: UUID, edges: Sequence[GraphEdge | EdgeTombstone]) -> dict[str, Any]:
    newest = {edge.key: edge for edge in sorted(edges, key=lambda e: e.revision)}.values()
    said = [dict(edge.properties) if isinstance(edge, GraphEdge) else {} for edge in newest]
    return {
        "ns": namespace,
        "sources": [edge.key.source for edge in newest],
        "targets": [edge.key.target for edge in newest],
        "labels": [edge.key.label for edge in newest],
        "revisions": [edge.revision for edge in newest],
        "said": [Jsonb(properties) for properties in said],
        **_words([str(properties.get("note", "")) for properties in said]),
        "gone": [isinstance(edge, EdgeTombstone) for edge in newest],
    }


def _words(texts: Sequence[str]) -> dict[str, Any]:
    """Terms and counts as literals of arrays: rows of different lengths fit into no array of arrays."""
    counts = [text.term_counts(said) for said in texts]
    return {
        "terms": [f"{{{','.join(map(str, sorted(found)))}}}" for found in counts],
        "counts": [f"{{{','.join(str(found[term]) for term in sorted(found))}}}" for found in counts],
        "lengths": [sum(found.values()) for found in counts],
    }
