"""The legs of a search, each under its namespace and filters: BM25 in one statement, and vectors exact or by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from isotherm.pipeline.brain.bm25 import K1, B
from isotherm.pipeline.brain.filters import Filters
from isotherm.storage.postgres import arrays
from isotherm.storage.postgres.brain_filters import allowed as _allowed
from isotherm.storage.postgres.brain_newer import TIMELESS
from isotherm.storage.postgres.pool import Connection, lasts

# Postings of the rarest words that propose candidates; all words are scored for those.
CANDIDATE_POSTINGS = 5_000
# Of the rarest word alone, when it is more frequent than that.
WORD_POSTINGS = 20_000
# Up to this many rows that filters leave, every vector is compared, and every word of every row counts.
EXACT = 20_000
# Up to this many rows of a namespace: to compare all is exact, and takes 2 us each where the index takes 2 ms at once.
EXACT_ALONE = 4_000
# And up to this many when they are less than half of all rows: what the index shows of them first is not what is nearest.
EXACT_AMONG_OTHERS = 100_000
# And up to this many when the index has come to its limit and not to enough of what is allowed.
EXACT_AT_LAST = 200_000
# Below this many folded documents the statistics of words are counted from the index instead.
COUNTED = 2_000
# Unfolded changes that a search adds to the statistics itself.
_UNFOLDED = 1_000
# Lengths of vectors that have an HNSW index (migration 0004).
INDEXED = frozenset({384, 768, 1024, 1536})

_SIZE = """
folded AS (SELECT coalesce(max(documents), 0) AS documents, coalesce(max(length), 0) AS length
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
counts AS MATERIALIZED (
    SELECT q.term, CASE WHEN size.folded >= %(counted)s AND t.documents > 0 THEN t.documents ELSE (
        SELECT count(*) FROM (SELECT 1 FROM brain_postings AS p WHERE p.namespace_id = %(ns)s AND p.term = q.term
                              LIMIT %(per_word)s + 1) AS bounded) END AS df
    FROM size CROSS JOIN unnest(%(terms)s::bigint[]) AS q (term)
    LEFT JOIN brain_terms AS t ON t.namespace_id = %(ns)s AND t.term = q.term
), words AS MATERIALIZED (
    SELECT c.term, c.df, ln(1 + (greatest(size.n, c.df) - c.df + 0.5) / (c.df + 0.5)) AS idf, c.df <= %(per_word)s AS whole,
           row_number() OVER rarest = 1 OR sum(c.df) OVER rarest <= %(postings)s AS proposes
    FROM counts AS c, size WHERE c.df > 0 WINDOW rarest AS (ORDER BY c.df, c.term)
)"""

# Postings of the rare words, which propose, and those of the other words for what was proposed or asked for: keys go into
# the condition of the index as one sorted array for each word, since a frequent word must not be read whole, and looking
# its postings up one by one takes several times as long.
_HITS = """
proposed AS MATERIALIZED (
    SELECT w.idf, w.whole, p.object_key, p.tf, p.length FROM words AS w CROSS JOIN LATERAL (
        SELECT p.object_key, p.tf, p.length FROM brain_postings AS p WHERE p.namespace_id = %(ns)s AND p.term = w.term
        ORDER BY p.object_key DESC LIMIT %(per_word)s) AS p {filter}
    WHERE w.proposes
), candidates AS MATERIALIZED (
    SELECT array_agg(DISTINCT c.key) AS keys
    FROM (SELECT object_key FROM proposed UNION ALL SELECT unnest(%(also)s::bigint[])) AS c (key)
), hits AS (
    SELECT idf, object_key, tf, length FROM proposed WHERE whole
    UNION ALL
    SELECT w.idf, p.object_key, p.tf, p.length FROM words AS w CROSS JOIN LATERAL (
        SELECT p.object_key, p.tf, p.length FROM brain_postings AS p WHERE p.namespace_id = %(ns)s AND p.term = w.term
          AND p.object_key = ANY((SELECT keys FROM candidates)::bigint[])) AS p
    WHERE NOT (w.proposes AND w.whole)
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
, scored AS MATERIALIZED (
    SELECT h.object_key, sum(h.idf * h.tf * (%(k1)s + 1) / (h.tf + %(k1)s * (1 - %(b)s + %(b)s * h.length / size.average))) AS score
    FROM hits AS h, size GROUP BY h.object_key
), best AS MATERIALIZED (
    SELECT object_key, score FROM scored ORDER BY score DESC, object_key LIMIT %(k)s
), shown AS (
    SELECT object_key, score, true AS best FROM best
    UNION ALL
    SELECT s.object_key, s.score, false FROM unnest(%(also)s::bigint[]) AS a (key) JOIN scored AS s ON s.object_key = a.key
    WHERE NOT EXISTS (SELECT 1 FROM best AS b WHERE b.object_key = a.key)
)
SELECT r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at), s.score, s.best, unread.some, {timeless}, {cosine}
FROM (SELECT coalesce(bool_or(NOT w.proposes OR NOT w.whole), false) AS some FROM words AS w) AS unread
LEFT JOIN (shown AS s JOIN brain_objects AS r
           ON r.key = s.object_key AND r.namespace_id = %(ns)s AND r.deleted_at IS NULL) ON true
ORDER BY s.score DESC, r.key"""
_COSINE = """CASE WHEN r.vector_model = %(model)s AND r.vector_dim = {dimension}
    THEN 1 - (r.vector <=> %(vector)s::halfvec) END"""

_OF_MODEL = "r.vector_model = %(model)s AND r.vector_dim = {dimension}"
_DOCUMENTS = f"WITH {_SIZE} SELECT n FROM size"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM brain_objects AS r WHERE {allowed} LIMIT %(most)s) AS bounded"

# Without the cast of the index the planner cannot take it; the limit inside bounds what is compared.
_NEAR_EXACT = """
SELECT c.key, c.id, c.parent_id, c.updated_at, 1 - c.distance FROM (
    SELECT r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at) AS updated_at, r.vector <=> %(vector)s::halfvec AS distance
    FROM brain_objects AS r WHERE {allowed} ORDER BY r.key DESC LIMIT %(compared)s) AS c
ORDER BY c.distance, c.key LIMIT %(k)s"""

# Without that limit, for rows that are known to be few: with sorting off its order would have the whole table read.
_NEAR_FEW = """
SELECT c.key, c.id, c.parent_id, c.updated_at, 1 - c.distance FROM (
    SELECT r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at) AS updated_at, r.vector <=> %(vector)s::halfvec AS distance
    FROM brain_objects AS r WHERE {allowed}) AS c
ORDER BY c.distance, c.key LIMIT %(k)s"""

_NEAR_INDEXED = """
SELECT c.key, c.id, c.parent_id, c.updated_at, 1 - c.distance FROM (
    SELECT r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at) AS updated_at,
           r.vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension}) AS distance
    FROM brain_objects AS r WHERE {allowed} ORDER BY distance LIMIT %(k)s) AS c
ORDER BY c.distance, c.key"""

# Which of the two it is depends on how many rows there are; the other one is not begun.
_NEAR = """
WITH {size}
SELECT * FROM ({exact}) AS e UNION ALL SELECT * FROM ({indexed}) AS i"""
_BOUND = """greatest(%(exact)s, least(%(among_others)s,
    (SELECT reltuples FROM pg_class WHERE oid = 'brain_objects'::regclass) / 2))"""
_FEW, _MANY = (f"(SELECT n FROM size) {sign} {_BOUND}" for sign in ("<=", ">"))

# The index goes on until enough of what it proposes is allowed, within bounds. The planner does not know how small the
# namespace's share is, and must neither read all of it instead nor, where it is compared, all rows of others too.
_ITERATE = """
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '100', true),
       set_config('hnsw.max_scan_tuples', '100000', true), set_config('enable_sort', 'off', true),
       set_config('enable_seqscan', 'off', true)"""
_ITERATED = "SELECT set_config('enable_sort', 'on', true), set_config('enable_seqscan', 'on', true)"


class Found(NamedTuple):
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
        something better; timeless: whether nothing of the namespace says when it was so or what it renews, as far as the leg
        was asked.
    """

    found: tuple[Found, ...] = ()
    others: tuple[Found, ...] = ()
    truncated: bool = False
    timeless: bool = False


@dataclass(frozen=True, slots=True)
class Near:
    """A query as a vector, compared only with vectors of the same stamp and length; shape (dimension,), unit length."""

    model: str
    vector: NDArray[np.float32]

    @property
    def dimension(self) -> int:
        """Length of the vector."""
        return int(self.vector.shape[0])

    @property
    def half(self) -> HalfVector:
        """The vector as PostgreSQL takes it."""
        return HalfVector(self.vector)


def is_small(conn: Connection, namespace_id: int, filters: Filters) -> bool:
    """Whether what the filters leave is so little that each row of it can be looked at."""
    return _counted(conn, *_allowed(namespace_id, filters)) <= EXACT


def legs(
    conn: Connection,
    namespace_id: int,
    terms: Sequence[int],
    near: Near | None,
    filters: Filters,
    k: int,
    *,
    hinted: Sequence[int] = (),
) -> tuple[Leg, Leg]:
    """The k best rows by words and by meaning, and what each leg says of the proposals of the other.

    Args: hinted: row keys that satisfy the filters, to score besides.
    """
    small = is_small(conn, namespace_id, filters) if filters.narrow else None
    meaning = Leg() if near is None else vectors(conn, namespace_id, near, filters, k, small=small)
    known = {row.key for row in (*meaning.found, *meaning.others)}
    also = [*known, *hinted]
    words, alike = _lexical(conn, namespace_id, terms, filters, k, small=bool(small), also=also, near=near, timed=True)
    others = [*meaning.others, *(row for row in alike if row.key not in known)]
    left = set(hinted) - known - {row.key for row in alike}
    if near is not None and left:
        others += _likeness(conn, namespace_id, near, sorted(left))
    return words, replace(meaning, others=tuple(others))


def among(conn: Connection, namespace_id: int, filters: Filters, ids: Sequence[UUID]) -> list[int]:
    """Row keys of those of the objects that satisfy the filters."""
    allowed, values = _allowed(namespace_id, filters)
    sql = f"SELECT r.key FROM brain_objects AS r WHERE {allowed} AND r.id = ANY(%(among)s) ORDER BY r.key"
    return [int(row[0]) for row in conn.execute(sql, {**values, "among": list(ids)}).fetchall()]


def _likeness(conn: Connection, namespace_id: int, near: Near, keys: Sequence[int]) -> tuple[Found, ...]:
    """Rows by key with their cosine, most alike first; those without a vector of this model are left out."""
    allowed, values = _allowed(namespace_id, Filters())
    allowed += f" AND r.key = ANY(%(keys)s) AND {_OF_MODEL.format(dimension=near.dimension)}"
    values |= {"model": near.model, "vector": near.half, "k": len(keys), "keys": list(keys)}
    rows = conn.execute(_NEAR_EXACT.format(allowed=allowed), {**values, "compared": len(keys)}).fetchall()
    return _alike(rows)


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
    return _lexical(conn, namespace_id, terms, filters, k, small=small, also=also, near=None, timed=False)[0]


def _lexical(
    conn: Connection,
    namespace_id: int,
    terms: Sequence[int],
    filters: Filters,
    k: int,
    *,
    small: bool,
    also: Sequence[int],
    near: Near | None,
    timed: bool,
) -> tuple[Leg, tuple[Found, ...]]:
    """The leg, and its rows by their cosine with `near`, most alike first. Args: timed: whether to ask for `Leg.timeless`."""
    if not terms or k <= 0:
        return Leg(), ()
    allowed, values = _allowed(namespace_id, filters)
    values |= {
        "terms": arrays.bigints(terms),
        "k": k,
        "also": arrays.bigints(also),
        "k1": K1,
        "b": B,
        "postings": CANDIDATE_POSTINGS,
        "per_word": WORD_POSTINGS,
        "counted": COUNTED,
        "unfolded": _UNFOLDED,
    }
    joined = f"JOIN brain_objects AS r ON r.key = p.object_key AND {allowed}" if filters.narrow else ""
    leg, alike = _scored(conn, _HITS.format(filter=joined), values, near, timed=timed)
    if filters.narrow and small and leg.truncated:
        leg, alike = _scored(conn, _HITS_ALLOWED.format(allowed=allowed), values, near, timed=timed)
        leg = replace(leg, truncated=False)
    return leg, alike


def _scored(
    conn: Connection, hits: str, values: dict[str, Any], near: Near | None, *, timed: bool
) -> tuple[Leg, tuple[Found, ...]]:
    """Run one way of gathering postings; its answer has at least one row, which says whether some were left unread."""
    cosine, timeless = "NULL::float8", f"({TIMELESS})" if timed else "false"
    if near is not None:
        cosine = _COSINE.format(dimension=near.dimension)
        values = {**values, "model": near.model, "vector": near.half}
    rows = conn.execute(
        f"WITH {_SIZE}, {_WORDS}, {hits}{_BM25.format(cosine=cosine, timeless=timeless)}", values
    ).fetchall()
    found, others = (_rows([r for r in rows if r[0] is not None and r[5] is best]) for best in (True, False))
    alike = sorted(_alike([(*r[:4], r[8]) for r in rows if r[8] is not None]), key=lambda row: (-row.score, row.key))
    truncated = len(found) < values["k"] and bool(rows[0][6])
    return Leg(found, others, truncated, timeless=bool(rows[0][7])), tuple(alike)


def vectors(
    conn: Connection, namespace_id: int, near: Near, filters: Filters, k: int, *, small: bool | None = None
) -> Leg:
    """The k rows whose vectors are nearest by cosine: exact among few rows, else by the index.

    The index is asked until it has k that are allowed; when it gives up before, as where most of what is near belongs to
    others, every vector is compared after all. What has nothing in common with the query comes as `others`.

    Args: small: what `is_small` says of the filters; None has it found out.
    """
    if k <= 0:
        return Leg()
    if small is None and filters.narrow:
        small = is_small(conn, namespace_id, filters)
    allowed, values = _allowed(namespace_id, filters)
    allowed += " AND " + _OF_MODEL.format(dimension=near.dimension)
    values |= {"model": near.model, "vector": near.half, "k": k, "compared": EXACT_AT_LAST}
    if small:
        return _by_nearness(conn.execute(_NEAR_FEW.format(allowed=allowed), values).fetchall())
    if near.dimension not in INDEXED:
        return _near_exact(conn, allowed, values)
    values |= {"exact": EXACT_ALONE, "among_others": EXACT_AMONG_OTHERS, "unfolded": _UNFOLDED}
    with conn.pipeline():  # one transaction, or a part of one
        conn.execute(_ITERATE)
        asked = conn.execute(_near(allowed, near.dimension, known=small is not None), values)
        if lasts(conn):
            conn.execute(_ITERATED)
        rows = asked.fetchall()
    if len(rows) < k and _is_many(conn, namespace_id, small):
        return _near_exact(conn, allowed, values)
    return _by_nearness(rows)


def _near_exact(conn: Connection, allowed: str, values: dict[str, Any]) -> Leg:
    """Compare every vector, the newest rows first when there are more than can be compared."""
    rows = conn.execute(_NEAR_EXACT.format(allowed=allowed), values).fetchall()
    full = len(rows) == values["k"]
    return replace(
        _by_nearness(rows), truncated=full and _counted(conn, allowed, values, EXACT_AT_LAST) > EXACT_AT_LAST
    )


def _by_nearness(rows: Sequence[tuple[Any, ...]]) -> Leg:
    found = _rows(rows)
    alike = tuple(row for row in found if row.score > 0)
    return Leg(alike, found[len(alike) :])


def _near(allowed: str, dimension: int, *, known: bool) -> str:
    """By the index when it is known that there are many rows, else by what the statistics say."""
    if known:
        return _NEAR_INDEXED.format(allowed=allowed, dimension=dimension)
    exact = _NEAR_FEW.format(allowed=f"{allowed} AND {_FEW}")
    return _NEAR.format(
        size=_SIZE, exact=exact, indexed=_NEAR_INDEXED.format(allowed=f"{allowed} AND {_MANY}", dimension=dimension)
    )


def _is_many(conn: Connection, namespace_id: int, small: bool | None) -> bool:  # noqa: FBT001 - None is neither
    """Whether rows came from the index, for those that are fewer than asked for."""
    if small is not None:
        return not small
    row = conn.execute(_DOCUMENTS, {"ns": namespace_id, "unfolded": _UNFOLDED}).fetchone()
    return row is not None and row[0] > EXACT_ALONE


def _alike(rows: Sequence[tuple[Any, ...]]) -> tuple[Found, ...]:
    """Rows that have anything in common with the query."""
    return tuple(row for row in _rows(rows) if row.score > 0)


def _rows(rows: Sequence[tuple[Any, ...]]) -> tuple[Found, ...]:
    return tuple(Found(int(r[0]), r[1], r[2], r[3], float(r[4])) for r in rows)


def _counted(conn: Connection, allowed: str, values: dict[str, Any], most: int = EXACT) -> int:
    row = conn.execute(_COUNT.format(allowed=allowed), {**values, "most": most + 1}).fetchone()
    return int(row[0]) if row else 0
