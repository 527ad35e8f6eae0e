"""Do the tiers pay, and lose nothing? Evidence recall with most records cold, bytes of a cold record, and the policy replayed.

The data are not part of this project: LoCoMo as for the bench `locomo`, BEAM in a folder beside it named `beam_100k`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import chats
from arena import Arena, open_steps, run_steps, wait_until
from corpus import zipf
from given_app import Given
from locomo_to_jsonl import load, messages, questions
from measure import Line, alternate
from replay import beam_messages, replayed
from tier_floors import LiveInserts

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import passes, produce_records, producers

_COLD = 0.8
_WANTED = 10
_BATCH = 200
_TARGET = 0.6  # of ingest, beside its gate
_TABLES = ("tier_records", "tier_vectors", "tier_postings", "cold_words", "cold_bodies", "cold_blobs", "tier_moves")
_SIZE = """SELECT sum(pg_total_relation_size(t::regclass)), (SELECT coalesce(sum((stored_bytes + 4095) / 4096 * 4096), 0)
    FROM cold_blobs) FROM unnest(%(tables)s::text[]) AS t"""
_COLD_IDS = """
SELECT n.agent, n.session, array_agg(r.id ORDER BY r.id) FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id
WHERE r.tier = 1 GROUP BY n.id ORDER BY n.id"""
_COUNTS = "SELECT namespace_id, count(*) FROM tier_records GROUP BY namespace_id ORDER BY namespace_id"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, whose memory it is asked of, and the ids of its evidence."""

    agent: str
    question: str
    gold: frozenset[str]


@contextmanager
def embedding(ground: Arena, kind: str) -> Iterator[Storage]:
    """A fresh database whose embedder is the offline one ("auto") or `Given` ("given")."""
    before = os.environ["ISOTHERM_EMBEDDER"]
    os.environ["ISOTHERM_EMBEDDER"] = "auto" if kind == "auto" else "none"
    try:
        with ground.fresh() as opened:
            if kind == "given":
                factory.use_embedder(opened.settings, Given())
            yield opened
            if kind == "given":
                factory.use_embedder(opened.settings, None)
    finally:
        os.environ["ISOTHERM_EMBEDDER"] = before


def pay(ground: Arena, locomo: Path | None, beam: Path | None, *, quick: bool) -> list[Line]:
    """Line 8 of what tiers owe: recall kept, bytes saved, the right records hot."""
    lines: list[Line] = []
    files = sorted(p for p in locomo.glob("conv-*.json") if "." not in p.stem) if locomo and locomo.exists() else []
    if not files:
        print("pay: LoCoMo skipped; name the folder of its records with --locomo or ISOTHERM_BENCH_DATA")
    else:
        lines += _locomo(ground, files[:1] if quick else files)
    if beam is None or not beam.exists():
        print("pay: BEAM skipped; it is looked for as beam_100k beside LoCoMo")
    else:
        lines += _beam(ground, beam, count=1 if quick else 4)
        lines += _summarized(ground, beam, count=1 if quick else 4)
    return [*lines, *replayed(locomo, beam, quick=quick)]


def _locomo(ground: Arena, files: Sequence[Path]) -> list[Line]:
    with embedding(ground, "auto") as opened:
        for path in files:
            _store([(Namespace.of(m["agent"], m["session"]), _record(m)) for m in messages(load(path))])
        run_steps()
        _to_warm()
        model = "with" if factory.embedder(opened.settings) else "without"
        asked = [_Asked(one["sample_id"], e["question"], frozenset(e["evidence"]))
                 for one in map(load, files) for e in questions(one) if e["evidence"]]  # fmt: skip
        count, warm_bytes, warm = _count(), _bytes(ground), _recall(asked)
        share = _send_cold(_COLD)
        cold = _recall(asked)
        _send_cold(1.0)
        cold_bytes = _bytes(ground)
        restored = _restore_all()
        back = _recall(asked)
    note = f"{len(asked):,} questions, {count:,} turns, {share:.0%} of them cold, {model} the offline model's vectors"
    return [
        Line("pay", "LoCoMo R@10, most of it cold / all warm", cold * 100, "%", "higher", floor=warm * 100, gate=0.98,
             note=note),
        Line("pay", "LoCoMo R@10, all restored / all warm", back * 100, "%", "higher", floor=warm * 100, gate=1.0,
             note=f"the same questions after {restored:,} records were restored by the public verb"),
        _per_record("LoCoMo turns", count, warm_bytes, cold_bytes, 0.6),
    ]  # fmt: skip


def _beam(ground: Arena, folder: Path, *, count: int) -> list[Line]:
    with embedding(ground, "given"):
        start = datetime(2026, 1, 1, tzinfo=UTC)
        for number, chat in enumerate(beam_messages(folder, chats=count)):
            namespace = Namespace.of(f"chat{number}", "s")
            _store([
                (namespace, NewRecord(f"m{n}", m["content"] or "-", start + timedelta(seconds=n), m["role"]))
                for n, m in enumerate(chat)
            ])  # fmt: skip
        run_steps()
        _to_warm()
        records, warm_bytes = _count(), _bytes(ground)
        _send_cold(1.0)
        cold_bytes = _bytes(ground)
    return [_per_record("BEAM messages", records, warm_bytes, cold_bytes, 0.4)]


def _summarized(ground: Arena, folder: Path, *, count: int) -> list[Line]:
    """Long messages, which leave a summary: turns of LoCoMo are so short that they go cold whole."""
    with embedding(ground, "auto") as opened:
        if factory.embedder(opened.settings) is None:
            print("pay: BEAM with summaries skipped; it needs the extra local-models")
            return []
        files = sorted(folder.glob("*.chat.json.gz"))[:count]
        asked = [_Asked(one.chat, one.text, one.gold) for path in files for one in chats.stored(path)]
        run_steps()
        _to_warm()
        warm = _recall(asked)
        share = _send_cold(_COLD)
        cold, bodies = _recall(asked), int(fetch_all("SELECT count(*) FROM cold_bodies")[0][0])
        _restore_all()
        back = _recall(asked)
    note = f"{len(asked)} questions of {len(files)} chats, {_summaries(share, bodies)}"
    return [
        Line("pay", "BEAM R@10, most of it cold / all warm", cold * 100, "%", "higher", floor=warm * 100, gate=0.98, note=note),
        Line("pay", "BEAM R@10, all restored / all warm", back * 100, "%", "higher", floor=warm * 100, gate=1.0),
    ]  # fmt: skip


def _summaries(share: float, bodies: int) -> str:
    return f"{share:.0%} of the messages cold, {bodies} of them by a summary of their beginning"


def _per_record(what: str, count: int, warm: int, cold: int, gate: float) -> Line:
    return Line("pay", f"bytes of a cold / of a warm record, {what}", cold / count, "B", "lower", floor=warm / count, gate=gate,
                note=f"{count:,} records, all warm, then all cold; tables of records, vectors, words, bodies and moves with "
                "their indexes, rewritten before each measurement; blobs in blocks of 4 KiB")  # fmt: skip


def _record(message: dict[str, str]) -> NewRecord:
    return NewRecord(message["id"], message["content"], datetime.fromisoformat(message["time"]), message["role"])


def _store(pairs: Sequence[tuple[Namespace, NewRecord]]) -> None:
    for at in range(0, len(pairs), _BATCH):
        produce_records.store(pairs[at : at + _BATCH], key=None)


def _recall(asked: Sequence[_Asked]) -> float:
    """Mean share of a question's evidence among the ten records returned."""
    shares = []
    for one in asked:
        found = producers.recall(Bank(None, one.agent), one.question, budget=RecallBudget(total=_WANTED), touch=False)
        shares.append(len(one.gold & {item.record.id for item in found.items}) / len(one.gold))
    return sum(shares) / len(shares)


def _restore_all() -> int:
    """Restore every cold record, a call for each namespace and so many; returns how many there were."""
    rows = fetch_all(_COLD_IDS)
    for agent, session, ids in rows:
        for at in range(0, len(ids), _BATCH):
            producers.restore(Namespace.of(agent, session), ids[at : at + _BATCH])
    run_steps()
    if left := fetch_all(_COLD_IDS):
        raise RuntimeError(f"{sum(len(row[2]) for row in left)} records stayed cold")
    return sum(len(row[2]) for row in rows)


def _to_warm() -> None:
    """As a life of passes has it: from hot to warm, logged."""
    _send_cold(0.0)


def _send_cold(share: float) -> float:
    """Passes until each namespace has so much of its records cold, the oldest first; returns the share reached."""
    for _ in range(2):
        for namespace_id, count in fetch_all(_COUNTS):
            policy = Policy(
                hot_capacity=0, warm_capacity=int(count) - round(share * int(count)), promote_access=None, hot_ttl=None,
                warm_ttl=None, demote_idle=None, cooldown=None,
            )  # fmt: skip
            passes.request(namespace_id, policy)
        run_steps()
    row = fetch_all("SELECT avg((tier = 1)::int)::float8 FROM tier_records")[0]
    return float(row[0])


def _count() -> int:
    return int(fetch_all("SELECT count(*) FROM tier_records")[0][0])


def _bytes(ground: Arena) -> int:
    ground.rewrite(*_TABLES)
    row = fetch_all(_SIZE, {"tables": list(_TABLES)})[0]
    return int(row[0]) + int(row[1])


def ingest(ground: Arena, *, quick: bool) -> list[Line]:
    """Records through producers, broker and worker, vectors given, against raw INSERT with the product's own live indexes."""
    size, rounds = (500, 2) if quick else (2_000, 5)
    policy = Policy(hot_capacity=50, warm_capacity=None, hot_ttl=None, warm_ttl=None, demote_idle=None)
    namespace, at = Namespace.of("bench-ingest", "s"), [0]
    with embedding(ground, "given"), ground.bare() as conn, ground.worker("given_app", "db,llm"):
        corpus, inserts = zipf(2 * size * (rounds + 1)), LiveInserts(conn)
        place = namespaces.resolve(namespace).namespace_id

        def texts() -> list[str]:
            at[0] += size
            return [corpus.text(n) for n in range(at[0] - size, at[0])]

        def floor() -> list[float]:
            return [inserts.run(texts(), Given(), _BATCH) / size] * size

        def ours() -> list[float]:
            now = datetime.now(UTC)
            records = [
                NewRecord(f"d{at[0]}-{n}", text, now + timedelta(microseconds=n), "user")
                for n, text in enumerate(texts())
            ]
            begun = time.perf_counter()
            for start in range(0, size, _BATCH):
                producers.remember_records(namespace, records[start : start + _BATCH])
            wait_until(lambda: open_steps() == 0, 300, "the records to be found")
            passes.request(place, policy)
            wait_until(lambda: open_steps() == 0, 300, "the pass")
            return [(time.perf_counter() - begun) / size] * size

        floor(), ours()  # warm
        compared = alternate(floor, ours, rounds)
        _expect_ingested(size * (rounds + 1))
    note = (
        f"{rounds} rounds of {size:,} in calls of {_BATCH}: stored, indexed, vectors (given) written, one pass hot to warm, by a "
        "worker -c 2; floor: finished rows, words and vectors by one connection into copies of the tables, all indexes live"
    )
    line = compared.line("ingest", "records through the whole pipeline / raw multi-row INSERT", "rate", gate=0.25)
    reached = "reached" if (line.ratio or 0) >= _TARGET else "not reached"
    return [replace(line, note=f"{note}; target {_TARGET}: {reached}")]


def _expect_ingested(count: int) -> None:
    """A rate of records that were not found, or did not move, must not be shown."""
    row = fetch_all("""SELECT count(*) FILTER (WHERE indexed AND vector_state = 'done'), count(*) FILTER (WHERE tier = 2)
                       FROM tier_records""")[0]
    if tuple(row) != (count, count - 50):
        raise RuntimeError(f"{row[0]} of {count} records are whole, {row[1]} warm")
