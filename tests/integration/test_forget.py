"""Forget means gone: rows, words, vectors, summaries, bodies, hot copies, ledgers, objects, graph, interests; nothing comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import psycopg
import pytest
from erasing import everything, forgotten
from inprocess import STAGES, drive
from tiering import LONG, NS, store
from uuid_utils.compat import uuid7

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.stages import MIGRATE
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage import forget as storage_forget
from isotherm.storage.models import factory
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.redis.tail import Tail
from isotherm.storage.tier_stores.postgres import PostgresStore
from isotherm.tasks import cold, producers
from isotherm.tasks import forget as stage
from isotherm.tasks import tier as stages
from isotherm.tasks.passes import start
from isotherm.tasks.produce_brain import link, put, search
from isotherm.tasks.produce_interest import ingest_session, interests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

    from isotherm.pipeline.ports import Question
    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("memory")

SECRET = "xyzzyplugh"
OTHER = Namespace.of("atlas", "s2")
FOREIGN = Namespace.of("atlas", "s1", tenant="acme")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def said(*texts: str, session: str = "s1") -> list[TranscriptLine]:
    begun = datetime.now(UTC) - timedelta(hours=1)
    return [
        TranscriptLine(n + 1, "atlas", session, None, "user", text, begun + timedelta(seconds=n))
        for n, text in enumerate(texts)
    ]


def test_a_forgotten_record_is_gone_when_the_call_returns(memory: Storage, client: redis.Redis) -> None:
    store(("a", timedelta(hours=1)), content=f"{SECRET} one")
    store(("b", timedelta(hours=1)), content="kelp")
    assert len(memory.tier.tail(NS)) == 2
    accepted = producers.forget(NS, ["a", "never-there"])
    assert accepted.written == 1
    assert [r.id for r in memory.tier.tail(NS)] == ["b"]
    assert SECRET not in everything(client)
    assert [i.record.id for i in memory.tier.recall(Scope(namespace=NS), SECRET).items] == ["b"]
    with pytest.raises(RejectedError):
        producers.get(NS, "a")
    receipt = forgotten(accepted)
    assert (receipt.level, receipt.counts["records"]) == ("records", 1)
    assert "a" not in str(fetch_all("SELECT record_keys, counts FROM erasures"))


def test_a_pass_that_was_planned_before_and_written_after_an_erasure_does_not_keep_it_from_its_end() -> None:
    store(("a", timedelta(hours=1)), ("b", timedelta(hours=1)))
    place = namespaces.find(NS)
    assert place is not None
    keys = [row[0] for row in fetch_all("SELECT key FROM tier_records ORDER BY id")]
    accepted = producers.forget(NS, ["a"])
    late = NewOperation(uuid7(), "tier.reconcile", uuid4(), place.bank_id, place.namespace_id)
    start(late, NewStep(MIGRATE, {"moves": [[key, 1, 3, 2, "capacity"] for key in keys]}))
    receipt = forgotten(accepted)
    assert (receipt.counts["records"], receipt.counts["steps"]) == (1, 2)  # of the index, and this
    [(moves,)] = fetch_all("SELECT input -> 'moves' FROM operation_steps WHERE stage = 'tier.migrate'")
    assert [move[0] for move in moves] == keys[1:]


def test_a_cold_record_goes_with_its_body_summary_and_the_answers_of_the_work_that_moved_it(
    memory: Storage, client: redis.Redis
) -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM, content=f"{SECRET} {LONG}")
    store(("b", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    policy = memory.settings.tier.model_copy(update={"cooldown": None})
    drive(producers.reconcile(NS, policy).operation_id)
    assert SECRET in str(fetch_all("SELECT answer FROM operation_steps WHERE answer IS NOT NULL"))
    receipt = forgotten(producers.forget(NS, ["a"]))
    assert SECRET not in everything(client)
    assert {"records": 1, "summaries": 1, "cold_bodies": 1}.items() <= receipt.counts.items()
    [answer] = fetch_all("SELECT answer FROM operation_steps WHERE answer IS NOT NULL")
    assert len(answer[0]["summaries"]) == 1  # the other record's


def test_work_in_flight_for_a_forgotten_record_brings_nothing_back(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is forgotten while a summarizer has its text in its hands; its step runs again without it."""
    store(("a", timedelta(days=9)), ("b", timedelta(days=9)), tier=Tier.WARM, content=f"{SECRET} {LONG}")
    accepted = producers.reconcile(NS, memory.settings.tier)
    trace = str(uuid4())

    def run(stage: str) -> dict[str, Any]:
        [[step_id]] = fetch_all(
            "SELECT id FROM operation_steps WHERE stage = %(s)s AND state = 'pending'", {"s": stage}
        )
        return STAGES[stage]({"step_id": step_id, "operation_id": str(accepted.operation_id), "trace_id": trace})

    run("tier.plan")
    summaries = cold.summaries_of

    def slow(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(cold, "summaries_of", summaries)
        forget = producers.forget(NS, ["a"])
        assert forget.written == 1
        return summaries(*args, **more)

    monkeypatch.setattr(cold, "summaries_of", slow)
    assert run("cold.summarize")["state"] == "skipped"
    drive()
    assert producers.operation(accepted.operation_id).state == "done"
    assert fetch_all("SELECT id, tier FROM tier_records") == [("b", 1)]
    assert "a" not in {i for (i,) in fetch_all("SELECT id FROM tier_records")}
    assert all(
        len(a["summaries"]) == 1 for (a,) in fetch_all("SELECT answer FROM operation_steps WHERE answer IS NOT NULL")
    )


def test_an_index_message_that_comes_after_the_record_was_forgotten_writes_nothing() -> None:
    producers.remember(NS, f"{SECRET} words", record_id="a")
    rows = fetch_all("SELECT id, operation_id FROM operation_steps WHERE stage = 'tier.index'")
    producers.forget(NS, ["a"])
    stages.index({"step_id": rows[0][0], "operation_id": str(rows[0][1]), "trace_id": str(uuid4())})
    assert fetch_all("SELECT count(*) FROM tier_postings") == [(0,)]
    assert fetch_all("SELECT count(*) FROM tier_records") == [(0,)]


def test_what_is_remembered_after_forgetting_is_a_new_record_even_with_the_old_key(memory: Storage) -> None:
    first = producers.remember(NS, "kelp", key="k")
    producers.forget(NS, first.ids)
    again = producers.remember(NS, "kelp", key="k")
    assert (again.new, again.ids) == (True, first.ids)
    assert memory.tier.get(NS, first.ids[0]).version == 1


def test_a_session_goes_whole_and_the_others_stay(memory: Storage, client: redis.Redis) -> None:
    for namespace in (NS, OTHER, FOREIGN):
        producers.remember(namespace, f"{SECRET if namespace is NS else 'kelp'} note", record_id="a")
        put(namespace, kind="document", title=f"{SECRET if namespace is NS else 'kelp'} title", content="text")
    drive()
    memory.tier.tail(NS)
    before = fetch_all("SELECT count(*) FROM tier_records")[0][0]
    accepted = producers.forget_session(Bank(None, "atlas"), "s1")
    # Names are gone at once.
    assert memory.tier.tail(NS) == []
    assert search(NS, SECRET).results == ()
    receipt = forgotten(accepted)
    assert SECRET not in everything(client)
    assert {"records": 1, "objects": 1, "namespaces": 1}.items() <= receipt.counts.items()
    assert fetch_all("SELECT count(*) FROM tier_records")[0][0] == before - 1
    assert "s1" not in {s for (s,) in fetch_all("SELECT session FROM namespaces WHERE tenant IS NULL")}
    for namespace in (OTHER, FOREIGN):
        assert len(memory.tier.tail(namespace)) == 1
        assert len(search(namespace, "kelp").results) == 1


def test_an_agent_and_a_tenant_go_with_their_knowledge_graph_and_interests(client: redis.Redis) -> None:
    for tenant in ("acme", "zenith"):
        namespace = Namespace.of("atlas", "s1", tenant=tenant)
        one = put(namespace, kind="document", title=f"{SECRET} {tenant} one")
        two = put(namespace, kind="document", title=f"{SECRET} {tenant} two")
        link(namespace, one.ids[0], two.ids[0], "mentions")
        lines = [
            TranscriptLine(
                1, "atlas", "s1", tenant, "user", f"I prefer {SECRET} {tenant} tea over coffee.", datetime.now(UTC)
            )
        ]
        ingest_session(namespace, lines)
    drive()
    assert interests(Bank("acme", "atlas"))
    receipt = forgotten(producers.forget_agent(Bank("acme", "atlas")))
    found = everything(client)
    assert "acme" not in found
    assert f"{SECRET} zenith" in found
    assert {"records": 1, "objects": 2, "edges": 1, "banks": 1, "interests": 1}.items() <= {
        **receipt.counts,
        "interests": min(1, receipt.counts.get("interests", 0)),
    }.items()
    assert fetch_all("SELECT count(DISTINCT namespace) FROM graph_nodes") == [(1,)]
    forgotten(producers.forget_tenant("zenith"))
    left = everything(client)
    assert SECRET not in left
    assert "zenith" not in left
    assert fetch_all("SELECT count(*) FROM banks") == [(0,)]


def test_interests_that_others_speak_for_stay_and_are_told_by_them(client: redis.Redis) -> None:
    bank = Bank(None, "atlas")
    ingest_session(NS, said(f"I prefer green tea over coffee because of {SECRET}."))
    drive()
    ingest_session(OTHER, said("I prefer green tea over coffee.", session="s2"))
    drive()
    [point] = [p for p in interests(bank) if p.sessions == 2]
    forgotten(producers.forget_session(bank, "s1"))
    assert SECRET not in everything(client)
    [kept] = [p for p in interests(bank) if p.id == point.id]
    assert kept.sessions == 1


def test_a_session_that_is_being_read_is_read_again_without_the_forgotten_record(client: redis.Redis) -> None:
    accepted = ingest_session(NS, said("I prefer green tea over coffee.", f"I love {SECRET} above all other music."))
    [first] = fetch_all("SELECT id, operation_id FROM operation_steps WHERE stage = 'interest.extract'")
    STAGES["interest.extract"]({"step_id": first[0], "operation_id": str(first[1]), "trace_id": str(uuid4())})
    producers.forget(NS, [accepted.ids[1]])
    assert SECRET not in everything(client)
    drive()
    assert SECRET not in everything(client)
    assert producers.operation(accepted.operation_id).state == "done"


class Judge:
    """A chat model that finds one topic in whatever it reads, and during whose answer something happens, once."""

    def __init__(self, moment: str, act: Callable[[], object]) -> None:
        self.moment, self.act, self.done = moment, act, False

    def ask(self, question: Question[Any]) -> Any:
        if question.name == self.moment and SECRET in question.user and not self.done:
            self.done = True
            self.act()
        topics = [SECRET, f"{SECRET}s"] if SECRET in question.user else ["green tea"]
        item = {"reason": "it was said", "confidence": 0.8, "first_turn": 0, "last_turn": 0}
        said = {"items": [{"topic": t, **item} for t in topics]} if question.name == "interest_extract" else {}
        return question.answer.model_validate(said)


class Same:
    """An embedder to whom everything is alike, so that everything is judged."""

    model, dimension = "same", 8

    def embed(self, texts: Sequence[str]) -> Any:
        return np.tile(np.eye(1, 8, dtype=np.float32), (len(texts), 1))


@pytest.mark.parametrize("moment", ["interest_extract", "interest_s1", "interest_v1_2"])
def test_nothing_derived_survives_a_source_that_is_forgotten_while_a_judge_thinks_about_it(
    memory: Storage, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    accepted: list[Any] = []
    judge = Judge(moment, lambda: producers.forget(NS, accepted[0].ids))
    monkeypatch.setattr(factory, "chat_model", lambda _: judge)
    factory.use_embedder(memory.settings, Same())
    ingest_session(OTHER, said("I prefer green tea over coffee.", session="s2"))
    drive()
    accepted.append(ingest_session(NS, said(f"I love {SECRET} above all other music.")))
    drive()
    assert judge.done
    assert SECRET not in everything(client)
    assert {p.name for p in interests(Bank(None, "atlas"))} == {"green tea"}
    assert not fetch_all("SELECT 1 FROM operations WHERE finished_at IS NULL")


def test_a_writer_that_kept_the_old_ids_writes_into_a_new_namespace(memory: Storage) -> None:
    producers.remember(NS, "old", record_id="a")
    drive()
    stale = namespaces.resolve(NS)
    accepted = producers.forget(NS)
    for erased in (False, True):
        if erased:
            forgotten(accepted)
        namespaces._PLACES[NS] = stale
        producers.remember(NS, f"new {erased}", record_id=f"n{erased}")
        drive()
        assert namespaces.resolve(NS) != stale
    assert [r.content for r in memory.tier.tail(NS)] == ["new False", "new True"]


def test_a_session_read_by_a_writer_that_kept_the_old_ids_is_the_new_one() -> None:
    producers.remember(NS, "old", record_id="a")
    drive()
    stale = namespaces.resolve(NS)
    forgotten(producers.forget(NS))
    namespaces._PLACES[NS] = stale
    line = TranscriptLine(1, NS.agent, str(NS.session), None, "user", "I love sea kayaking.", datetime.now(UTC))
    accepted = ingest_session(NS, [line])
    read = "SELECT (input ->> 'namespace_id')::bigint FROM operation_steps WHERE operation_id = %(id)s AND stage = 'interest.extract'"
    assert fetch_all(read, {"id": accepted.operation_id}) == [(namespaces.resolve(NS).namespace_id,)]
    assert namespaces.resolve(NS) != stale


def test_a_store_that_kept_the_old_ids_writes_into_a_new_namespace(memory: Storage) -> None:
    producers.remember(NS, "old", record_id="a")
    drive()
    stale = namespaces.resolve(NS)
    stored = PostgresStore(memory.tier, memory.patience, memory.blobs).get(NS, "a")
    forgotten(producers.forget(NS))
    namespaces._PLACES[NS] = stale
    PostgresStore(memory.tier, memory.patience, memory.blobs).put(NS, stored)
    drive()
    assert namespaces.resolve(NS) != stale
    assert [r.content for r in memory.tier.tail(NS)] == ["old"]


def test_a_reader_that_kept_the_old_ids_reads_the_new_namespace(memory: Storage) -> None:
    producers.remember(NS, "old", record_id="a")
    assert len(memory.tier.tail(NS)) == 1
    stale = namespaces.resolve(NS)
    producers.forget(NS)
    producers.remember(NS, "new", record_id="b")
    for _ in range(2):
        namespaces._PLACES[NS] = stale
        assert [r.id for r in memory.tier.tail(NS)] == ["b"]
    drive()


def test_an_object_put_under_an_old_name_is_in_the_graph_after_the_erasure() -> None:
    put(NS, kind="document", title="old")
    drive()
    accepted = producers.forget(NS)
    new = put(NS, kind="document", title="new")
    drive(new.operation_id)
    forgotten(accepted)
    drive()
    assert fetch_all("SELECT title FROM graph_nodes WHERE NOT deleted") == [("new",)]


def test_erasing_goes_on_in_parts_and_after_a_runner_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_forget, "_BATCH", 4)
    monkeypatch.setattr(stage, "BATCHES", 2)
    store(*[(f"r{n}", timedelta(hours=1)) for n in range(25)])
    accepted = producers.forget(NS)
    with monkeypatch.context() as broken:
        broken.setattr(Tail, "invalidate", lambda *_: (_ for _ in ()).throw(KeyError("lost")))
        drive_until_error(accepted)
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now() WHERE state = 'pending'")
    receipt = forgotten(accepted)
    assert receipt.counts["records"] == 25
    steps = fetch_all("SELECT count(*) FROM operation_steps WHERE stage = 'tier.forget'")
    assert steps[0][0] > 3


def drive_until_error(accepted: producers.Accepted) -> None:
    for _ in range(50):
        rows = fetch_all(
            "SELECT id FROM operation_steps WHERE operation_id = %(o)s AND state = 'pending' AND not_before <= now()",
            {"o": accepted.operation_id},
        )
        if not rows:
            return
        STAGES["tier.forget"](
            {"step_id": rows[0][0], "operation_id": str(accepted.operation_id), "trace_id": str(uuid4())}
        )


def test_the_verifier_finds_what_was_left(memory: Storage) -> None:
    store(("a", timedelta(hours=1)), content="kelp")
    [[key, bank, ns]] = fetch_all("SELECT key, bank_id, namespace_id FROM tier_records")
    accepted = producers.forget(NS, ["a"])
    drive()
    with connection() as conn:
        conn.execute(
            "INSERT INTO tier_postings (bank_id, term, record_key, namespace_id) VALUES (%s, 42, %s, %s)",
            (bank, key, ns),
        )
    assert producers.forget_receipt(accepted.operation_id).left == {"tier_postings": 1}
    with connection() as conn:
        conn.execute("DELETE FROM tier_postings")
    with pytest.raises(RejectedError):
        producers.forget_receipt(uuid4())
    assert memory.tier.tail(NS) == []


def test_a_key_makes_forgetting_safe_to_repeat(memory: Storage) -> None:
    producers.remember(NS, "one", record_id="a")
    first = producers.forget(NS, ["a"], key="k")
    producers.remember(NS, "two", record_id="a")
    again = producers.forget(NS, ["a"], key="k")
    assert (again.operation_id, again.new) == (first.operation_id, False)
    assert memory.tier.get(NS, "a").content == "two"
    drive()


@pytest.mark.parametrize("level", ["records", "namespace", "session", "agent", "tenant"])
def test_no_level_reaches_beyond_its_names_and_a_missing_name_is_no_wildcard(memory: Storage, level: str) -> None:
    for namespace in (NS, OTHER, FOREIGN):
        producers.remember(namespace, "kelp", record_id="a")
    drive()
    nowhere = Namespace.of("atlas", "s1", tenant="nobody")
    calls = {
        "records": lambda: producers.forget(nowhere, ["a"]),
        "namespace": lambda: producers.forget(nowhere),
        "session": lambda: producers.forget_session(nowhere.bank, "s1"),
        "agent": lambda: producers.forget_agent(nowhere.bank),
        "tenant": lambda: producers.forget_tenant("nobody"),
    }
    assert forgotten(calls[level]()).counts == {}
    for wrong in (lambda: producers.forget_tenant(""), lambda: producers.forget_session(NS.bank, " "),
                  lambda: producers.forget_agent(Bank(None, "")), lambda: producers.forget(NS, [])):  # fmt: skip
        with pytest.raises(RejectedError):
            wrong()
    assert all(len(memory.tier.tail(namespace)) == 1 for namespace in (NS, OTHER, FOREIGN))


def test_files_that_were_written_anew_hold_nothing_of_what_was_forgotten(memory: Storage, dsn: str) -> None:
    producers.remember(NS, f"{SECRET} in a file", record_id="a")
    producers.remember(NS, "kelp stays", record_id="b")
    drive()
    forgotten(producers.forget(NS, ["a"]))
    assert SECRET.encode() in stored_bytes(dsn)
    written = producers.rewrite_files()
    assert (written.tables > 20, written.statistics, written.log) == (True, True, True)
    found = stored_bytes(dsn)
    assert SECRET.encode() not in found
    assert b"kelp stays" in found
    assert [r.id for r in memory.tier.tail(NS)] == ["b"]


def test_the_planners_statistics_hold_nothing_of_what_was_forgotten(dsn: str) -> None:
    """Autovacuum may have sampled values before they were erased, and leaves its sample where a table is empty now."""
    store(*((f"a{n}", timedelta(hours=1)) for n in range(40)), content=f"{SECRET} kelp")
    put(NS, "note", title=SECRET, content=f"{SECRET} kelp")
    drive()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("ANALYZE")
        assert conn.execute(_SAMPLED, (f"%{SECRET}%",)).fetchall()
    forgotten(producers.forget_agent(NS.bank))
    producers.rewrite_files()
    assert SECRET.encode() not in stored_bytes(dsn)


def test_files_are_written_anew_once_nobody_looks_at_what_was_deleted(dsn: str) -> None:
    producers.remember(NS, f"{SECRET} in a file", record_id="a")
    drive()
    with psycopg.connect(dsn) as old, ThreadPoolExecutor(1) as beside:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1 FROM pg_class")
        forgotten(producers.forget(NS, ["a"]))
        rewriting = beside.submit(producers.rewrite_files)
        assert not wait((rewriting,), timeout=0.3).done
        old.rollback()
        rewriting.result()
    assert SECRET.encode() not in stored_bytes(dsn)


_SAMPLED = "SELECT tablename, attname FROM pg_stats WHERE schemaname = current_schema() AND pg_stats::text LIKE %s"


def stored_bytes(dsn: str) -> bytes:
    """The files of the database, as the server has them on disk."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CHECKPOINT")
        [[folder, oid]] = conn.execute(
            "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
        ).fetchall()
    return b"".join(path.read_bytes() for path in Path(folder, "base", str(oid)).iterdir() if path.is_file())
