"""Vectors of records: written once per text, and the leg of a recall that finds records by what they are about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import cold_vectors
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_index import SEARCHABLE, found_by

# Dimensions that have an HNSW index (migration 0003).
INDEXED = frozenset({384})
# Without an index for its dimension, a scope that is larger than this is compared by its newest records.
COMPARED = 20_000
# What a vector is made from at most, in characters: models read a few hundred or thousand tokens, servers refuse more.
CHARS = 6_000

# The state says who may still want a vector; a record that has one was embedded by an earlier delivery.
_UNEMBEDDED = f"""
SELECT r.key, left(coalesce(r.content, r.summary), {CHARS}), left({SEARCHABLE}, {CHARS}), r.content_sha256,
       (r.metadata -> 'searchable')::text, r.summary, b.body, b.raw_bytes, o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE r.key = ANY(%(keys)s) AND r.vector_state <> 'done' ORDER BY r.key"""

# Only rows whose text is still the one that was embedded are written; a newer text has a step of its own. Tiers do not
# matter: a record that went cold meanwhile is still about what its whole text said.
_SAME_TEXT = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(hashes)s::bytea[], %(given)s::text[]{vectors}) AS g (key, sha, given{vector})
), fresh AS (
    SELECT r.key, r.bank_id, r.namespace_id, r.tier{column} FROM tier_records AS r JOIN given AS g ON g.key = r.key AND g.sha = r.content_sha256
    WHERE r.vector_state <> 'done' AND (r.metadata -> 'searchable')::text IS NOT DISTINCT FROM g.given
    ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r
){stored}
UPDATE tier_records AS r SET vector_state = '{state}' FROM fresh AS f WHERE r.key = f.key"""

# A vector may be left over from an older text, when both were written at the same moment. Of a record that went cold
# meanwhile the signs are enough.
_STORED = """, stored AS (
    INSERT INTO tier_vectors (record_key, bank_id, namespace_id, model, dim, vector, bits)
    SELECT key, bank_id, namespace_id, %(model)s, %(dimension)s, CASE WHEN tier > 1 THEN vector END,
           CASE WHEN tier = 1 THEN bits::varbit END
    FROM fresh
    ON CONFLICT (record_key) DO UPDATE SET model = excluded.model, dim = excluded.dim, vector = excluded.vector,
        bits = excluded.bits, kept = NULL
)"""

_WRITE = _SAME_TEXT.format(
    vectors=", %(vectors)b::halfvec[], %(bits)s::text[]",
    vector=", vector, bits",
    column=", g.vector, g.bits",
    stored=_STORED,
    state="done",
)
_FAIL = _SAME_TEXT.format(vectors="", vector="", column="", stored="", state="failed")

# The state is asked as well: it alone changes in the same moment as the text. Signs say the same until the vector is back.
_OF_MODEL = "v.model = %(near_model)s AND v.dim = {dimension} AND r.vector_state IN ('done', 'again')"
_DISTANCE = "v.vector::halfvec({dimension}) <=> %(near)s::halfvec({dimension})"
_BITS_DISTANCE = "v.bits::bit({dimension}) <~> %(near_bits)s::bit({dimension})"
# A cold record has only the signs of its vector.
_COSINE = "CASE WHEN v.vector IS NULL THEN {by_signs} ELSE 1 - ({distance}) END"

# A scope that is small, or has no index for its dimension: its newest records are compared, as a rule all of them. Vectors are
# read by their keys, one by one: how many sessions are listed is not known, and for many all vectors would be read.
_LEG_COMPARED = """
    SELECT key, 'vector' FROM (
        SELECT c.key FROM (
            SELECT r.key, {cosine} AS cosine FROM ({{compared}}) AS r CROSS JOIN LATERAL (
                SELECT * FROM tier_vectors AS v WHERE v.record_key = r.key AND {of_model} LIMIT 1) AS v) AS c
        ORDER BY c.cosine DESC, c.key DESC LIMIT %(vector)s) AS near"""

_LEG_SEARCHED = """
    SELECT key, 'vector' FROM unnest(%(searched)s::bigint[]) AS near (key)"""

_SEARCH = """
SELECT r.key FROM tier_vectors AS v JOIN tier_records AS r ON r.key = v.record_key
WHERE {{scope}} AND r.tier = ANY(%(tiers)s) AND {of_model}
ORDER BY {distance} LIMIT %(vector)s"""

# Signs alone order roughly: several times as many are taken as are wanted, and ordered by what the query knows besides.
_SEARCH_BITS = """
SELECT c.key FROM (
    SELECT r.key, {by_signs} AS cosine FROM tier_vectors AS v JOIN tier_records AS r ON r.key = v.record_key
    WHERE {{scope}} AND r.tier = ANY(%(tiers)s) AND v.bits IS NOT NULL AND {of_model}
    ORDER BY {bits_distance} LIMIT %(vector)s * 4) AS c
ORDER BY c.cosine DESC, c.key DESC LIMIT %(vector)s"""

# Of every candidate that has a vector of this model, whichever leg proposed it.
_OF_CANDIDATE = "LEFT JOIN tier_vectors AS v ON v.record_key = r.key AND {of_model}"

# The index goes on until enough of what it proposes is in the scope, within bounds. The planner knows the scope only as the
# result of a subquery, takes it for one of average size, and would rather sort it all: hence no sorting.
_BEFORE_SEARCH = """
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '100', true),
       set_config('hnsw.max_scan_tuples', '40000', true), set_config('enable_sort', 'off', true)"""
_AFTER_SEARCH = "SELECT set_config('enable_sort', 'on', true)"


_BETWEEN = """
SELECT a.record_key, b.record_key, 1 - (a.vector <=> b.vector)
FROM unnest(%(some)s::bigint[], %(others)s::bigint[]) AS p (one, other)
JOIN tier_vectors AS a ON a.record_key = p.one AND {of_a} JOIN tier_vectors AS b ON b.record_key = p.other AND {of_b}
WHERE a.model = b.model AND a.dim = b.dim AND a.vector IS NOT NULL AND b.vector IS NOT NULL"""


# Summary, compressed body, its size, and the key of its object.
_StoredAt = tuple[str | None, bytes | None, int | None, str | None]


@dataclass(frozen=True, slots=True)
class Near:
    """A query as a vector, compared only with vectors of the same stamp and length.

    Args: model: stamp; vector: shape (dimension,), of unit length.
    """

    model: str
    vector: NDArray[np.float32]

    @property
    def is_indexed(self) -> bool:
        """Whether an index finds what is near, however large the scope is."""
        return len(self.vector) in INDEXED

    def leg(self, *, searched: bool) -> str:
        """SQL of the leg, to be formatted with SQL of the `compared` records: what a search found, or a comparison."""
        return _LEG_SEARCHED if searched else self.formatted(_LEG_COMPARED)

    @property
    def cosine(self) -> str:
        """SQL of a row's cosine, NULL without a vector of this model."""
        return self.formatted("{cosine}")

    @property
    def join(self) -> str:
        """SQL that puts the vector that `cosine` needs beside a row of `tier_records AS r`."""
        return self.formatted(_OF_CANDIDATE)

    @property
    def values(self) -> dict[str, Any]:
        """Parameters of all of it."""
        exact = {"near": _literal(self.vector), "near_model": self.model, "compared": COMPARED}
        return {**exact, **cold_vectors.sign_values(self.vector)}

    def formatted(self, sql: str) -> str:
        """A statement of this module with its dimension filled in."""
        # The dimension stands in the text: as a parameter it would hide the partial index from a generic plan.
        dimension = len(self.vector)
        distance = _DISTANCE.format(dimension=dimension)
        by_signs = cold_vectors.cosine_by_signs(dimension)
        return sql.format(
            distance=distance,
            bits_distance=_BITS_DISTANCE.format(dimension=dimension),
            of_model=_OF_MODEL.format(dimension=dimension),
            by_signs=by_signs,
            cosine=_COSINE.format(by_signs=by_signs, distance=distance),
        )


@dataclass(frozen=True, slots=True)
class Unembedded:
    """A record without a vector: its key, the text it is found by, and what that text came from.

    Args: text: of a cold record its summary, unless the caller wants it to be found by something else; content_sha256: of
    the content; given: what the caller wants it to be found by, as JSON; stored: where the whole text of a cold record is.
    """

    key: int
    text: str
    content_sha256: bytes
    given: str | None
    stored: StoredBody | None = None


def search(conn: Connection, near: Near, within: str, values: dict[str, Any]) -> list[int]:
    """Keys of the records of a large scope that are nearest, by the index.

    Args: within: the scope's predicate on `tier_vectors AS v`; values: its parameters, `tiers` and `vector`, the most that are wanted.
    """
    searches = [_SEARCH, _SEARCH_BITS] if Tier.COLD.rank in values["tiers"] else [_SEARCH]
    conn.execute(_BEFORE_SEARCH)
    found: dict[int, None] = {}
    for search_by in searches:
        sql = near.formatted(search_by).format(scope=within)
        found.update((int(row[0]), None) for row in conn.execute(sql, {**values, **near.values}).fetchall())
    conn.execute(_AFTER_SEARCH)
    return list(found)


def between(conn: Connection, scope: Scope, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Cosines of pairs of records of a scope, as far as both have a whole vector of one model."""
    (of_a, values), (of_b, more) = predicate(scope, "a"), predicate(scope, "b")
    sql = _BETWEEN.format(of_a=of_a, of_b=of_b)
    given = {**values, **more, "some": [a for a, _ in pairs], "others": [b for _, b in pairs]}
    return {(int(a), int(b)): float(cosine) for a, b, cosine in conn.execute(sql, given).fetchall()}


def unembedded(conn: Connection, keys: Sequence[int]) -> list[Unembedded]:
    """Those of the records that have no vector, with the text it is to be made from."""
    rows = conn.execute(_UNEMBEDDED, {"keys": list(keys)}).fetchall()
    return [_unembedded(*row) for row in rows]


def write(conn: Connection, model: str, found: Sequence[Unembedded], vectors: NDArray[np.float32]) -> int:
    """Write vectors in one statement; returns how many records got theirs.

    Args: model: stamp; vectors: shape (len(found), dimension), row i for record i.
    """
    values = {
        **_same_text(found),
        "vectors": [HalfVector(vector) for vector in vectors],
        "bits": cold_vectors.signs_of(vectors),
        "dimension": vectors.shape[1],
        "model": model,
    }
    return conn.execute(_WRITE, values).rowcount


def mark_failed(conn: Connection, found: Sequence[Unembedded]) -> int:
    """Note that records have no vector because their model refused; returns how many."""
    return conn.execute(_FAIL, _same_text(found)).rowcount


def _unembedded(
    key: int, text: str, given: str | None, sha: bytes, raw: str | None, *stored_at: *_StoredAt
) -> Unembedded:
    summary, body, raw_bytes, object_key = stored_at
    stored = None if raw_bytes is None else StoredBody(summary, body, raw_bytes, bytes(sha), object_key)
    return Unembedded(int(key), found_by(given, text), bytes(sha), raw, stored)


def _same_text(found: Sequence[Unembedded]) -> dict[str, Any]:
    return {
        "keys": [u.key for u in found],
        "hashes": [u.content_sha256 for u in found],
        "given": [u.given for u in found],
    }


def _literal(vector: Iterable[Any]) -> str:
    """A vector as the server reads it; half precision keeps no more than four digits."""
    return f"[{','.join(f'{value:.6g}' for value in vector)}]"
