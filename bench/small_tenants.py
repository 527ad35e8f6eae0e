"""Small sets beside a large one: `python bench/small_tenants.py [--quick]`.

Namespaces of 50, 2,000, 20,000 and 30,000 objects among 300,000, each clustered away from the query while the large one is
clustered around it, so that an index of vectors meets the large one's rows first. Recall is against all cosines, computed
outside of the database over the same vectors in half precision. Vectors are made from a fixed seed, 384 numbers each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from arena import Arena, arena
from machine import load
from numpy.typing import NDArray
from pgvector import HalfVector
from rich.console import Console
from rich.table import Table

from isotherm.pipeline.identity import Namespace
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.pool import connection
from isotherm.tasks.produce_brain import knowledge, search

DIMENSION, K, MODEL, ROUNDS = 384, 20, "synthetic", 20
TOTAL, SMALL = 300_000, (50, 2_000, 20_000, 30_000)
_CHUNK = 10_000
_INDEX = "brain_objects_vector_384"

_ROWS = """
INSERT INTO brain_objects (namespace_id, bank_id, id, kind, title, summary, content, content_type, properties, revision,
                           index_sha256, terms, length, vector, vector_model, vector_dim, vector_state, created_at, updated_at)
SELECT %(ns)s, %(bank)s, ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'note', 'row ' || n, '', '', '', '{}', 1,
       sha256(n::text::bytea), '{}', 0, v, %(model)s, 384, 'done', now(), now() FROM made"""

Vectors = NDArray[np.float32]


class Fixed:
    """Answers every text with one vector."""

    model = MODEL
    dimension = DIMENSION

    def __init__(self, vector: Vectors) -> None:
        self._vector = vector

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The vector, once for each text."""
        return np.tile(self._vector, (len(texts), 1))


@dataclass(frozen=True, slots=True)
class Figure:
    """What one set came to."""

    name: str
    size: int
    given: int
    recall: float
    truncated: bool
    p50_ms: float


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit code is 1 when a set of up to 20,000 was starved."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="among 60,000 instead of 300,000")
    total = 60_000 if parser.parse_args(arguments).quick else TOTAL
    before = load()
    with arena() as ground, ground.fresh() as memory:
        figures = measured(ground, memory, total)
    table = Table(
        "set", "objects", f"given of {K}", "recall", "truncated", "p50 ms", title=f"Small sets among {total:,}"
    )
    for each in figures:
        table.add_row(
            each.name,
            f"{each.size:,}",
            str(each.given),
            f"{each.recall:.3f}",
            str(each.truncated),
            f"{each.p50_ms:.1f}",
        )
    console = Console()
    console.print(table)
    console.print(f"load before: {before}; after: {load()}", highlight=False)
    return int(any(f.size <= 20_000 and (f.given < K or f.recall < 0.95) for f in figures))


def measured(ground: Arena, memory: Storage, total: int) -> list[Figure]:
    """Fill the namespaces, build the index, and ask each of them."""
    rng = np.random.default_rng(7)
    query = _unit(rng.standard_normal((1, DIMENSION)))[0]
    sets: dict[str, Vectors] = {}
    with psycopg.connect(ground.dsn, autocommit=True) as conn:
        conn.execute(f"DROP INDEX {_INDEX}")
        _fill_large(rng, query, total - sum(SMALL))
        for size in SMALL:
            away = _unit(rng.standard_normal((1, DIMENSION)))[0]
            sets[f"s{size}"] = _fill(knowledge(f"s{size}"), _cluster(rng, size, away))
        conn.execute("SET maintenance_work_mem = '1GB'")
        conn.execute(
            f"CREATE INDEX {_INDEX} ON brain_objects USING hnsw ((vector::halfvec(384)) halfvec_cosine_ops) "
            "WHERE vector_dim = 384 AND deleted_at IS NULL"
        )
        conn.execute("VACUUM (ANALYZE) brain_objects")
    factory.use_embedder(memory.settings, Fixed(query))
    return [_asked(name, vectors, query) for name, vectors in sets.items()]


def _asked(name: str, vectors: Vectors, query: Vectors) -> Figure:
    half = _unit(vectors.astype(np.float16).astype(np.float32))
    best = {int(n) + 1 for n in np.argsort(-(half @ query))[:K]}
    taken, answer = [], search(knowledge(name), "anything", limit=K)
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        answer = search(knowledge(name), "anything", limit=K)
        taken.append((time.perf_counter() - begun) * 1000)
    found = {result.object.id.int & 0xFFFFFFFFFFFF for result in answer.results}
    numbers = {int(f"{each:x}") for each in found}
    recall = len(best & numbers) / K
    return Figure(name, len(vectors), len(answer.results), recall, answer.truncated, statistics.median(taken))


def _fill_large(rng: np.random.Generator, query: Vectors, count: int) -> None:
    with connection() as conn:
        place = namespaces.resolve(knowledge("large"))
        conn.execute("CREATE TEMPORARY TABLE IF NOT EXISTS made (n bigint, v halfvec) ON COMMIT DROP")
        for start in range(0, count, _CHUNK):
            _copy(conn, start, _cluster(rng, min(_CHUNK, count - start), query))
        conn.execute(_ROWS, {"ns": place.namespace_id, "bank": place.bank_id, "model": MODEL})


def _fill(ns: Namespace, vectors: Vectors) -> Vectors:
    with connection() as conn:
        place = namespaces.resolve(ns)
        conn.execute("CREATE TEMPORARY TABLE IF NOT EXISTS made (n bigint, v halfvec) ON COMMIT DROP")
        _copy(conn, 0, vectors)
        conn.execute(_ROWS, {"ns": place.namespace_id, "bank": place.bank_id, "model": MODEL})
    return vectors


def _copy(conn: psycopg.Connection[Any], start: int, vectors: Vectors) -> None:
    with conn.cursor().copy("COPY made FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(["int8", "halfvec"])
        for n, row in enumerate(vectors, start + 1):
            copy.write_row((n, HalfVector(row)))


def _cluster(rng: np.random.Generator, count: int, around: Vectors) -> Vectors:
    return _unit(around + 0.04 * rng.standard_normal((count, DIMENSION)))


def _unit(raw: NDArray[Any]) -> Vectors:
    found: Vectors = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    return found


if __name__ == "__main__":
    sys.exit(main())
