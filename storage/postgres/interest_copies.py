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
# An erasure counts first and deletes copies then: it waits for this one, or this one sees its count.
_SINCE = "b.id = %(bank)s AND b.erasures = %(erasures)s FOR SHARE OF b"
_KEEP_VECTORS = f"""
INSERT INTO interest_vectors (bank_id, key, vector)
SELECT b.id, u.key, u.vector FROM banks AS b, unnest(%(keys)s::bytea[], %(vectors)s::bytea[]) AS u (key, vector)
WHERE {_SINCE} ON CONFLICT DO NOTHING"""
_KEEP_ANSWER = f"""
INSERT INTO interest_answers (bank_id, key, answer)
SELECT b.id, %(key)s, %(answer)s FROM banks AS b WHERE {_SINCE} ON CONFLICT DO NOTHING"""
_PURGE = """
DELETE FROM {table} WHERE (bank_id, key) IN (
    SELECT bank_id, key FROM {table} WHERE created_at < now() - %(keep)s ORDER BY created_at LIMIT %(limit)s)"""


def erasures(conn: Connection, bank_id: int) -> int:
    """How often something of a bank was erased; taken before what a model is asked about is read."""
    row = conn.execute("SELECT erasures FROM banks WHERE id = %s", (bank_id,)).fetchone()
    return -1 if row is None else int(row[0])


def answer(conn: Connection, bank_id: int, key: bytes) -> dict[str, Any] | None:
    """What a model answered to a question, None when nobody asked it."""
    row = conn.execute("SELECT answer FROM interest_answers WHERE bank_id = %s AND key = %s", (bank_id, key)).fetchone()
    return None if row is None else dict(row[0])


def keep_answer(conn: Connection, bank_id: int, key: bytes, said: Mapping[str, Any], erasures: int) -> None:
    """Keep an answer; the first one stays, and none when something was erased since the count of erasures was taken."""
    conn.execute(_KEEP_ANSWER, {"bank": bank_id, "key": key, "answer": Jsonb(dict(said)), "erasures": erasures})


def vectors(conn: Connection, bank_id: int, keys: Sequence[bytes]) -> dict[bytes, Vector]:
    """Vectors that are known, by key."""
    rows = conn.execute(_VECTORS, {"bank": bank_id, "keys": list(keys)}).fetchall()
    return {bytes(key): np.frombuffer(bytes(raw), dtype="<f4").astype(np.float32) for key, raw in rows}


def keep_vectors(conn: Connection, bank_id: int, found: Mapping[bytes, Vector], erasures: int) -> None:
    """Keep vectors by key, as `keep_answer` does."""
    packed = {key: np.asarray(found[key], dtype="<f4").tobytes() for key in sorted(found)}
    values = {"bank": bank_id, "keys": list(packed), "vectors": list(packed.values()), "erasures": erasures}
    conn.execute(_KEEP_VECTORS, values)


def purge(conn: Connection, *, keep: timedelta, limit: int) -> int:
    """Delete copies that are older than `keep`; returns how many."""
    values = {"keep": keep, "limit": limit}
    return sum(
        conn.execute(_PURGE.format(table=table), values).rowcount for table in ("interest_answers", "interest_vectors")
    )
