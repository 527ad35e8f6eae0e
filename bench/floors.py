"""Fixed floors: the least that does the same work with bare tools. None of them runs a query or a script of the product.

Each floor stands on data of its own and is called in turns with what it is compared to.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import psycopg
import redis
from arena import Arena
from corpus import Corpus, word
from measure import repeated, timed

Bare = psycopg.Connection[Any]

K1, B = 0.9, 0.4
RAREST = 5_000  # postings from which candidates may come
WHOLE = 0  # the space of all documents; space s + 1 is session s

_POSTINGS = """
CREATE TABLE floor_postings (space integer, term integer, doc bigint, tf real, len real,
                             PRIMARY KEY (space, term, doc) INCLUDE (tf, len));
CREATE TABLE floor_words (word text PRIMARY KEY, term integer NOT NULL);
CREATE TABLE floor_terms (space integer, term integer, df bigint NOT NULL, PRIMARY KEY (space, term) INCLUDE (df));
CREATE TABLE floor_docs (doc bigint PRIMARY KEY, body text NOT NULL)"""

# Row 3 of the measurement this floor repeats: candidates only from the rarest words up to RAREST postings (the rarest
# word always), and every word scored for those candidates. The candidates go into the index condition as one sorted
# array for each word; joins of the two sets took two to fifty times as long.
BM25 = f"""
WITH q AS MATERIALIZED (
    SELECT t.term, t.df, sum(t.df) OVER (ORDER BY t.df, t.term) AS upto,
           ln(1 + (%(docs)s::float8 - t.df + 0.5) / (t.df + 0.5)) AS idf
    FROM floor_words AS w JOIN floor_terms AS t ON t.space = %(space)s AND t.term = w.term
    WHERE w.word = ANY(%(words)s)
), candidates AS MATERIALIZED (
    SELECT array_agg(DISTINCT x.doc) AS docs FROM (SELECT term FROM q WHERE upto <= {RAREST} OR upto = df) AS rare
    CROSS JOIN LATERAL (
        SELECT p.doc FROM floor_postings AS p WHERE p.space = %(space)s AND p.term = rare.term
        ORDER BY p.doc DESC LIMIT {RAREST}) AS x
)
SELECT p.doc, sum(q.idf * p.tf * ({K1} + 1) / (p.tf + {K1} * (1 - {B} + {B} * p.len / %(length)s::float8))) AS score
FROM q CROSS JOIN LATERAL (
    SELECT x.doc, x.tf, x.len FROM floor_postings AS x
    WHERE x.space = %(space)s AND x.term = q.term AND x.doc = ANY((SELECT docs FROM candidates)::bigint[])
) AS p
GROUP BY p.doc ORDER BY score DESC, p.doc LIMIT 40"""  # noqa: S608 - joined from constants

_FETCH = "SELECT doc, body FROM floor_docs WHERE doc = ANY(%s)"


class Postings:
    """BM25 over a postings table in one SQL, and a primary-key fetch of ten rows, on a bare connection."""

    def __init__(self, conn: Bare, corpus: Corpus, sessions: int) -> None:
        self._conn = conn
        self._docs = len(corpus.ranks)
        self._sessions = sessions
        self._length = float(np.mean([len(ranks) for ranks in corpus.ranks]))
        conn.execute(_POSTINGS)
        self._load(corpus)
        conn.execute("VACUUM (ANALYZE) floor_postings, floor_words, floor_terms, floor_docs")
        conn.execute("SET random_page_cost = 1.1")  # all is in memory; else small tables are read whole for each word

    def bm25(self, query: str, *, space: int = WHOLE) -> list[int]:
        """The best 40 documents for a query, best first."""
        values = {
            "words": query.lower().split(),
            "space": space,
            "docs": self._docs if space == WHOLE else self._docs // self._sessions,
            "length": self._length,
        }
        return [int(row[0]) for row in self._conn.execute(BM25, values).fetchall()]

    def fetch(self, docs: Sequence[int]) -> list[Any]:
        """Ten rows by primary key."""
        return self._conn.execute(_FETCH, (list(docs),)).fetchall()

    def both(self, query: str, *, space: int = WHOLE) -> None:
        """One after the other: what a recall cannot do without."""
        self.fetch(self.bm25(query, space=space)[:10])

    def _load(self, corpus: Corpus) -> None:
        used = sorted({int(rank) for ranks in corpus.ranks for rank in np.unique(ranks)})
        _copy(self._conn, "floor_words", ((word(rank), rank) for rank in used))
        _copy(self._conn, "floor_docs", ((n, corpus.text(n)) for n in range(self._docs)))
        _copy(self._conn, "floor_postings", self._rows(corpus))
        self._conn.execute(
            "INSERT INTO floor_terms SELECT space, term, count(*) FROM floor_postings GROUP BY space, term"
        )

    def _rows(self, corpus: Corpus) -> Iterable[tuple[Any, ...]]:
        for number, ranks in enumerate(corpus.ranks):
            terms, counts = np.unique(ranks, return_counts=True)
            for space in (WHOLE, 1 + number % self._sessions):
                for term, count in zip(terms.tolist(), counts.tolist(), strict=True):
                    yield space, term, number, count, len(ranks)


def _copy(conn: Bare, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    with conn.cursor().copy(f"COPY {table} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


class Script:
    """One Redis script that returns the bodies of a sorted set, through bare redis-py: one round trip, bytes as they come.

    Args: bodies: JSON of what a reader gets of each record, in order.
    """

    def __init__(self, url: str, bodies: Sequence[str]) -> None:
        self._client = redis.Redis.from_url(url)
        self._read = self._client.register_script("return redis.call('ZRANGE', KEYS[1], -tonumber(ARGV[1]), -1)")
        self._client.delete("floor:tail")
        self._client.zadd("floor:tail", {body: place for place, body in enumerate(bodies)})

    def bodies(self, count: int) -> list[bytes]:
        """The newest bodies as bytes; nothing is parsed."""
        found: list[bytes] = self._read(keys=["floor:tail"], args=[count])
        return found

    def parsed(self, count: int) -> list[Any]:
        """The same, with a `json.loads` of each body and nothing built from it."""
        return [json.loads(body) for body in self.bodies(count)]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class Noop:
    """A bare Celery application: publishing by `send_task`, and tasks that do nothing."""

    def __init__(self, ground: Arena) -> None:
        os.environ["BENCH_BROKER"] = ground.endpoints.broker_url
        self._module = _noop_module()
        self._client = ground.client

    @property
    def queue(self) -> str:
        """Its queue, which no other worker listens to."""
        return str(self._module.QUEUE)

    @property
    def app(self) -> Any:  # noqa: ANN401 - celery ships no types
        """The application."""
        return self._module.app

    def send(self) -> None:
        """Publish one message: no result, no events, no database."""
        self.app.send_task("bench.noop", ignore_result=True)

    def round_trip(self) -> None:
        """Publish, run, and read the answer from the result backend."""
        self.app.send_task("bench.echo", ignore_result=False).get(timeout=20, interval=0.001)

    def idle(self) -> bool:
        """Whether no message waits or is being worked on."""
        return self._client.llen(self.queue) == 0 and self._client.hlen("unacked") == 0


def _noop_module() -> ModuleType:
    import noop_app  # noqa: PLC0415 - reads the broker's address when it is imported

    return noop_app


def select_one(conn: Bare, times: int) -> list[float]:
    """`SELECT 1`, prepared: the least a round trip costs."""
    return repeated(lambda: conn.execute("SELECT 1").fetchone(), times)


class Inserts:
    """Multi-row INSERT of finished rows into a copy of the product's table, with all of its live indexes."""

    _INSERT = """
    INSERT INTO floor_records (namespace_id, bank_id, id, content, content_sha256, role, importance, tier, value_log,
                               created_at, last_access_at, size_bytes)
    SELECT 1, 1, u.id, u.content, sha256(u.content::bytea), 'user', 0.5, 3, 0, now(), now(), length(u.content)
    FROM unnest(%s::text[], %s::text[]) AS u (id, content)"""

    _COPY = """
    INSERT INTO floor_records OVERRIDING SYSTEM VALUE SELECT * FROM tier_records;
    SELECT setval(pg_get_serial_sequence('floor_records', 'key'), (SELECT max(key) FROM floor_records));
    ANALYZE floor_records"""

    def __init__(self, conn: Bare, *, filled: bool = False) -> None:
        """Args: filled: the copy has the product's rows too, so that its indexes are as deep."""
        self._conn = conn
        self._next = 0
        conn.execute("CREATE TABLE floor_records (LIKE tier_records INCLUDING ALL)")
        if filled:
            conn.execute(self._COPY)

    def insert(self, contents: Sequence[str]) -> None:
        """One statement, one commit."""
        self._next += 1
        self._conn.execute(self._INSERT, ([f"f{self._next}-{n}" for n in range(len(contents))], list(contents)))


class Updates:
    """A bare UPDATE of given rows of the product's table: what a change of tier costs without anything around it."""

    def __init__(self, conn: Bare) -> None:
        self._conn = conn

    def shift(self, keys: Sequence[int], source: int, target: int, batch: int) -> float:
        """Seconds to move rows from one tier to another, a commit for each batch."""
        sql = """UPDATE tier_records SET tier = %s, version = version + 1, moved_at = now(), moved_from = %s
                 WHERE key = ANY(%s)"""
        begun = time.perf_counter()
        for at in range(0, len(keys), batch):
            self._conn.execute(sql, (target, source, list(keys[at : at + batch])))
        return time.perf_counter() - begun


def primary_key(postings: Postings, docs: Sequence[int], times: int) -> list[float]:
    """Seconds of fetching ten rows by primary key."""
    return [timed(lambda: postings.fetch(docs[:10])) for _ in range(times)]


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
