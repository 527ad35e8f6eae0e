"""Copies of what models said, by what they were asked: answers of chat models, and vectors. Losing them costs money only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from psycopg.types.json import Jsonb

from isotherm.pipeline.interest.candidates import Vector
from isotherm.storage.postgres.pool import Connection

_VECTORS = "SELECT key, vector FROM interest_vectors WHERE bank_id = %(bank)s AND key = ANY(%(keys)s)"
_KEEP_VECTORS = """
INSERT INTO interest_vectors (bank_id, key, vector)
SELECT %(bank)s, u.key, u.vector FROM unnest(%(keys)s::bytea[], %(vectors)s::bytea[]) AS u (key, vector) ORDER BY u.key
ON CONFLICT DO NOTHING"""
_KEEP_ANSWER = """
INSERT INTO interest_answers (bank_id, key, answer) VALUES (%(bank)s, %(key)s, %(answer)s) ON CONFLICT DO NOTHING"""
_PURGE = """
DELETE FROM {table} WHERE (bank_id, key) IN (
    SELECT bank_id, key FROM {table} WHERE created_at < now() - %(keep)s ORDER BY created_at LIMIT %(limit)s)"""


def answer(conn: Connection, bank_id: int, key: bytes) -> dict[str, Any] | None:
    """What a model answered to a question, None when nobody asked it."""
    row = conn.execute("SELECT answer FROM interest_answers WHERE bank_id = %s AND key = %s", (bank_id, key)).fetchone()
    return None if row is None else dict(row[0])


def keep_answer(conn: Connection, bank_id: int, key: bytes, said: Mapping[str, Any]) -> None:
    """Keep an answer; the first one stays."""
    conn.execute(_KEEP_ANSWER, {"bank": bank_id, "key": key, "answer": Jsonb(dict(said))})


def vectors(conn: Connection, bank_id: int, keys: Sequence[bytes]) -> dict[bytes, Vector]:
    """Vectors that are known, by key."""
    rows = conn.execute(_VECTORS, {"bank": bank_id, "keys": list(keys)}).fetchall()
    return {bytes(key): np.frombuffer(bytes(raw), dtype="<f4").astype(np.float32) for key, raw in rows}


def keep_vectors(conn: Connection, bank_id: int, found: Mapping[bytes, Vector]) -> None:
    """Keep vectors by key."""
    packed = [np.asarray(v, dtype="<f4").tobytes() for v in found.values()]
    conn.execute(_KEEP_VECTORS, {"bank": bank_id, "keys": list(found), "vectors": packed})


def purge(conn: Connection, *, keep: timedelta, limit: int) -> int:
    """Delete copies that are older than `keep`; returns how many."""
    values = {"keep": keep, "limit": limit}
    return sum(
        conn.execute(_PURGE.format(table=table), values).rowcount for table in ("interest_answers", "interest_vectors")
    )
