"""Benches of reading: the hot tail against one Redis script, and recall against its floors run one after the other."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from arena import Arena, run_steps
from corpus import Corpus, chat_text, zipf
from floors import WHOLE, Postings, Script, primary_key, select_one
from measure import Line, alternate, figures, repeated, timed

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.opened import Storage
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.redis.tail import TailRecord
from isotherm.tasks import producers

SESSIONS = 50
_AGENT = "bench-reader"
_WANTED = RecallBudget(total=10)


def tail(ground: Arena, *, quick: bool) -> list[Line]:
    """The newest records of a namespace, in order, from Redis."""
    reads, rounds = (100, 3) if quick else (500, 5)
    namespace, now, lines = Namespace.of(_AGENT, "tail"), datetime.now(UTC), []
    with ground.fresh() as opened:
        records = [
            NewRecord(id=f"D1:{n}", content=chat_text(n), created_at=now + timedelta(seconds=n), role="user",
                      metadata={"kind": "message"})
            for n in range(200)
        ]  # fmt: skip
        producers.remember_records(namespace, records)
        copies = opened.tier.tail(namespace)
        script = Script(ground.endpoints.redis_url, list(map(body_of, copies)))
        for count in (50, 200):
            sizes = f"{rounds} rounds of {reads} reads; floor: bytes as they come, nothing parsed"
            strict = alternate(
                lambda count=count: repeated(lambda: script.bodies(count), reads),  # type: ignore[misc]
                lambda count=count: repeated(lambda: opened.tier.tail(namespace, count), reads),  # type: ignore[misc]
                rounds,
            )
            parsed = alternate(
                lambda count=count: repeated(lambda: script.parsed(count), reads),  # type: ignore[misc]
                lambda count=count: repeated(lambda: opened.tier.tail(namespace, count), reads),  # type: ignore[misc]
                rounds,
            )
            lines += [
                strict.line("tail", f"{count} records / one Redis script", "p50", gate=2.0, note=sizes),
                strict.line("tail", "the same, p95", "p95"),
                parsed.line("tail", f"{count} records / the script and bare json.loads", "p50"),
            ]
        script.close()
    return lines


def body_of(copy: TailRecord) -> str:
    """What a reader gets of a record, as JSON."""
    parts = [copy.id, copy.key, copy.role, copy.created_at.timestamp(), copy.content, dict(copy.metadata)]
    return json.dumps(parts, ensure_ascii=False)


def recall(ground: Arena, *, quick: bool) -> list[Line]:
    """A question of six words over all records and over one of their sessions."""
    layouts = ((1_000, 50), (1_000, 1)) if quick else ((10_000, 50), (100_000, 50), (100_000, 1), (100_000, 1_000))
    return [line for size, sessions in layouts for line in _recall(ground, size, sessions, quick=quick)]


def _recall(ground: Arena, size: int, sessions: int, *, quick: bool) -> list[Line]:
    rounds, count = (3, 20) if quick else (9, 60)
    where = f"{size:,} records in " + (f"{sessions:,} sessions" if sessions > 1 else "one session")
    with ground.fresh() as opened, ground.bare() as conn:
        corpus = zipf(size)
        seconds = timed(lambda: load(corpus, sessions=sessions))
        postings = Postings(conn, corpus, sessions)
        ground.tidy("tier_records", "tier_postings", "operation_steps", "operations", "outbox")
        queries = corpus.queries(count)
        found = postings.bm25(queries[0])
        lines = [
            Line("recall", f"{where}: stored and indexed", size / seconds, "1/s", "higher",
                 note="in calls of 500, steps run in this process, no worker"),
            Line("recall", f"{where}: floor alone, primary key of 10",
                 figures(primary_key(postings, found, 200)).p50 * 1000, "ms", "lower"),
            Line("recall", f"{where}: floor alone, SELECT 1",
                 figures(select_one(conn, 200)).p50 * 1000, "ms", "lower"),
        ]  # fmt: skip
        for name, scope, space in scopes(sessions):
            one = alternate(
                lambda space=space: [timed(lambda q=q: postings.both(q, space=space)) for q in queries],  # type: ignore[misc]
                lambda scope=scope: [timed(lambda q=q: ask(opened, scope, q)) for q in queries],  # type: ignore[misc]
                rounds,
            )
            # The limit is for all of them: of a question to few records, what does not depend on their number is most.
            gate = 1.5 if size >= 100_000 and space == WHOLE else None
            note = (
                f"{rounds} rounds of {count} questions of 6 words; k = 10; floor: BM25 in one SQL, then 10 rows by key"
            )
            lines += [
                one.line("recall", f"{where}, {name} / sum of floors", "p50", gate=gate, note=note),
                one.line("recall", "the same, p95", "p95", gate=gate),
            ]
    return lines


def scopes(sessions: int) -> list[tuple[str, Scope, int]]:
    """What is asked: its name, its scope, and its space among the floor's postings."""
    if sessions == 1:
        return [("asked by its namespace", Scope(namespace=Namespace.of(_AGENT, "s0")), WHOLE)]
    one = Scope(namespace=Namespace.of(_AGENT, "s3"))
    return [("bank", Scope(bank=Bank(None, _AGENT)), WHOLE), (f"one of {sessions:,}", one, 1 + 3)]


def ask(opened: Storage, scope: Scope, query: str) -> object:
    """One recall as a program makes it."""
    return opened.tier.recall(scope, query, budget=_WANTED)


def load(corpus: Corpus, *, batch: int = 500, sessions: int = SESSIONS) -> None:
    """Store a corpus in the sessions of a bank, document n in session n mod `sessions`, and index it."""
    now = datetime.now(UTC)
    size = len(corpus.ranks)
    for session in range(sessions):
        namespace = Namespace.of(_AGENT, f"s{session}")
        records = [
            NewRecord(id=f"d{n}", content=corpus.text(n), created_at=now - timedelta(seconds=size - n), role="user")
            for n in range(session, size, sessions)
        ]
        for at in range(0, len(records), batch):
            producers.remember_records(namespace, records[at : at + batch])
    run_steps()
