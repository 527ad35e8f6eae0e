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
_ANSWERS = "SELECT key, answer FROM interest_answers WHERE bank_id = %(bank)s AND key = ANY(%(keys)s)"
_KEEP_ANSWERS = f"""
INSERT INTO interest_answers (bank_id, key, answer)
SELECT b.id, u.key, u.answer FROM banks AS b, unnest(%(keys)s::bytea[], %(answers)s::jsonb[]) AS u (key, answer)
WHERE {_SINCE} ON CONFLICT DO NOTHING"""
_PURGE = """
DELETE FROM {table} WHERE (bank_id, key) IN (
    SELECT bank_id, key FROM {table} WHERE created_at < now() - %(keep)s ORDER BY created_at LIMIT %(limit)s)"""


def erasures(conn: Connection, bank_id: int) -> int:
    """How often something of a bank was erased; taken before what a model is asked about is read."""
    row = conn.execute("SELECT erasures FROM banks WHERE id = %s", (bank_id,)).fetchone()
    return -1 if row is None else int(row[0])


def answers(conn: Connection, bank_id: int, keys: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
    """What a model answered to questions, by key, without those that nobody asked it."""
    rows = conn.execute(_ANSWERS, {"bank": bank_id, "keys": list(keys)}).fetchall()
    return {bytes(key): dict(found) for key, found in rows}


def keep_answers(conn: Connection, bank_id: int, said: Mapping[bytes, Mapping[str, Any]], erasures: int) -> None:
    """Keep answers by key; the first ones stay, and none when something was erased since the count of erasures was taken."""
    keys = sorted(said)
    values = {"bank": bank_id, "keys": keys, "answers": [Jsonb(dict(said[key])) for key in keys], "erasures": erasures}
    conn.execute(_KEEP_ANSWERS, values)


def vectors(conn: Connection, bank_id: int, keys: Sequence[bytes]) -> dict[bytes, Vector]:
    """Vectors that are known, by key."""
    rows = conn.execute(_VECTORS, {"bank": bank_id, "keys": list(keys)}).fetchall()
    return {bytes(key): np.frombuffer(bytes(raw), dtype="<f4").astype(np.float32) for key, raw in rows}


def keep_vectors(conn: Connection, bank_id: int, found: Mapping[bytes, Vector], erasures: int) -> None:
    """Keep vectors by key, as `keep_answers` does."""
    packed = {key: np.asarray(found[key], dtype="<f4").tobytes() for key in sorted(found)}
    values = {"bank": bank_id, "keys": list(packed), "vectors": list(packed.values()), "erasures": erasures}
    conn.execute(_KEEP_VECTORS, values)


def purge(conn: Connection, *, keep: timedelta, limit: int) -> int:
    """Delete copies that are older than `keep`; returns how many."""
    values = {"keep": keep, "limit": limit}
    return sum(
        conn.execute(_PURGE.format(table=table), values).rowcount for table in ("interest_answers", "interest_vectors")
    )
