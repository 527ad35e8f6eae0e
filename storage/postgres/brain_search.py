"""The legs of a search, each under its namespace and filters: BM25 in one statement, and vectors exact or by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from isotherm.pipeline.brain.bm25 import K1, B
from isotherm.pipeline.brain.filters import Filters
from isotherm.storage.postgres.brain_filters import allowed as _allowed
from isotherm.storage.postgres.pool import Connection

# Postings of the rarest words that propose candidates; all words are scored for those.
CANDIDATE_POSTINGS = 5_000
# Of the rarest word alone, when it is more frequent than that.
WORD_POSTINGS = 20_000
# Up to this many rows every vector is compared, and every word of every row counts.
EXACT = 20_000
# And up to this many when the index has come to its limit and not to enough of what is allowed.
EXACT_AT_LAST = 200_000
# And up to this many when they are less than half of all rows: what the index shows of them first is not what is nearest.
EXACT_AMONG_OTHERS = 100_000
# Below this many folded documents the statistics of words are counted from the index instead.
COUNTED = 2_000
# Unfolded changes that a search adds to the statistics itself.
_UNFOLDED = 1_000
# Lengths of vectors that have an HNSW index (migration 0004).
INDEXED = frozenset({384, 768, 1024, 1536})

_SIZE = """
WITH folded AS (SELECT coalesce(max(documents), 0) AS documents, coalesce(max(length), 0) AS length
                FROM brain_stats WHERE namespace_id = %(ns)s),
unfolded AS (SELECT coalesce(sum(d.documents), 0) AS documents, coalesce(sum(d.length), 0) AS length FROM (
    SELECT documents, length FROM brain_stats_deltas WHERE namespace_id = %(ns)s LIMIT %(unfolded)s) AS d),
size AS MATERIALIZED (
    SELECT folded.documents AS folded, greatest(folded.documents + unfolded.documents, 1)::float8 AS n,
           greatest(folded.length + unfolded.length, 1)::float8
               / greatest(folded.documents + unfolded.documents, 1) AS average
    FROM folded, unfolded)"""

# How many documents have each word: as folded, or counted where the folded numbers are small or missing.
_WORDS = """
counts AS (
    SELECT q.term, CASE WHEN size.folded >= %(counted)s AND t.documents > 0 THEN t.documents ELSE (
        SELECT count(*) FROM (SELECT 1 FROM brain_postings AS p WHERE p.namespace_id = %(ns)s AND p.term = q.term
                              LIMIT %(per_word)s + 1) AS bounded) END AS df
    FROM size CROSS JOIN unnest(%(terms)s::bigint[]) AS q (term)
    LEFT JOIN brain_terms AS t ON t.namespace_id = %(ns)s AND t.term = q.term
), words AS MATERIALIZED (
    SELECT c.term, c.df, ln(1 + (greatest(size.n, c.df) - c.df + 0.5) / (c.df + 0.5)) AS idf,
           row_number() OVER rarest = 1 OR sum(c.df) OVER rarest <= %(postings)s AS proposes
    FROM counts AS c, size WHERE c.df > 0 WINDOW rarest AS (ORDER BY c.df, c.term)
)"""

# Postings of the words that propose, those of the other words for what was proposed, and all of them for what another
# leg has proposed. The limit of one has them looked up one by one: a frequent word must not be read whole.
_HITS = """
proposed AS MATERIALIZED (
    SELECT w.idf, p.object_key, p.tf, p.length FROM words AS w CROSS JOIN LATERAL (
        SELECT p.object_key, p.tf, p.length FROM brain_postings AS p WHERE p.namespace_id = %(ns)s AND p.term = w.term
        ORDER BY p.object_key DESC LIMIT %(per_word)s) AS p {filter}
    WHERE w.proposes
), candidates AS MATERIALIZED (
    SELECT DISTINCT object_key, true AS proposed FROM proposed
    UNION ALL
    SELECT a.key, false FROM unnest(%(also)s::bigint[]) AS a (key)
    WHERE NOT EXISTS (SELECT 1 FROM proposed AS p WHERE p.object_key = a.key)
), hits AS (
    SELECT * FROM proposed
    UNION ALL
    SELECT w.idf, p.object_key, p.tf, p.length FROM words AS w CROSS JOIN candidates AS c CROSS JOIN LATERAL (
        SELECT p.object_key, p.tf, p.length FROM brain_postings AS p
        WHERE p.namespace_id = %(ns)s AND p.term = w.term AND p.object_key = c.object_key LIMIT 1) AS p
    WHERE NOT (w.proposes AND c.proposed)
)"""

# Every word of every row that is allowed, for few of them.
_HITS_ALLOWED = """
hits AS (
    SELECT w.idf, p.object_key, p.tf, p.length FROM words AS w
    CROSS JOIN (SELECT r.key FROM brain_objects AS r WHERE {allowed}) AS a
    CROSS JOIN LATERAL (
        SELECT p.object_key, p.tf, p.length FROM brain_postings AS p
        WHERE p.namespace_id = %(ns)s AND p.term = w.term AND p.object_key = a.key LIMIT 1) AS p
)"""

_BM25 = """
, scored AS (
    SELECT h.object_key, sum(h.idf * h.tf * (%(k1)s + 1) / (h.tf + %(k1)s * (1 - %(b)s + %(b)s * h.length / size.average))) AS score
    FROM hits AS h, size GROUP BY h.object_key
), ordered AS (
    SELECT object_key, score, row_number() OVER (ORDER BY score DESC, object_key) <= %(k)s AS best FROM scored
), best AS (SELECT * FROM ordered AS o WHERE o.best OR o.object_key = ANY(%(also)s))
SELECT r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at), best.score, best.best, unread.some
FROM (SELECT coalesce(bool_or(NOT w.proposes OR w.df > %(per_word)s), false) AS some FROM words AS w) AS unread
LEFT JOIN (best JOIN brain_objects AS r
           ON r.key = best.object_key AND r.namespace_id = %(ns)s AND r.deleted_at IS NULL) ON true
ORDER BY best.score DESC, r.key"""

_OF_MODEL = "r.vector_model = %(model)s AND r.vector_dim = {dimension}"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM brain_objects AS r WHERE {allowed} LIMIT %(most)s) AS bounded"

# Without the cast of the index the planner cannot take it; the limit inside bounds what is compared.
_NEAR_EXACT = """
SELECT c.key, c.id, c.parent_id, c.updated_at, 1 - c.distance FROM (
    SELECT r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at) AS updated_at, r.vector <=> %(vector)s::halfvec AS distance
    FROM brain_objects AS r WHERE {allowed} ORDER BY r.key DESC LIMIT %(compared)s) AS c
ORDER BY c.distance, c.key LIMIT %(k)s"""

_NEAR_INDEXED = """
SELECT c.key, c.id, c.parent_id, c.updated_at, 1 - c.distance FROM (
    SELECT r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at) AS updated_at,
           r.vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension}) AS distance
    FROM brain_objects AS r WHERE {allowed} ORDER BY distance LIMIT %(k)s) AS c
ORDER BY c.distance, c.key"""

_SHARE = """
SELECT coalesce((SELECT documents FROM brain_stats WHERE namespace_id = %(ns)s), 0),
       (SELECT reltuples FROM pg_class WHERE oid = 'brain_objects'::regclass)"""

# The index goes on until enough of what it proposes is allowed, within bounds. The planner does not know how small the
# namespace's share is, and must not read all of it instead.
_ITERATE = """
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '100', true),
       set_config('hnsw.max_scan_tuples', '100000', true), set_config('enable_sort', 'off', true)"""
_ITERATED = "SELECT set_config('enable_sort', 'on', true)"


@dataclass(frozen=True, slots=True)
class Found:
    """A row that a leg proposes. Higher scores are better, and compare only within their leg.

    Args: updated_at: when its source says, else when it was written.
    """

    key: int
    id: UUID
    parent_id: UUID | None
    updated_at: datetime
    score: float


@dataclass(frozen=True, slots=True)
class Leg:
    """What a leg proposes, best first.

    Args: others: its scores of what other legs proposed, as far as it has any; truncated: whether a limit may have hidden
        something better.
    """

    found: tuple[Found, ...] = ()
    others: tuple[Found, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Near:
    """A query as a vector, compared only with vectors of the same stamp and length; shape (dimension,), unit length."""

    model: str
    vector: NDArray[np.float32]

    @property
    def dimension(self) -> int:
        """Length of the vector."""
        return int(self.vector.shape[0])


def is_small(conn: Connection, namespace_id: int, filters: Filters) -> bool:
    """Whether what the filters leave is so little that each row of it can be looked at."""
    return _counted(conn, *_allowed(namespace_id, filters)) <= EXACT


def lexical(
    conn: Connection,
    namespace_id: int,
    terms: Sequence[int],
    filters: Filters,
    k: int,
    *,
    small: bool = False,
    also: Sequence[int] = (),
) -> Leg:
    """The k best rows by BM25; rows without any of the words are not among them.

    Args: terms: of the query; small: what `is_small` says of the filters, of no consequence when nothing is filtered;
        also: row keys to score besides, which satisfy the filters.
    """
    if not terms or k <= 0:
        return Leg()
    allowed, values = _allowed(namespace_id, filters)
    values |= {
        "terms": list(terms),
        "k": k,
        "also": list(also),
        "k1": K1,
        "b": B,
        "postings": CANDIDATE_POSTINGS,
        "per_word": WORD_POSTINGS,
        "counted": COUNTED,
        "unfolded": _UNFOLDED,
    }
    joined = f"JOIN brain_objects AS r ON r.key = p.object_key AND {allowed}" if filters.narrow else ""
    leg = _scored(conn, _HITS.format(filter=joined), values)
    if filters.narrow and small and leg.truncated:
        return replace(_scored(conn, _HITS_ALLOWED.format(allowed=allowed), values), truncated=False)
    return leg


def _scored(conn: Connection, hits: str, values: dict[str, Any]) -> Leg:
    """Run one way of gathering postings; its answer has at least one row, which says whether some were left unread."""
    rows = conn.execute(f"{_SIZE}, {_WORDS}, {hits}{_BM25}", values).fetchall()
    found, others = (_rows([r for r in rows if r[0] is not None and r[5] is best]) for best in (True, False))
    return Leg(found, others, truncated=len(found) < values["k"] and bool(rows[0][6]))


def vectors(conn: Connection, namespace_id: int, near: Near, filters: Filters, k: int) -> Leg:
    """The k rows whose vectors are nearest by cosine: exact among few rows, else by the index.

    The index is asked until it has k that are allowed; when it gives up before, as where most of what is near belongs to
    others, every vector is compared after all. What has nothing in common with the query comes as `others`.
    """
    if k <= 0:
        return Leg()
    allowed, values = _allowed(namespace_id, filters)
    allowed += " AND " + _OF_MODEL.format(dimension=near.dimension)
    values |= {"model": near.model, "vector": HalfVector(near.vector).to_text(), "k": k}
    count = _counted(conn, allowed, values)
    if count <= EXACT or near.dimension not in INDEXED:
        return _near_exact(conn, allowed, values, EXACT)
    if _is_outnumbered(conn, allowed, values):
        return _near_exact(conn, allowed, values, EXACT_AMONG_OTHERS)
    conn.execute(_ITERATE)
    rows = conn.execute(_NEAR_INDEXED.format(allowed=allowed, dimension=near.dimension), values).fetchall()
    conn.execute(_ITERATED)
    if len(rows) >= k:
        return _near(rows, truncated=False)
    return _near_exact(conn, allowed, values, EXACT_AT_LAST)


def among(conn: Connection, namespace_id: int, filters: Filters, ids: Sequence[UUID]) -> list[int]:
    """Row keys of those of the objects that satisfy the filters."""
    allowed, values = _allowed(namespace_id, filters)
    sql = f"SELECT r.key FROM brain_objects AS r WHERE {allowed} AND r.id = ANY(%(among)s) ORDER BY r.key"
    return [int(row[0]) for row in conn.execute(sql, {**values, "among": list(ids)}).fetchall()]


def likeness(conn: Connection, namespace_id: int, near: Near, keys: Sequence[int]) -> tuple[Found, ...]:
    """Rows by key with their cosine, most alike first; those without a vector of this model are left out."""
    allowed, values = _allowed(namespace_id, Filters())
    allowed += f" AND r.key = ANY(%(keys)s) AND {_OF_MODEL.format(dimension=near.dimension)}"
    values |= {"model": near.model, "vector": HalfVector(near.vector).to_text(), "k": len(keys), "keys": list(keys)}
    rows = conn.execute(_NEAR_EXACT.format(allowed=allowed), {**values, "compared": EXACT}).fetchall()
    return _alike(rows)


def _near_exact(conn: Connection, allowed: str, values: dict[str, Any], most: int) -> Leg:
    """Compare every vector, the newest rows first when there are more than so many."""
    rows = conn.execute(_NEAR_EXACT.format(allowed=allowed), {**values, "compared": most}).fetchall()
    return _near(rows, truncated=_counted(conn, allowed, values, most) > most)


def _is_outnumbered(conn: Connection, allowed: str, values: dict[str, Any]) -> bool:
    """Whether the rows of a namespace are few among all, so that the index meets mostly those of others."""
    row = conn.execute(_SHARE, values).fetchone()
    own, every = (int(row[0]), int(row[1])) if row else (0, 0)
    if every < 2 * EXACT:
        return False
    if not own:  # nobody has counted yet
        own = _counted(conn, allowed, values, EXACT_AMONG_OTHERS)
    return own <= EXACT_AMONG_OTHERS and 2 * own < every


def _near(rows: Sequence[tuple[Any, ...]], *, truncated: bool) -> Leg:
    found = _rows(rows)
    alike = tuple(row for row in found if row.score > 0)
    return Leg(alike, found[len(alike) :], truncated)


def _alike(rows: Sequence[tuple[Any, ...]]) -> tuple[Found, ...]:
    """Rows that have anything in common with the query."""
    return tuple(row for row in _rows(rows) if row.score > 0)


def _rows(rows: Sequence[tuple[Any, ...]]) -> tuple[Found, ...]:
    return tuple(Found(int(r[0]), r[1], r[2], r[3], float(r[4])) for r in rows)


def _counted(conn: Connection, allowed: str, values: dict[str, Any], most: int = EXACT) -> int:
    row = conn.execute(_COUNT.format(allowed=allowed), {**values, "most": most + 1}).fetchone()
    return int(row[0]) if row else 0
