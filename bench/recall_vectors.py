"""Recall with vectors: the same questions as the bench `recall`, by words and by what they are about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from arena import Arena
from brain_corpus import DIMENSION, STAMP, Given, made, unindexed
from corpus import Corpus, zipf
from floors import WHOLE, Bare, Postings
from measure import Line, alternate, timed
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.psycopg import register_vector
from reading import SESSIONS, ask, load, scopes

from isotherm.storage.models import factory

_NEAREST = 40
_FLOOR = """
CREATE TABLE floor_vectors (doc bigint PRIMARY KEY, vector halfvec(384) NOT NULL);
ALTER TABLE floor_vectors ALTER COLUMN vector SET STORAGE PLAIN"""
_FIND = "SELECT doc FROM floor_vectors ORDER BY vector <=> %s::halfvec(384) LIMIT %s"
_OURS = """
INSERT INTO tier_vectors (record_key, bank_id, namespace_id, model, dim, vector)
SELECT r.key, r.bank_id, r.namespace_id, %s, %s, f.vector
FROM floor_vectors AS f JOIN tier_records AS r ON r.id = 'd' || f.doc ORDER BY r.key"""


class Nearest:
    """Vectors by document under an index of their own, as pgvector has it."""

    def __init__(self, conn: Bare, corpus: Corpus) -> None:
        self._conn = conn
        register_vector(conn)
        for statement in _FLOOR.split(";"):
            conn.execute(statement)
        with conn.cursor().copy("COPY floor_vectors FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int8", "halfvec"])
            for row in _rows(corpus):
                copy.write_row(row)
        conn.execute("SET maintenance_work_mem = '1GB'")
        conn.execute(
            "CREATE INDEX ON floor_vectors USING hnsw (vector halfvec_cosine_ops) WITH (m = 16, ef_construction = 64)"
        )
        conn.execute("VACUUM (ANALYZE) floor_vectors")
        conn.execute("SET hnsw.ef_search = 100")

    def find(self, vector: NDArray[np.float32]) -> list[int]:
        """The nearest 40 documents."""
        given = (HalfVector(vector).to_text(), _NEAREST)
        return [int(row[0]) for row in self._conn.execute(_FIND, given).fetchall()]


def recall_vectors(ground: Arena, *, quick: bool) -> list[Line]:
    """A question of six words with its vector over a bank of 100,000 records and over one of its 50 sessions."""
    size, count, rounds = (2_000, 20, 3) if quick else (100_000, 60, 5)
    with ground.fresh() as opened, ground.bare() as conn:
        corpus = zipf(size)
        load(corpus)
        postings, nearest = Postings(conn, corpus, SESSIONS), Nearest(conn, corpus)
        with unindexed(conn, "tier_vectors"):
            conn.execute(_OURS, (STAMP, DIMENSION))
            conn.execute("UPDATE tier_records SET vector_state = 'done'")
        ground.tidy("tier_records", "tier_vectors", "tier_postings", "operation_steps", "operations", "outbox")
        queries = {query: made(query) for query in corpus.queries(count)}
        factory.use_embedder(opened.settings, Given(dict(queries)))

        def floor(space: int) -> list[float]:
            def one(query: str, vector: NDArray[np.float32]) -> None:
                postings.fetch((postings.bm25(query, space=space) + nearest.find(vector))[:10])

            return [timed(lambda q=q, v=v: one(q, v)) for q, v in queries.items()]  # type: ignore[misc]

        lines: list[Line] = []
        for name, scope, space in scopes(SESSIONS):
            _expect_vectors(ask(opened, scope, next(iter(queries))))
            compared = alternate(
                lambda space=space: floor(space),  # type: ignore[misc]
                lambda scope=scope: [timed(lambda q=q: ask(opened, scope, q)) for q in queries],  # type: ignore[misc]
                rounds,
            )
            gate = 1.5 if not quick and space == WHOLE else None
            note = f"{rounds} rounds of {count} questions; floor: BM25 in one SQL, {_NEAREST} nearest by HNSW (ef 100) over all, 10 rows by key"
            title = f"{size:,} records with vectors, {name} / sum of floors"
            lines += [
                compared.line("recall", title, "p50", gate=gate, note=note),
                compared.line("recall", "the same, p95", "p95", gate=gate),
            ]
        factory.use_embedder(opened.settings, None)
    return lines


def _expect_vectors(answer: Any) -> None:  # noqa: ANN401 - as the product answers
    """A figure of a recall that went without vectors must not be shown."""
    if answer.degraded or not any("vector" in item.legs for item in answer.items):
        raise RuntimeError(f"the recall went without vectors: {answer.degraded}")


def _rows(corpus: Corpus) -> Iterable[tuple[int, HalfVector]]:
    for number in range(len(corpus.ranks)):
        yield number, HalfVector(made(corpus.text(number)))
