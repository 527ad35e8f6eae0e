"""Fixed floors of tiers: moved rows, the specification's loop, and finished rows with words and vectors."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from floors import Bare


class Copies:
    """The product's records and their words in tables of their own: the same rows under the same indexes, nothing else.

    No trigger counts them and no other table refers to them, so that a statement on them costs what it costs by itself.
    """

    _TABLES = (("floor_records", "tier_records"), ("floor_postings", "tier_postings"), ("floor_words", "cold_words"))
    _SEQUENCE = """
    SELECT setval(pg_get_serial_sequence('floor_records', 'key'), (SELECT coalesce(max(key), 1) FROM floor_records))"""
    _WEAKEST = """
    SELECT key FROM floor_records WHERE namespace_id = %s AND tier = %s ORDER BY value_log, last_access_at LIMIT %s"""
    _LOWER = """
    UPDATE floor_records SET tier = 2, version = version + 1, moved_at = now(), moved_from = tier WHERE key = ANY(%s)"""
    _ARCHIVE = """
    UPDATE floor_records SET tier = 1, summary = content, content = NULL, terms = '{}', version = version + 1,
        moved_at = now(), moved_from = tier WHERE key = ANY(%s)"""
    _PAIRS = """
    SELECT r.bank_id, u.term, r.namespace_id, r.key FROM floor_records AS r, unnest(r.terms) AS u (term)
    WHERE r.key = ANY(%s) ORDER BY 1, 2, 3, 4"""
    _DELETE = """
    DELETE FROM floor_postings AS p USING unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS d (b, t, n, k)
    WHERE (p.bank_id, p.term, p.namespace_id, p.record_key) = (d.b, d.t, d.n, d.k)"""
    _INSERT = """
    INSERT INTO floor_words SELECT d.k, d.b, d.n, -d.n || array_agg(d.b << 32 | (d.t & 4294967295))
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS d (b, t, n, k) GROUP BY d.k, d.b, d.n"""

    def __init__(self, conn: Bare) -> None:
        self._conn = conn
        for name, source in self._TABLES:
            conn.execute(f"CREATE TABLE {name} (LIKE {source} INCLUDING ALL)")
            conn.execute(f"INSERT INTO {name} OVERRIDING SYSTEM VALUE SELECT * FROM {source}")  # noqa: S608
            conn.execute(f"VACUUM (ANALYZE) {name}")
        conn.execute(self._SEQUENCE)

    def weakest(self, namespace_id: int, tier: int, count: int) -> list[int]:
        """Keys of the records that a pass would move first."""
        return [int(row[0]) for row in self._conn.execute(self._WEAKEST, (namespace_id, tier, count)).fetchall()]

    def lower(self, batches: Sequence[Sequence[int]]) -> float:
        """Seconds of a bare UPDATE of each batch from hot to warm, a commit for each."""
        return self._run(self._LOWER, batches)

    def archive(self, batches: Sequence[Sequence[int]]) -> tuple[float, float]:
        """Seconds of a bare UPDATE of each batch from warm to cold, and of writing the same rows' words again besides."""
        pairs = [
            tuple(map(list, zip(*self._conn.execute(self._PAIRS, (list(keys),)).fetchall(), strict=True)))
            for keys in batches
        ]
        seconds = self._run(self._ARCHIVE, batches)
        with self._conn.transaction():  # of its own, whose commit is left out: it would be that of the UPDATE
            begun = time.perf_counter()
            for each in filter(None, pairs):
                self._conn.execute(self._DELETE, each)
                self._conn.execute(self._INSERT, each)
            words = time.perf_counter() - begun
        return seconds, words

    def _run(self, sql: str, batches: Sequence[Sequence[int]]) -> float:
        begun = time.perf_counter()
        for keys in batches:
            self._conn.execute(sql, (list(keys),))
        return time.perf_counter() - begun


def in_batches(keys: Sequence[int], size: int) -> list[Sequence[int]]:
    """Keys by so many."""
    return [keys[at : at + size] for at in range(0, len(keys), size)]


class SpecLoop:
    """The specification's pass on its own PostgreSQL layout: for each record three counts, then the record is put back."""

    _LAYOUT = """
    CREATE TABLE floor_spec (namespace_key text, record_id text, tier text NOT NULL, last_access_at timestamptz NOT NULL,
                             record_json jsonb NOT NULL, PRIMARY KEY (namespace_key, record_id));
    CREATE INDEX floor_spec_list ON floor_spec (namespace_key, tier, last_access_at DESC)"""
    _LOAD = """
    INSERT INTO floor_spec SELECT 'session:s0::bench', id, 'hot', last_access_at, jsonb_build_object('id', id, 'content',
        coalesce(content, summary), 'importance', importance, 'access_count', access_count)
    FROM tier_records WHERE namespace_id = %s"""
    _COUNT = "SELECT count(*) FROM floor_spec WHERE namespace_key = %s AND tier = %s"
    _LIST = (
        "SELECT record_id, record_json FROM floor_spec WHERE namespace_key = %s ORDER BY last_access_at DESC LIMIT %s"
    )
    _PUT = """
    INSERT INTO floor_spec VALUES (%s, %s, 'hot', now(), %s::jsonb) ON CONFLICT (namespace_key, record_id)
    DO UPDATE SET tier = excluded.tier, last_access_at = excluded.last_access_at, record_json = excluded.record_json"""

    def __init__(self, conn: Bare) -> None:
        self._conn = conn
        conn.execute(self._LAYOUT)

    def load(self, namespace_id: int) -> None:
        """Copy the records of a namespace into the specification's table."""
        self._conn.execute(self._LOAD, (namespace_id,))
        self._conn.execute("VACUUM (ANALYZE) floor_spec")

    def run(self, records: int) -> float:
        """Seconds per record of the loop over the first so many records."""
        name = "session:s0::bench"
        found = self._conn.execute(self._LIST, (name, records)).fetchall()
        begun = time.perf_counter()
        for record_id, body in found:
            for tier in ("hot", "warm", "cold"):
                self._conn.execute(self._COUNT, (name, tier)).fetchone()
            self._conn.execute(self._PUT, (name, record_id, json.dumps(body)))
        return (time.perf_counter() - begun) / len(found)


class LiveInserts:
    """Finished rows, their words and their vectors into copies of the product's tables, with all of their live indexes."""

    _RECORDS = """
    INSERT INTO live_records (namespace_id, bank_id, id, content, content_sha256, role, importance, tier, value_log, created_at,
                              last_access_at, size_bytes, indexed, vector_state)
    SELECT 1, 1, u.id, u.content, sha256(u.content::bytea), 'user', 0.5, 3, 0, now(), now(), length(u.content), true, 'done'
    FROM unnest(%s::text[], %s::text[]) AS u (id, content)"""
    _WORDS = """
    INSERT INTO live_postings (bank_id, term, record_key, namespace_id)
    SELECT 1, u.term, u.key, 1 FROM unnest(%s::bigint[], %s::bigint[]) AS u (term, key)"""
    _VECTORS = """
    INSERT INTO live_vectors (record_key, bank_id, namespace_id, model, dim, vector)
    SELECT u.key, 1, 1, 'floor', 384, u.vector::halfvec FROM unnest(%s::bigint[], %s::text[]) AS u (key, vector)"""

    def __init__(self, conn: Bare) -> None:
        self._conn = conn
        self._next = 0
        for name, source in (("records", "tier_records"), ("postings", "tier_postings"), ("vectors", "tier_vectors")):
            conn.execute(f"CREATE TABLE live_{name} (LIKE {source} INCLUDING ALL)")

    def run(self, texts: Sequence[str], vectors: Any, batch: int) -> float:  # noqa: ANN401 - an embedder
        """Seconds to insert texts, a commit for each batch; splitting and embedding are done beforehand."""
        prepared = [self._prepared(texts[at : at + batch], vectors) for at in range(0, len(texts), batch)]
        begun = time.perf_counter()
        for records, words, rows in prepared:
            with self._conn.transaction():
                self._conn.execute(self._RECORDS, records)
                self._conn.execute(self._WORDS, words)
                self._conn.execute(self._VECTORS, rows)
        return time.perf_counter() - begun

    def _prepared(self, texts: Sequence[str], vectors: Any) -> tuple[tuple[list[Any], list[Any]], ...]:  # noqa: ANN401
        keys = list(range(self._next, self._next + len(texts)))
        self._next += len(texts)
        pairs = [
            (hash(w), key) for key, text in zip(keys, texts, strict=True) for w in sorted(set(text.lower().split()))
        ]
        literals = [f"[{','.join(f'{x:.6g}' for x in row)}]" for row in vectors.embed(texts)]
        return (
            ([f"i{key}" for key in keys], list(texts)),
            ([term for term, _ in pairs], [key for _, key in pairs]),
            (keys, literals),
        )
