"""Benches of interests: a run over a session with a slow model, and the history of a large session in a large bank."""

from __future__ import annotations

import gc
import math
import os
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import numpy as np
import psycopg
from arena import Arena, wait_until
from measure import Line
from numpy.typing import NDArray
from stub_model import DIMENSION, StubModel, stub_model

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.interest import s2
from isotherm.pipeline.interest.candidates import Candidate, Point
from isotherm.pipeline.interest.pairs import contradictions_by_rules, relate_by_rules
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres import interest_history, interest_near
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import interest_decide, produce_interest, producers

_SLOTS = 4
_WINDOWS, _TURNS = 8, 5
_GROUPS, _CANDIDATES = 12, 40
_SECONDS = 0.05
_ENDED = ("done", "partial", "failed")
_STAGES = """
SELECT extract(epoch FROM max(finished_at) - min(started_at))::float FROM operation_steps
WHERE operation_id = %(id)s AND stage LIKE 'interest.%%'"""

_FILL = """
COPY interest_points (id, bank_id, name, canonical, summary, kind, importance, confidence, reliability, status,
    first_seen_at, last_seen_at, seen_count, terms, embedding, embedding_model, embedding_dim, indexed) FROM STDIN"""
_INDEX = """
CREATE INDEX interest_points_vector_384 ON interest_points USING hnsw ((embedding::halfvec(384)) halfvec_cosine_ops)
    WHERE embedding_dim = 384 AND indexed"""
_RAW = """
SELECT id FROM interest_points WHERE bank_id = %(bank)s AND embedding_dim = 384 AND indexed
ORDER BY embedding::halfvec(384) <=> %(vec)s::halfvec(384) LIMIT 20"""
_MODEL = "of-a-bench"
_PARTS = 50_000
_NEAREST = 20

Vectors = NDArray[np.float32]


def run_speed(ground: Arena, *, quick: bool) -> list[Line]:
    """A run over a session of 8 windows with 40 candidates in 12 groups, every model call of which takes 50 ms."""
    rounds = 2 if quick else 7
    told, most = _runs(ground, rounds, 1_000)
    bounded, _ = _runs(ground, rounds, _SLOTS)
    calls = told[-1][1]
    path = _SECONDS * (math.ceil(_WINDOWS / _SLOTS) + math.ceil(_GROUPS / _SLOTS) + 1)
    single = _CANDIDATES - 3 * _GROUPS
    spec = _WINDOWS + _GROUPS + _GROUPS + single
    chat = sum(calls.values()) - calls["embeddings"]
    shown = ", ".join(f"{n} {kind}" for kind, n in sorted(calls.items()))
    floor = f"floor: the critical path where each slot asks one at a time, {math.ceil(_WINDOWS / _SLOTS)} rounds of windows, one of vectors, {math.ceil(_GROUPS / _SLOTS)} of groups"
    name = "run over a session, model of 50 ms, 4 slots"
    return [
        Line("interest", name, _median(told) * 1000, "ms", "lower", floor=path * 1000, gate=1.25,
             spread=_spread([seconds / path for seconds, _ in told]), note=f"at most {most} questions at a time; {floor}"),
        Line("interest", f"{name}, of a server that answers 4 at a time", _median(bounded) * 1000, "ms", "lower",
             floor=path * 1000, spread=_spread([seconds / path for seconds, _ in bounded]), note=floor),
        Line("interest", "chat calls of that run", chat, "calls", "lower", floor=spec, gate=1.0,
             note=f"floor: the specification's pipeline, one for each window, group, component and isolated point; {shown}"),
        Line("interest", "requests for vectors of that run", calls["embeddings"], "calls", "lower",
             floor=_CANDIDATES, gate=1.0, note="floor: one for each candidate, as the specification's pipeline makes"),
    ]  # fmt: skip


def _runs(ground: Arena, rounds: int, places: int) -> tuple[list[tuple[float, Mapping[str, int]]], int]:
    """Seconds and calls of each run, and the most questions at a time. Args: places: requests that the model answers at a time."""
    with (
        stub_model(_SECONDS, places) as stub,
        _model(stub),
        ground.fresh(),
        ground.worker("isotherm.tasks", "db,llm,graph,maintenance", concurrency=_SLOTS),
    ):
        _one(stub, 0)  # every process makes its connections
        return [_one(stub, n) for n in range(1, rounds + 1)], stub.most


def _median(told: list[tuple[float, Mapping[str, int]]]) -> float:
    return statistics.median(seconds for seconds, _ in told)


def _spread(ratios: list[float]) -> tuple[float, float]:
    return min(ratios), max(ratios)


@contextmanager
def _model(stub: StubModel) -> Iterator[None]:
    mine = {
        "ISOTHERM_CHAT": "openai", "ISOTHERM_CHAT_URL": stub.url, "ISOTHERM_CHAT_MODEL": "stub",
        "ISOTHERM_EMBEDDER": "openai", "ISOTHERM_EMBEDDER_URL": stub.url, "ISOTHERM_EMBEDDER_MODEL": "stub",
        "ISOTHERM_EMBEDDER_DIMENSION": str(DIMENSION),
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in mine}
    os.environ |= mine
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _one(stub: StubModel, number: int) -> tuple[float, Mapping[str, int]]:
    """Seconds from the first step of the run to the end of its last, and the calls it made. Each run has an agent of its own."""
    stub.calls.clear()
    agent = f"agent{number}"
    lines, at = [], datetime(2026, 3, 1, tzinfo=UTC)
    for turn in range(_WINDOWS * _TURNS):
        # The first 36 are 12 things of 3 variants, the others stand alone.
        thing, variant = (turn % _GROUPS, turn // _GROUPS) if turn < 3 * _GROUPS else (turn, 0)
        text = f"I care about thing{100 * number + thing} variant{variant}."
        lines.append(TranscriptLine(2 * turn + 1, agent, "s", None, "user", text, at + timedelta(minutes=turn)))
        lines.append(
            TranscriptLine(2 * turn + 2, agent, "s", None, "assistant", "Noted.", at + timedelta(minutes=turn))
        )
    operation_id = produce_interest.ingest_session(Namespace.of(agent, "s"), lines).operation_id
    wait_until(lambda: producers.operation(operation_id).state in _ENDED, 120, "a run", 0.05)
    if producers.operation(operation_id).state != "done":
        raise RuntimeError(f"the run ended as {producers.operation(operation_id).state}")
    [(seconds,)] = fetch_all(_STAGES, {"id": operation_id})
    return float(seconds), dict(stub.calls)


def history(ground: Arena, *, quick: bool, large: bool) -> list[Line]:
    """s2 of a session of 2,000 points in a bank of 100,000, or of 1,000,000. Args: large: the larger one too."""
    sizes = (30_000,) if quick else (100_000, 1_000_000) if large else (100_000,)
    return [line for size in sizes for line in _at(ground, size, 200 if quick else 2_000)]


def _at(ground: Arena, size: int, asked: int) -> list[Line]:
    with ground.fresh():
        bank_id, built = _fill(ground, size)
        vectors = _directions(np.random.default_rng(9), asked)
        names = _names(np.random.default_rng(9), asked)
        points = [Point(Candidate(name), vec) for name, vec in zip(names, vectors, strict=True)]
        _clustered(bank_id, points[:20])  # what is read first is read from the disk
        gc.collect()
        before, begun = _peak(anew=True), time.perf_counter()
        linked = _clustered(bank_id, points)
        ours, grown = time.perf_counter() - begun, _peak() - before
        begun = time.perf_counter()
        with connection() as conn:
            found = interest_near.nearest(conn, bank_id, list(vectors), _MODEL, _NEAREST)
        near = time.perf_counter() - begun
        raw = _raw_pgvector(ground, bank_id, vectors)
        exact, floor = _raw_numpy(size, vectors)
        hits = sum(len({p.int % 2**64 for p, _ in mine} & set(true)) for mine, true in zip(found, exact, strict=True))
    name = f"{asked:,} points of a session, {size:,} stored"
    recall = hits / (asked * _NEAREST)
    return [
        Line("interest", f"{name}: s2, by vector, words and name", ours, "s", "lower", floor=floor,
             note=f"floor: raw numpy, one matrix product for the vectors alone; memory grew by {grown / 2**20:.0f} MiB; {linked} stored points touched"),
        Line("interest", f"{name}: the 20 nearest by vector", near, "s", "lower", floor=raw,
             note=f"floor: raw pgvector, one statement for each; {recall:.3f} of the exact 20 nearest are found"),
        Line("interest", f"{size:,} stored: the index of their vectors is built", built, "s", "lower"),
    ]  # fmt: skip


def _clustered(bank_id: int, points: list[Point]) -> int:
    with connection() as conn:
        found, links = interest_decide.touched_history(
            points, {}, lambda some: interest_history.near(conn, bank_id, some, _MODEL)
        )
    s2.cluster(points, found, relate_by_rules, known=links, proposed=(), contradicting=contradictions_by_rules)
    return len(found)


def _fill(ground: Arena, size: int) -> tuple[int, float]:
    """A bank with points around many middles; returns its id, and how long the index of vectors took."""
    with psycopg.connect(ground.dsn, autocommit=True) as conn:
        row = conn.execute("INSERT INTO banks (agent) VALUES ('large') RETURNING id").fetchone()
        bank_id = int(row[0]) if row else 0
        conn.execute("INSERT INTO interest_banks (bank_id, indexed) VALUES (%s, true)", (bank_id,))
        conn.execute("ALTER TABLE interest_points DISABLE TRIGGER USER")
        conn.execute("DROP INDEX interest_points_vector_384")
        for start in range(0, size, _PARTS):
            _copy(conn, bank_id, start, min(size, start + _PARTS))
        conn.execute("ALTER TABLE interest_points ENABLE TRIGGER USER")
        conn.execute("""INSERT INTO interest_postings (bank_id, term, point_id)
            SELECT DISTINCT p.bank_id, t, p.id FROM interest_points AS p, unnest(p.terms) AS t""")
        begun = time.perf_counter()
        conn.execute("SET maintenance_work_mem = '2GB'")
        conn.execute(_INDEX)
        built = time.perf_counter() - begun
    ground.tidy("interest_points", "interest_postings")
    return bank_id, built


def _copy(conn: psycopg.Connection[tuple[object, ...]], bank_id: int, start: int, stop: int) -> None:
    vectors, names = _part(start, stop)
    with conn.cursor().copy(_FILL) as copy:
        for number, name, vec in zip(range(start, stop), names, vectors, strict=True):
            terms = "{" + ",".join(map(str, interest_history.terms_of(name, "", ()))) + "}"
            copy.write_row((UUID(int=2**120 + number), bank_id, name, f"{name} {number}", "", "interest", 0.5, 0.5, 0.5,
                            "active", "2026-01-01", "2026-01-01", 1, terms, interest_near.written(vec), _MODEL, DIMENSION, True))  # fmt: skip


def _part(start: int, stop: int) -> tuple[Vectors, list[str]]:
    random = np.random.default_rng(1_000 + start)
    return _directions(random, stop - start), _names(random, stop - start)


def _directions(random: np.random.Generator, count: int) -> Vectors:
    """Unit vectors around middles that are the same for all."""
    middles = np.random.default_rng(3).normal(size=(5_000, DIMENSION)).astype(np.float32)
    made = middles[random.integers(0, len(middles), count)]
    made = made + 0.8 * random.standard_normal((count, DIMENSION), dtype=np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def _names(random: np.random.Generator, count: int) -> list[str]:
    """Three words each, of which few are frequent."""
    numbers = np.minimum(random.zipf(1.3, size=(count, 3)), 200_000)
    return [" ".join(f"word{_letters(int(n))}" for n in row) for row in numbers]


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def _raw_pgvector(ground: Arena, bank_id: int, vectors: Vectors) -> float:
    with ground.bare() as conn:
        conn.execute("SET hnsw.ef_search = 100")
        conn.execute("SET enable_sort = off")
        begun = time.perf_counter()
        for vec in vectors:
            conn.execute(_RAW, {"bank": bank_id, "vec": interest_near.written(vec)}).fetchall()
        return time.perf_counter() - begun


def _raw_numpy(size: int, vectors: Vectors) -> tuple[list[list[int]], float]:
    """Numbers of the nearest of each, and how long that took with everything in memory."""
    scores = np.full((len(vectors), 0), 0, dtype=np.float32)
    places = np.zeros((len(vectors), 0), dtype=np.int64)
    taken = 0.0
    for start in range(0, size, _PARTS):
        stop = min(size, start + _PARTS)
        part = _part(start, stop)[0]
        begun = time.perf_counter()
        found = vectors @ part.T
        best = np.argpartition(-found, _NEAREST, axis=1)[:, :_NEAREST]
        scores = np.concatenate([scores, np.take_along_axis(found, best, axis=1)], axis=1)
        places = np.concatenate([places, best + start], axis=1)
        taken += time.perf_counter() - begun
    order = np.argsort(-scores, axis=1)[:, :_NEAREST]
    return np.take_along_axis(places, order, axis=1).tolist(), taken


def _peak(*, anew: bool = False) -> int:
    """The largest resident set, in bytes. Args: anew: since now; what was larger before does not hide what comes."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found.group(1)) * 1024 if found else 0
