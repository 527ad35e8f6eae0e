"""Searches of PostgreSQL's graph: objects by words and by vector, edges by the words of their notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from pgvector import HalfVector

from isotherm.pipeline import text
from isotherm.pipeline.brain import bm25
from isotherm.pipeline.brain.graph_port import EdgeHit, NodeHit
from isotherm.pipeline.brain.links import EdgeKey, fold_label
from isotherm.storage.postgres.pool import Connection

QUERY_TERMS: Final = 64

# BM25 as `isotherm.pipeline.brain.bm25` says, over what is live in the namespace (edges: of the label).
_SCORED = f"""
matched AS (
    SELECT {{key}}, d.length, t.term, t.tf, count(*) OVER (PARTITION BY t.term) AS having
    FROM {{table}} AS d CROSS JOIN LATERAL unnest(d.terms, d.counts) AS t (term, tf)
    WHERE {{where}} AND d.terms && %(terms)s::bigint[] AND t.term = ANY(%(terms)s)
), totals AS MATERIALIZED (
    SELECT count(*)::float8 AS n, greatest(sum(d.length), 1)::float8 / greatest(count(*), 1) AS average
    FROM {{table}} AS d WHERE {{where}} AND d.length > 0
), scored AS (
    SELECT {{names}}, sum(
        ln(1 + (greatest(o.n, m.having) - m.having + 0.5) / (m.having + 0.5)) * m.tf * {bm25.K1 + 1}::float8
        / (m.tf + {bm25.K1}::float8 * (1 - {bm25.B}::float8 + {bm25.B}::float8 * m.length / o.average))
        ORDER BY m.term) AS score
    FROM matched AS m, totals AS o GROUP BY {{names}}
)"""

_LIVE_NODES = "d.namespace = %(ns)s AND NOT d.deleted"
_TEXT = f"""
WITH {_SCORED.format(key="d.id, d.kind", names="id, kind", table="graph_nodes", where=_LIVE_NODES)}
SELECT id, score FROM scored WHERE %(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s)
ORDER BY score DESC, id LIMIT %(limit)s"""

_VECTOR = f"""
SELECT id, score FROM (
    SELECT d.id, 1 - (d.vector <=> %(vector)s::halfvec) AS score FROM graph_nodes AS d
    WHERE {_LIVE_NODES} AND d.vector_model = %(model)s AND vector_dims(d.vector) = %(dimension)s
      AND (%(kinds)s::text[] IS NULL OR d.kind = ANY(%(kinds)s))
    ORDER BY d.vector <=> %(vector)s::halfvec, d.id LIMIT %(limit)s) AS near
WHERE score > 0 ORDER BY score DESC, id"""

_LIVE_EDGES = """d.namespace = %(ns)s AND NOT d.deleted AND lower(d.label) = %(label)s
    AND NOT EXISTS (SELECT 1 FROM graph_nodes AS e WHERE e.namespace = %(ns)s AND e.id = d.source AND e.deleted)
    AND NOT EXISTS (SELECT 1 FROM graph_nodes AS e WHERE e.namespace = %(ns)s AND e.id = d.target AND e.deleted)"""
_EDGES = f"""
WITH {_SCORED.format(key="d.source, d.target, d.label", names="source, target, label", table="graph_edges",
                     where=_LIVE_EDGES)}
SELECT source, target, label, score FROM scored ORDER BY score DESC, source, target, label LIMIT %(limit)s"""  # fmt: skip


def by_text(conn: Connection, namespace: UUID, query: str, limit: int, kinds: Sequence[str] | None) -> list[NodeHit]:
    """Objects with words of the query."""
    terms = text.terms(query, QUERY_TERMS)
    if not terms or limit <= 0 or kinds == []:
        return []
    values = {"ns": namespace, "terms": terms, "kinds": None if kinds is None else list(kinds), "limit": limit}
    return [NodeHit(row[0], float(row[1])) for row in conn.execute(_TEXT, values).fetchall()]


def by_vector(
    conn: Connection, namespace: UUID, vector: Sequence[float], model: str, limit: int, kinds: Sequence[str] | None
) -> list[NodeHit]:
    """Objects whose vector is near: every one of the namespace is compared, so none is missed."""
    if limit <= 0 or kinds == [] or not any(vector):
        return []
    values = {
        "ns": namespace,
        "vector": HalfVector(list(vector)).to_text(),
        "model": model,
        "dimension": len(vector),
        "kinds": None if kinds is None else list(kinds),
        "limit": limit,
    }
    return [NodeHit(row[0], float(row[1])) for row in conn.execute(_VECTOR, values).fetchall()]


def by_note(conn: Connection, namespace: UUID, label: str, query: str, limit: int) -> list[EdgeHit]:
    """Edges whose note has words of the query."""
    terms = text.terms(query, QUERY_TERMS)
    if not terms or limit <= 0:
        return []
    values = {"ns": namespace, "terms": terms, "label": fold_label(label), "limit": limit}
    rows = conn.execute(_EDGES, values).fetchall()
    return [EdgeHit(EdgeKey(source, target, label), float(score)) for source, target, label, score in rows]
