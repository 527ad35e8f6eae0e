"""Fixed floors: the least that does the same work with bare tools. None of them runs a query or a script of the product.

Each floor stands on data of its own and is called in turns with what it is compared to.
"""

from __future__ import annotations

import json
import os
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

    Args: tails: for each namespace, JSON of what a reader gets of each record, in order.
    """

    def __init__(self, url: str, *tails: Sequence[str]) -> None:
        self._client = redis.Redis.from_url(url)
        self._read = self._client.register_script("return redis.call('ZRANGE', KEYS[1], -tonumber(ARGV[1]), -1)")
        for number, bodies in enumerate(tails):
            self._client.delete(f"floor:tail:{number}")
            self._client.zadd(f"floor:tail:{number}", {body: place for place, body in enumerate(bodies)})

    def bodies(self, count: int, which: int = 0) -> list[bytes]:
        """The newest bodies as bytes; nothing is parsed."""
        found: list[bytes] = self._read(keys=[f"floor:tail:{which}"], args=[count])
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
    SELECT %s, %s, u.id, u.content, sha256(u.content::bytea), 'user', 0.5, 3, 0, now(), now(), length(u.content)
    FROM unnest(%s::text[], %s::text[]) AS u (id, content)"""

    def __init__(self, conn: Bare, *, owners: Sequence[tuple[int, int]] = ()) -> None:
        """Args: owners: namespace and bank ids of `floor_records` that is there already, whose turn it is in order."""
        self._conn = conn
        self._next = 0
        self._owners = owners or [(1, 1)]
        if not owners:
            conn.execute("CREATE TABLE floor_records (LIKE tier_records INCLUDING ALL)")

    def insert(self, contents: Sequence[str]) -> None:
        """One statement, one commit."""
        self._next += 1
        ids = [f"f{self._next}-{n}" for n in range(len(contents))]
        self._conn.execute(self._INSERT, (*self._owners[self._next % len(self._owners)], ids, list(contents)))


def primary_key(postings: Postings, docs: Sequence[int], times: int) -> list[float]:
    """Seconds of fetching ten rows by primary key."""
    return [timed(lambda: postings.fetch(docs[:10])) for _ in range(times)]
