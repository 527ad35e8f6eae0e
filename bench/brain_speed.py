"""Speed of the knowledge base against bare tools: searches, writes with their mirror, the mirror alone, and walks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np
from arena import Arena, run_steps
from brain_corpus import PARTS, Built, Given, build, document_id, made
from brain_floors import Bare, Legs, RawInserts, Row
from brain_graph import graph_searching
from corpus import zipf
from measure import Compared, Figures, Line, alternate, timed
from numpy.typing import NDArray

from isotherm.pipeline import text
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.stages import BRAIN_EMBED, BRAIN_MIRROR
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import brain_search, namespaces
from isotherm.storage.postgres.pool import fetch_all, statement
from isotherm.tasks import brain, produce_brain

_SIZES, _QUICK_SIZES, _LARGE = (10_000, 100_000), (2_000,), 300_000
_GATED = 100_000
_WRITERS = 4
_K = 40
_SETTLE = 2.0  # seconds until all writers are writing
_BATCH = 250
_RAW_BATCH = 250
_MIRRORED = "SELECT count(*) FROM graph_nodes"


def brain_speed(ground: Arena, *, quick: bool, large: bool = False) -> list[Line]:
    """All of it at 10,000 and 100,000 parts; searches at 300,000 too when `large`."""
    lines: list[Line] = []
    searches: dict[int, Compared] = {}
    sizes = _QUICK_SIZES if quick else (*_SIZES, *((_LARGE,) if large else ()))
    for size in sizes:
        with ground.fresh() as opened, ground.bare() as conn:
            begun = time.perf_counter()
            built = build(ground.dsn, size)
            legs = Legs(conn, built)
            print(f"brain: {size:,} parts stand after {time.perf_counter() - begun:.0f} s", file=sys.stderr)
            found, searches[size] = searching(ground, opened, legs, built, quick=quick)
            lines += found
            lines += graph_searching(ground, opened, legs, built, rounds=2 if quick else 5, gated=size == _GATED)
            if size in {_GATED, *_QUICK_SIZES}:
                lines += writing(opened, conn, built, quick=quick)
                lines += walking(opened, built)
    return [*lines, *_growth(searches)]


def searching(
    ground: Arena, opened: Storage, legs: Legs, built: Built, *, quick: bool, rounds: int = 5
) -> tuple[list[Line], Compared]:
    """Whole searches against the sum of the floors of their legs; the lexical leg against row 3, alone and beside writers."""
    size = len(built.keys)
    gated = size == _GATED
    count, rounds = (10, 2) if quick else (60, rounds)
    queries = built.queries(count)
    factory.use_embedder(opened.settings, Given(dict(queries)))
    note = f"{rounds} rounds of {count} queries of 6 words"
    whole = alternate(
        lambda: [timed(lambda q=q, v=v: legs.all(q, v)) for q, v in queries.items()],  # type: ignore[misc]
        lambda: [timed(lambda q=q: opened.brain.search(built.namespace, q)) for q in queries],  # type: ignore[misc]
        rounds,
    )
    lines = [
        whole.line("brain", f"{size:,} parts: search / its legs one by one", "p50", gate=1.5 if gated else None,
                   note=f"{note}; k = 10; floor: BM25 in one SQL, 40 nearest by HNSW (ef 100), 10 rows by key"),
        whole.line("brain", "the same, p95", "p95"),
    ]  # fmt: skip
    alone = _lexical(legs, built, queries, rounds)
    lines += _both(alone, f"{size:,} parts: lexical leg / BM25 in one SQL", gated=gated, note=f"{note}; 40 rows")
    if gated or quick:
        with _writers(ground, built.namespace) as rate:
            beside = _lexical(legs, built, queries, rounds)
        lines += _both(beside, f"{size:,} parts, four writers beside: lexical leg / BM25 in one SQL", gated=gated,
                       note=f"{note}; the writers put {rate():.0f} objects/s into the same namespace")  # fmt: skip
    return lines, whole


def _both(compared: Compared, name: str, *, gated: bool, note: str) -> list[Line]:
    return [
        compared.line("brain", f"{name}, p95", "p95", gate=1.2 if gated else None, note=note),
        compared.line("brain", "the same, p50", "p50"),
    ]


def _lexical(legs: Legs, built: Built, queries: Mapping[str, NDArray[np.float32]], rounds: int) -> Compared:
    place = namespaces.resolve(built.namespace)

    def round_of_ours() -> list[float]:
        brain.fold()  # as its tick does
        return [timed(lambda q=q: ours(q)) for q in queries]  # type: ignore[misc]

    def ours(query: str) -> None:
        with statement() as conn:
            brain_search.lexical(conn, place.namespace_id, text.terms(query), Filters(), _K)

    return alternate(
        lambda: [timed(lambda q=q: legs.bm25(q)) for q in queries],  # type: ignore[misc]
        round_of_ours,
        rounds,
    )


@contextmanager
def _writers(ground: Arena, namespace: Namespace) -> Iterator[Callable[[], float]]:
    """Four processes that put objects one by one until the end; gives their rate, to be asked for afterwards."""
    command = [sys.executable, str(Path(__file__).with_name("brain_writer.py")), namespace.agent]
    before, begun = _objects(), time.perf_counter()
    rates: list[float] = []
    processes = [
        subprocess.Popen(
            [*command, str(number)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ground.folder
        )
        for number in range(_WRITERS)
    ]
    try:
        while _objects() == before and all(process.poll() is None for process in processes):
            time.sleep(0.1)
        time.sleep(_SETTLE)
        before, begun = _objects(), time.perf_counter()
        yield lambda: rates[0]
        rates.append((_objects() - before) / (time.perf_counter() - begun))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=20)
    brain.fold()


def _objects() -> int:
    return int(fetch_all("SELECT coalesce(max(key), 0) FROM brain_objects")[0][0])


def writing(
    opened: Storage, conn: Bare, built: Built, *, quick: bool, rounds: int = 3
) -> list[Line]:  # fmt: skip
    """Puts with vectors and mirror against raw inserts of the same rows, and the mirror against raw upserts of its nodes."""
    count = 100 if quick else 500
    raw, fill = RawInserts(conn), _Fresh(built.namespace)
    if not quick:  # so that indexes of both are of one size
        _fill_raw(conn)
    put = alternate(
        lambda: [raw.rows(fill.rows(count), _RAW_BATCH, nodes=True) / count],
        lambda: [_put(opened, built.namespace, fill.objects(count)) / count],
        rounds,
    )
    single = alternate(
        lambda: [raw.nodes(fill.rows(count, vectors=False), _RAW_BATCH) / count],
        lambda: [_drained(opened, built.namespace, fill.objects(count), 1) / count],
        rounds,
    )
    batched = alternate(
        lambda: [raw.nodes(fill.rows(count, vectors=False), _RAW_BATCH) / count],
        lambda: [_drained(opened, built.namespace, fill.objects(count), _BATCH) / count],
        rounds,
    )
    size = f"{len(built.keys):,} parts"
    note = f"{rounds} rounds of {count:,} objects of 60 words beside what is there"
    return [
        put.line("brain", f"{size}: put with vectors and mirror / raw inserts", "rate", gate=0.5,
                 note=f"{note}, in calls of {_BATCH}, vectors given, steps run in this process; floor: finished rows, words, "
                      "vectors and nodes into copies of the tables, all indexes live, same batches"),
        batched.line("brain", f"{size}: mirror drained / raw bulk upsert", "rate", gate=0.5,
                     note=f"{note}; PostgreSQL's graph, steps of {_BATCH} objects; floor: batches of {_RAW_BATCH}"),
        single.line("brain", f"{size}: mirror drained, steps of one object / raw bulk upsert", "rate", note=note),
    ]  # fmt: skip


def _fill_raw(conn: Bare) -> None:
    conn.execute("""INSERT INTO raw_objects OVERRIDING SYSTEM VALUE SELECT * FROM brain_objects""")
    conn.execute("""INSERT INTO raw_postings SELECT * FROM brain_postings""")
    conn.execute("SELECT setval(pg_get_serial_sequence('raw_objects', 'key'), (SELECT max(key) FROM raw_objects))")
    conn.execute("VACUUM (ANALYZE) raw_objects, raw_postings")


class _Fresh:
    """Objects that are not there yet, the same kind for both sides."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._next = int(fetch_all("SELECT count(*) FROM brain_objects")[0][0])
        self._texts = zipf(2_000, shortest=60, longest=60)

    def rows(self, count: int, *, vectors: bool = True) -> list[Row]:
        """As finished rows."""
        return [
            Row(n.id, n.content, text.term_counts(n.content), made(n.content) if vectors else None)
            for n in self.objects(count)
        ]

    def objects(self, count: int) -> list[NewObject]:
        """As the producer takes them."""
        found = []
        for _ in range(count):
            self._next += 1
            said = f"{self._texts.text(self._next % 2_000)} n{self._next}"
            found.append(NewObject(document_id(self._namespace, -self._next), "document", content=said))
        return found


def _put(opened: Storage, namespace: Namespace, objects: Sequence[NewObject]) -> float:
    """Seconds until vectors and nodes are there; to make the vectors is no part of it."""
    factory.use_embedder(opened.settings, Given({n.content: made(n.content) for n in objects}))

    def act() -> None:
        for at in range(0, len(objects), _BATCH):
            produce_brain.put_many(namespace, objects[at : at + _BATCH])
        run_steps(only=(BRAIN_EMBED, BRAIN_MIRROR))

    return timed(act)


def _drained(opened: Storage, namespace: Namespace, objects: Sequence[NewObject], batch: int) -> float:
    """Seconds of the mirror alone. There is no embedder, so that there are no other steps, and nodes have no vectors."""
    factory.use_embedder(opened.settings, None)
    for at in range(0, len(objects), batch):
        produce_brain.put_many(namespace, objects[at : at + batch])
    before = fetch_all(_MIRRORED)[0][0]
    taken = timed(lambda: run_steps(only=(BRAIN_MIRROR,)))
    if fetch_all(_MIRRORED)[0][0] - before != len(objects):
        raise RuntimeError("the mirror did not write every object")
    return taken


def walking(opened: Storage, built: Built, *, nodes: int = 400, degree: int = 5) -> list[Line]:
    """An expand of three hops with a budget of 64 objects asked, and the statements it takes."""
    rng = np.random.default_rng(1)
    namespace = built.namespace
    ids = [document_id(namespace, n) for n in range(min(nodes, len(built.keys) // PARTS))]
    for n, source in enumerate(ids):
        for target in rng.choice(len(ids), degree, replace=False).tolist():
            if target != n:
                produce_brain.link(namespace, source, ids[target], "related")
    run_steps(only=(BRAIN_MIRROR,))
    _expand(opened, namespace, ids[0])
    statements, taken = [], []
    for seed in ids[:40]:
        with _counting() as told:
            taken.append(timed(lambda seed=seed: _expand(opened, namespace, seed)))
        statements.append(len(told))
    figures = Figures(float(np.median(taken)), float(np.quantile(taken, 0.95)), 1 / float(np.mean(taken)))
    return [
        Line("brain", "statements of an expand of 3 hops", float(max(statements)), "", "lower", floor=3, gate=1.0,
             note=f"PostgreSQL's graph, {len(ids)} objects with {degree} edges each, at most 64 objects asked; the most of 40; "
             f"p50 {figures.p50 * 1000:.1f} ms, p95 {figures.p95 * 1000:.1f} ms"),
    ]  # fmt: skip


def _expand(opened: Storage, namespace: Namespace, seed: UUID) -> None:
    found = opened.brain.expand(namespace, seed, ["related"], hops=3, limit=200)
    if not found.items:
        raise RuntimeError("an expand found nothing")


@contextmanager
def _counting() -> Iterator[list[str]]:
    """The statements that go through the driver meanwhile."""
    import psycopg  # noqa: PLC0415 - patched here only

    told: list[str] = []
    original = psycopg.Connection.execute

    def counted(self: psycopg.Connection[object], query: object, *args: object, **more: object) -> object:
        if query:  # the pool asks an idle connection whether it lives
            told.append(str(query))
        return original(self, query, *args, **more)  # type: ignore[arg-type]

    psycopg.Connection.execute = counted  # type: ignore[assignment, method-assign]
    try:
        yield told
    finally:
        psycopg.Connection.execute = original  # type: ignore[method-assign]


def _growth(searches: Mapping[int, Compared]) -> list[Line]:
    """How much longer a search takes with more parts."""
    least, most = min(searches), max(searches)
    if least == most:
        return []
    small = searches[least].line("", "", "p50")
    large = searches[most].line("", "", "p50")
    return [
        Line("brain", f"search p50, {most:,} / {least:,} parts", large.ours, "ms", "lower", floor=small.ours,
             note=f"the floors grow by {(large.floor or 0) / (small.floor or 1):.2f}"),
    ]  # fmt: skip
