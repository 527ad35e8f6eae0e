"""Fixed floors of the knowledge base: what its legs cost with bare tools, and finished rows into copies of its tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
from brain_corpus import Built, copy_bytes, posting_rows
from corpus import word
from floors import BM25
from numpy.typing import NDArray
from pgvector import HalfVector

Bare = psycopg.Connection[Any]

_TABLES = """
CREATE TABLE floor_postings (space bigint, term bigint, doc bigint, tf integer, len integer,
                             PRIMARY KEY (space, term, doc) INCLUDE (tf, len));
CREATE TABLE floor_words (word text PRIMARY KEY, term integer NOT NULL);
CREATE TABLE floor_terms (space integer, term integer, df bigint NOT NULL, PRIMARY KEY (space, term) INCLUDE (df));
CREATE TABLE floor_docs (doc bigint PRIMARY KEY, body text NOT NULL);
CREATE TABLE floor_vectors (doc bigint PRIMARY KEY, vector halfvec(384) NOT NULL);
ALTER TABLE floor_vectors ALTER COLUMN vector SET STORAGE PLAIN"""
_FILL = """
INSERT INTO floor_terms SELECT space, term, count(*) FROM floor_postings GROUP BY space, term;
INSERT INTO floor_docs SELECT key, content FROM brain_objects;
INSERT INTO floor_vectors SELECT key, vector FROM brain_objects;
SET maintenance_work_mem = '1GB';
CREATE INDEX ON floor_vectors USING hnsw (vector halfvec_cosine_ops);
VACUUM (ANALYZE) floor_postings, floor_words, floor_terms, floor_docs, floor_vectors"""
_NEAREST = "SELECT doc FROM floor_vectors ORDER BY vector <=> %s::halfvec(384) LIMIT 40"
_FETCH = "SELECT doc, body FROM floor_docs WHERE doc = ANY(%s)"


class Legs:
    """BM25 over a postings table, the nearest vectors by HNSW, and ten rows by key, one after the other."""

    def __init__(self, conn: Bare, built: Built) -> None:
        self._conn = conn
        self._docs = len(built.keys)
        self._length = float(np.mean([len(ranks) for ranks in built.texts.ranks]))
        if conn.execute("SELECT to_regclass('floor_vectors')").fetchone() == (None,):
            self._load(built)
        conn.execute("SET random_page_cost = 1.1")  # all is in memory; else small tables are read whole for each word
        conn.execute("SET hnsw.ef_search = 100")

    def _load(self, built: Built) -> None:
        for statement in _TABLES.split(";"):
            self._conn.execute(statement)
        ranks, keys, counts, lengths = built.postings
        copy_bytes(self._conn, "floor_postings", posting_rows(0, ranks, keys, counts, lengths))
        with self._conn.cursor().copy("COPY floor_words FROM STDIN") as copy:
            for rank in np.unique(ranks).tolist():
                copy.write_row((word(rank), rank))
        for statement in _FILL.split(";"):
            self._conn.execute(statement)

    def bm25(self, query: str) -> list[int]:
        """The best 40 rows by words."""
        values = {"words": query.lower().split(), "space": 0, "docs": self._docs, "length": self._length}
        return [int(row[0]) for row in self._conn.execute(BM25, values).fetchall()]

    def nearest(self, vector: NDArray[np.float32]) -> list[int]:
        """The nearest 40 rows by the index."""
        literal = HalfVector(vector).to_text()
        return [int(row[0]) for row in self._conn.execute(_NEAREST, (literal,)).fetchall()]

    def all(self, query: str, vector: NDArray[np.float32]) -> None:
        """Both, and the first ten rows."""
        self.fetch((self.bm25(query) + self.nearest(vector))[:10])

    def fetch(self, found: list[int]) -> None:
        """Rows by key."""
        self._conn.execute(_FETCH, (found,)).fetchall()


class RawInserts:
    """Finished rows, words, statistics, vectors and nodes of the graph into copies of the tables, all indexes live."""

    _OBJECTS = """
    INSERT INTO raw_objects (namespace_id, bank_id, id, kind, title, summary, content, content_type, properties, parent_id,
        position, index_sha256, terms, length, vector, vector_model, vector_dim, vector_state, created_at, updated_at)
    SELECT 1, 1, u.id, 'part', '', '', u.content, '', '{}', NULL, NULL, sha256(u.content::bytea), u.terms::bigint[], u.length,
           u.vector::halfvec, 'floor', 384, 'done', now(), now()
    FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::integer[], %s::text[]) AS u (id, content, terms, length, vector)
    RETURNING key"""
    _WORDS = """
    INSERT INTO raw_postings (namespace_id, term, object_key, tf, length)
    SELECT 1, u.term, %s + u.at, u.tf, 60 FROM unnest(%s::bigint[], %s::bigint[], %s::integer[]) AS u (term, at, tf)
    ORDER BY 2, 3"""
    _NODES = """
    INSERT INTO raw_nodes (namespace, id, revision, kind, title, terms, counts, length, vector, vector_model, deleted)
    SELECT '00000000-0000-0000-0000-000000000001', u.id, 2, 'part', '', u.terms::bigint[], u.counts::integer[], 60,
           u.vector::halfvec, CASE WHEN u.vector IS NOT NULL THEN 'floor' END, false
    FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[]) AS u (id, terms, counts, vector)
    ON CONFLICT (namespace, id) DO UPDATE SET revision = excluded.revision WHERE raw_nodes.revision < excluded.revision"""

    def __init__(self, conn: Bare) -> None:
        self._conn = conn
        for name, source in (("objects", "brain_objects"), ("postings", "brain_postings"), ("nodes", "graph_nodes")):
            conn.execute(f"CREATE TABLE IF NOT EXISTS raw_{name} (LIKE {source} INCLUDING ALL)")

    def rows(self, rows: Sequence[Row], batch: int, *, nodes: bool) -> float:
        """Seconds to insert rows, a commit for each batch; with what is mirrored of them, if wanted."""
        prepared = [_columns(rows[at : at + batch]) for at in range(0, len(rows), batch)]
        begun = time.perf_counter()
        for ids, contents, terms, counts, lengths, vectors, words in prepared:
            with self._conn.transaction():
                found = self._conn.execute(self._OBJECTS, (ids, contents, terms, lengths, vectors)).fetchall()
                self._conn.execute(self._WORDS, (found[0][0], *words))
                if nodes:
                    self._conn.execute(self._NODES, (ids, terms, counts, vectors))
        return time.perf_counter() - begun

    def nodes(self, rows: Sequence[Row], batch: int) -> float:
        """Seconds to upsert the nodes of rows alone."""
        prepared = [_columns(rows[at : at + batch]) for at in range(0, len(rows), batch)]
        begun = time.perf_counter()
        for ids, _, terms, counts, _, vectors, _ in prepared:
            with self._conn.transaction():
                self._conn.execute(self._NODES, (ids, terms, counts, vectors))
        return time.perf_counter() - begun


class Row:
    """A finished row: everything the product has to find out is known beforehand.

    Args: object_id: of the row; content: its text; counts: of its terms; vector: shape (384,), None for none.
    """

    __slots__ = ("content", "counts", "object_id", "vector")

    def __init__(
        self, object_id: UUID, content: str, counts: dict[int, int], vector: NDArray[np.float32] | None
    ) -> None:
        self.object_id, self.content, self.counts = object_id, content, dict(sorted(counts.items()))
        self.vector = None if vector is None else HalfVector(vector).to_text()


def _columns(rows: Sequence[Row]) -> tuple[Any, ...]:
    words = [(term, at, tf) for at, row in enumerate(rows) for term, tf in row.counts.items()]
    terms, places, tfs = (list(column) for column in zip(*words, strict=True))
    return (
        [row.object_id for row in rows],
        [row.content for row in rows],
        [f"{{{','.join(map(str, row.counts))}}}" for row in rows],
        [f"{{{','.join(map(str, row.counts.values()))}}}" for row in rows],
        [sum(row.counts.values()) for row in rows],
        [row.vector for row in rows],
        (terms, places, tfs),
    )
