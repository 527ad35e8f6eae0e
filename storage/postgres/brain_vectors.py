"""Vectors of objects: made after the write, from the text the row says now, and written only while it still says that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from isotherm.pipeline.brain.index_text import text_of
from isotherm.pipeline.brain.objects import NewObject
from isotherm.storage.postgres.pool import Connection

# What a vector is made from at most; models read a few hundred or thousand tokens, and servers refuse more.
_CHARS = 6_000

_UNEMBEDDED = """
SELECT r.key, r.index_sha256, r.id, r.kind, r.title, r.summary, r.content, r.properties, r.parent_id, p.title
FROM brain_objects AS r
LEFT JOIN brain_objects AS p ON p.namespace_id = r.namespace_id AND p.id = r.parent_id
WHERE r.key = ANY(%(keys)s) AND r.namespace_id = %(ns)s AND r.vector_state <> 'done' AND r.deleted_at IS NULL
ORDER BY r.key"""

_SAME_TEXT = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(hashes)s::bytea[]{arrays}) AS g (key, sha{columns})
), fresh AS (
    SELECT r.key{chosen} FROM brain_objects AS r JOIN given AS g ON g.key = r.key AND g.sha = r.index_sha256
    WHERE r.namespace_id = %(ns)s AND r.vector_state <> 'done' AND r.deleted_at IS NULL
    ORDER BY r.parent_id IS NOT NULL, r.id FOR NO KEY UPDATE OF r
)
UPDATE brain_objects AS r SET """

_WRITE = (
    _SAME_TEXT.format(arrays=", %(vectors)s::halfvec[]", columns=", vector", chosen=", g.vector")
    + """vector = f.vector, vector_model = %(model)s, vector_dim = %(dimension)s, vector_state = 'done'
FROM fresh AS f WHERE r.key = f.key"""
)
_SET_STATE = (
    _SAME_TEXT.format(arrays="", columns="", chosen="") + "vector_state = %(state)s FROM fresh AS f WHERE r.key = f.key"
)


@dataclass(frozen=True, slots=True)
class Unembedded:
    """A row without a vector: its key, the hash of its index text, and that text, cut to what models read."""

    key: int
    sha256: bytes
    text: str


def unembedded(conn: Connection, namespace_id: int, keys: Sequence[int]) -> list[Unembedded]:
    """Those of the rows that still need a vector."""
    found = []
    for row in conn.execute(_UNEMBEDDED, {"ns": namespace_id, "keys": list(keys)}):
        key, sha, object_id, kind, title, summary, content, properties, parent_id, parent_title = row
        known = NewObject(object_id, kind, title, summary, content, "", properties, parent_id)
        found.append(Unembedded(int(key), bytes(sha), text_of(known, parent_title)[:_CHARS]))
    return found


def write(
    conn: Connection,
    namespace_id: int,
    rows: Sequence[tuple[int, bytes]],
    vectors: NDArray[np.float16],
    model: str,
) -> int:
    """Write vectors to the rows whose text is still the one they were made from; returns how many.

    Args: rows: row key and hash of the index text; vectors: shape (n, dimension), of unit length, row by row.
    """
    if not rows:
        return 0
    values = {
        **_values(namespace_id, rows),
        "vectors": [HalfVector(vector).to_text() for vector in vectors],
        "model": model,
        "dimension": int(vectors.shape[1]),
    }
    return conn.execute(_WRITE, values).rowcount


def set_state(conn: Connection, namespace_id: int, rows: Sequence[tuple[int, bytes]], state: str) -> int:
    """Note that rows get no vector for now: `failed` when a model refused them, `none` when there is no model."""
    if not rows:
        return 0
    return conn.execute(_SET_STATE, {**_values(namespace_id, rows), "state": state}).rowcount


def _values(namespace_id: int, rows: Sequence[tuple[int, bytes]]) -> dict[str, object]:
    return {"ns": namespace_id, "keys": [key for key, _ in rows], "hashes": [sha for _, sha in rows]}
