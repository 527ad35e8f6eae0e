"""Stored points near given vectors: small banks are compared whole, large ones by their index, a batch in each statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.interest.candidates import Vector
from isotherm.storage.postgres.pool import Connection

# Banks of up to so many vectors are compared whole: reading that many takes as long as some 50 searches of the index, and
# `interest_index` puts only larger ones into it.
EXACT = 20_000
# Lengths of vectors that have an index; a bank of another length is compared whole, however large.
INDEXED = frozenset({384, 768, 1024, 1536})
# Rows read at a time, and points searched for in one statement; together with the points asked about they bound the memory.
_READ = 10_000
_TOGETHER = 100

_OF_MODEL = "p.bank_id = %(bank)s AND p.embedding_model = %(model)s AND p.embedding_dim = {dimension}"
_IS_INDEXED = "SELECT indexed FROM interest_banks WHERE bank_id = %(bank)s"
_EVERY = f"""
SELECT p.id, halfvec_send(p.embedding) FROM interest_points AS p
WHERE {_OF_MODEL.format(dimension="%(dimension)s")} AND p.id > %(after)s ORDER BY p.id LIMIT %(read)s"""
_NEAR = f"""
SELECT q.place, n.id, 1 - n.distance
FROM unnest(%(vectors)s::text[]) WITH ORDINALITY AS q (vec, place) CROSS JOIN LATERAL (
    SELECT p.id, p.embedding::halfvec({{dimension}}) <=> q.vec::halfvec({{dimension}}) AS distance
    FROM interest_points AS p WHERE {_OF_MODEL} AND p.indexed ORDER BY distance LIMIT %(limit)s) AS n
ORDER BY q.place, n.distance, n.id"""

# The index goes on until enough of what it proposes is of the bank, within bounds. The planner must not read all of the
# bank instead.
_ITERATE = """
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '100', true),
       set_config('hnsw.max_scan_tuples', '40000', true), set_config('enable_sort', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)"""
_ITERATED = """
SELECT set_config('enable_sort', 'on', true), set_config('enable_bitmapscan', 'on', true)"""

Ids = NDArray[np.object_]
_HEADER = 4  # bytes before the numbers of a sent vector

Neighbor = tuple[UUID, float]


def nearest(
    conn: Connection, bank_id: int, vectors: Sequence[Vector | None], model: str, limit: int
) -> list[list[Neighbor]]:
    """The nearest points of a bank for each vector, as (id, cosine), nearest first; those that are archived have no vector.

    Args: vectors: of equal length; one that is missing has no neighbors; model: only vectors of this stamp are compared.
    Cost: banks of up to 20,000 points are read once whatever the number of vectors; of larger ones the index is asked once
        for each vector, and may miss some neighbors. Memory is bounded by a batch of rows.
    """
    rows = [row for row, vec in enumerate(vectors) if vec is not None]
    found: list[list[Neighbor]] = [[] for _ in vectors]
    if not rows:
        return found
    asked = np.stack([np.asarray(vectors[row], dtype=np.float32) for row in rows])
    lengths = np.linalg.norm(asked, axis=1, keepdims=True)
    asked = np.divide(asked, lengths, out=np.zeros_like(asked), where=lengths > 0)
    values = {"bank": bank_id, "model": model, "dimension": asked.shape[1], "limit": limit}
    if asked.shape[1] in INDEXED and _is_indexed(conn, values):
        near = _indexed(conn, asked, values)
    else:
        near = _compared(conn, asked, values, limit)
    for row, neighbors in zip(rows, near, strict=True):
        found[row] = neighbors
    return found


def written(vec: Vector | None) -> str:
    """A vector as the server reads it; blank for none."""
    return "" if vec is None else "[" + ",".join(f"{x:.6g}" for x in vec.tolist()) + "]"


def sent(raw: bytes | memoryview) -> Vector:
    """A vector as the server sends it, in half precision."""
    return np.frombuffer(raw, dtype=">f2", offset=_HEADER).astype(np.float32)


def _is_indexed(conn: Connection, values: dict[str, object]) -> bool:
    row = conn.execute(_IS_INDEXED, values).fetchone()
    return row is not None and bool(row[0])


def _indexed(conn: Connection, asked: NDArray[np.float32], values: dict[str, object]) -> Iterator[list[Neighbor]]:
    sql = _NEAR.format(dimension=asked.shape[1])
    conn.execute(_ITERATE)
    for start in range(0, len(asked), _TOGETHER):
        some = asked[start : start + _TOGETHER]
        near: list[list[Neighbor]] = [[] for _ in some]
        for place, point, cosine in conn.execute(sql, {**values, "vectors": [written(vec) for vec in some]}):
            near[int(place) - 1].append((point, float(cosine)))
        yield from near
    conn.execute(_ITERATED)


def _compared(
    conn: Connection, asked: NDArray[np.float32], values: dict[str, object], limit: int
) -> Iterator[list[Neighbor]]:
    """The best of each batch of rows beside the best of those before it."""
    ids: Ids = np.empty((len(asked), 0), dtype=object)
    scores = np.empty((len(asked), 0), dtype=np.float32)
    for names, matrix in every(conn, values):
        ids = np.concatenate([ids, np.broadcast_to(names, (len(asked), len(names)))], axis=1)
        scores = np.concatenate([scores, asked @ matrix.T], axis=1)
        if scores.shape[1] > limit:
            best = np.argpartition(-scores, limit - 1, axis=1)[:, :limit]
            ids, scores = np.take_along_axis(ids, best, axis=1), np.take_along_axis(scores, best, axis=1)
    for names, near in zip(ids, scores, strict=True):
        yield sorted(((n, float(s)) for n, s in zip(names, near, strict=True)), key=lambda one: (-one[1], one[0]))


def every(conn: Connection, values: dict[str, object]) -> Iterator[tuple[Ids, NDArray[np.float32]]]:
    """Ids and vectors of a bank and a model, some rows at a time; vectors of shape (rows, dimension), of unit length.

    Args: values: bank, model and dimension.
    """
    after = UUID(int=0)
    while True:
        with conn.cursor(binary=True) as cursor:
            rows = cursor.execute(_EVERY, {**values, "after": after, "read": _READ}).fetchall()
        if not rows:
            return
        after = rows[-1][0]
        names = np.empty(len(rows), dtype=object)
        names[:] = [row[0] for row in rows]
        matrix = np.stack([sent(row[1]) for row in rows])
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        yield names, np.divide(matrix, lengths, out=np.zeros_like(matrix), where=lengths > 0)
