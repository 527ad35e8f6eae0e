"""Do the tiers pay, and lose nothing? Evidence recall with most records cold, bytes of a cold record, and the policy replayed.

The data are not part of this project: LoCoMo as for the bench `locomo`, BEAM in a folder beside it named `beam_100k`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path

import numpy as np
from arena import Arena, run_steps
from corpus import SEED
from locomo_to_jsonl import load, messages, questions
from measure import Line
from numpy.typing import NDArray
from replay import beam_messages, replayed

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import passes, produce_records, producers

_COLD = 0.8
_WANTED = 10
_BATCH = 200
_TABLES = ("tier_records", "tier_vectors", "tier_postings", "cold_words", "cold_bodies", "cold_blobs")
_SIZE = """SELECT sum(pg_total_relation_size(t::regclass)), (SELECT coalesce(sum((stored_bytes + 4095) / 4096 * 4096), 0)
    FROM cold_blobs) FROM unnest(%(tables)s::text[]) AS t"""
_COUNTS = "SELECT namespace_id, count(*) FROM tier_records GROUP BY namespace_id ORDER BY namespace_id"


class Given:
    """Vectors at no cost, one for each text, as far from each other as chance has it: for bytes and for speed."""

    model = "bench-given"
    dimension = 384

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape (n, 384), rows of unit length."""
        seeds = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") for text in texts]
        rows = np.array(
            [np.random.default_rng(seed ^ SEED).standard_normal(self.dimension) for seed in seeds], np.float32
        )
        unit: NDArray[np.float32] = rows.reshape(-1, self.dimension)
        return unit / np.linalg.norm(unit, axis=1, keepdims=True)


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
        lines += _beam(ground, beam, chats=1 if quick else 4)
    return [*lines, *replayed(locomo, beam, quick=quick)]


def _locomo(ground: Arena, files: Sequence[Path]) -> list[Line]:
    with embedding(ground, "auto") as opened:
        for path in files:
            _store([(Namespace.of(m["agent"], m["session"]), _record(m)) for m in messages(load(path))])
        run_steps()
        model = "with" if factory.embedder(opened.settings) else "without"
        count, warm_bytes, warm = _count(), _bytes(ground), _recall(files)
        share = _send_cold(_COLD)
        cold = _recall(files)
        _send_cold(1.0)
        cold_bytes = _bytes(ground)
    note = f"{warm[1]:,} questions, {count:,} turns, {share:.0%} of them cold, {model} the offline model's vectors"
    return [
        Line("pay", "LoCoMo R@10, most of it cold / all warm", cold[0] * 100, "%", "higher", floor=warm[0] * 100, gate=0.98,
             note=note),
        _per_record("LoCoMo turns", count, warm_bytes, cold_bytes, 0.6),
    ]  # fmt: skip


def _beam(ground: Arena, folder: Path, *, chats: int) -> list[Line]:
    with embedding(ground, "given"):
        start = datetime(2026, 1, 1, tzinfo=UTC)
        for number, chat in enumerate(beam_messages(folder, chats=chats)):
            namespace = Namespace.of(f"chat{number}", "s")
            _store([
                (namespace, NewRecord(f"m{n}", m["content"] or "-", start + timedelta(seconds=n), m["role"]))
                for n, m in enumerate(chat)
            ])  # fmt: skip
        run_steps()
        count, warm_bytes = _count(), _bytes(ground)
        _send_cold(1.0)
        cold_bytes = _bytes(ground)
    return [_per_record("BEAM messages", count, warm_bytes, cold_bytes, 0.4)]


def _per_record(what: str, count: int, warm: int, cold: int, gate: float) -> Line:
    return Line("pay", f"bytes of a cold / of a warm record, {what}", cold / count, "B", "lower", floor=warm / count, gate=gate,
                note=f"{count:,} records, all warm, then all cold; tables of records, vectors, words and bodies with their "
                "indexes, rewritten before each measurement; blobs in blocks of 4 KiB")  # fmt: skip


def _record(message: dict[str, str]) -> NewRecord:
    at = datetime.fromisoformat(message["time"])
    return NewRecord(message["id"], message["content"], at, message["role"], tier=Tier.WARM)


def _store(pairs: Sequence[tuple[Namespace, NewRecord]]) -> None:
    for at in range(0, len(pairs), _BATCH):
        produce_records.store(pairs[at : at + _BATCH], key=None)


def _recall(files: Sequence[Path]) -> tuple[float, int]:
    """Mean share of a question's evidence among the ten records returned, and how many questions have evidence."""
    shares = []
    for path in files:
        record = load(path)
        bank = Bank(None, record["sample_id"])
        for entry in questions(record):
            if gold := set(entry["evidence"]):
                found = producers.recall(bank, entry["question"], budget=RecallBudget(total=_WANTED), touch=False)
                shares.append(len(gold & {item.record.id for item in found.items}) / len(gold))
    return sum(shares) / len(shares), len(shares)


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
    """Records through the whole pipeline, vectors given, against raw multi-row INSERT with the product's own live indexes."""
    from corpus import zipf  # noqa: PLC0415
    from floors import LiveInserts  # noqa: PLC0415

    size, rounds = (500, 2) if quick else (2_000, 5)
    ratios, taken = [], []
    with embedding(ground, "given"), ground.bare() as conn:
        corpus, inserts, at = zipf(size * (rounds + 1) * 2), LiveInserts(conn), 0
        namespace = Namespace.of("bench-ingest", "s")
        place = None
        for number in range(rounds + 1):
            texts = [corpus.text(n) for n in range(at, at + 2 * size)]
            at += 2 * size
            floor = inserts.run(texts[:size], Given(), _BATCH)
            now = datetime.now(UTC)
            records = [
                NewRecord(f"d{at}-{n}", t, now + timedelta(microseconds=n), "user") for n, t in enumerate(texts[size:])
            ]
            begun = time.perf_counter()
            for start in range(0, size, _BATCH):
                producers.remember_records(namespace, records[start : start + _BATCH])
            run_steps()
            place = place or fetch_all("SELECT namespace_id FROM tier_records LIMIT 1")[0][0]
            passes.request(
                place, Policy(hot_capacity=50, warm_capacity=None, hot_ttl=None, warm_ttl=None, demote_idle=None)
            )
            run_steps()
            ours = time.perf_counter() - begun
            if number:
                ratios.append(floor / ours)
                taken.append((size / ours, size / floor))
    middle = sorted(range(len(ratios)), key=lambda n: ratios[n])[len(ratios) // 2]
    return [Line("ingest", "records through the whole pipeline / raw multi-row INSERT", taken[middle][0], "1/s", "higher",
                 floor=taken[middle][1], gate=0.25, spread=(min(ratios), max(ratios)),
                 note=f"{rounds} rounds of {size:,} in calls of {_BATCH}: stored, indexed, vectors (given) written, one pass hot "
                 "to warm, steps run in this process; floor: finished rows, words and vectors into copies of the tables, all "
                 "indexes live")]  # fmt: skip
