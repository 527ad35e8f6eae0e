"""Every verb inside its namespace; and the weaknesses that verbs, metrics and the sweep are there to avoid."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import drive, run_pass
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from tiering import LONG, NS, archive, policy, store

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.portable import read_line
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("memory")

HELD = Namespace.of("atlas", "s1", tenant="acme")
NEIGHBOR = Namespace.of("atlas", "s2", tenant="acme")
NOWHERE = {
    "missing": Namespace.of("nobody", "s1", tenant="acme"),
    "empty": Namespace.of("atlas", "s0", tenant="acme"),
    "foreign tenant": Namespace.of("atlas", "s1", tenant="other"),
    "no tenant": Namespace.of("atlas", "s1"),
    "other scope": Namespace.of("atlas", "s1", "audit", tenant="acme"),
    "other run": Namespace.of("atlas", "s1", run="r1", tenant="acme"),
}

# A verb either refuses a namespace that has no such record, or answers with nothing.
REFUSE: dict[str, Callable[[Namespace], Any]] = {
    "get": lambda ns: producers.get(ns, "a"),
    "get whole": lambda ns: producers.get(ns, "a", whole=True),
    "update": lambda ns: producers.update(ns, "a", content="stolen"),
    "pin": lambda ns: producers.pin(ns, ["a"]),
    "unpin": lambda ns: producers.unpin(ns, ["a"]),
    "restore": lambda ns: producers.restore(ns, ["a"]),
    "explain": lambda ns: producers.explain(ns, "a", query="kelp"),
}
NOTHING: dict[str, Callable[[Namespace], Any]] = {
    "recall": lambda ns: producers.recall(ns, "kelp").items,
    "list_all": lambda ns: producers.list_all(ns).records,
    "export": lambda ns: list(producers.export(ns)),
    "plan": lambda ns: producers.plan(ns).moves,
    "forget": lambda ns: producers.forget_receipt(producers.forget(ns, ["a"]).operation_id).counts,
    "forget all": lambda ns: producers.forget_receipt(producers.forget(ns).operation_id).counts.get("records"),
}


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def rows() -> list[tuple[Any, ...]]:
    return fetch_all(
        """SELECT r.id, r.content, r.summary, r.tier, r.pinned, r.version, n.session FROM tier_records AS r
           JOIN namespaces AS n ON n.id = r.namespace_id WHERE n.tenant = 'acme' AND n.session <> 's0' ORDER BY r.key"""
    )


@pytest.mark.parametrize("where", NOWHERE)
def test_no_verb_sees_or_changes_another_namespace(where: str) -> None:
    for namespace in (HELD, NEIGHBOR):
        producers.remember(namespace, f"kelp of {namespace.session}", record_id="a")
    producers.remember(NOWHERE["empty"], "kelp", record_id="only")
    producers.forget(NOWHERE["empty"], ["only"])
    drive()
    before = rows()
    for verb, call in REFUSE.items():
        with pytest.raises(RejectedError):
            pytest.fail(f"{verb} answered {call(NOWHERE[where])}")
    for verb, call in NOTHING.items():
        assert not call(NOWHERE[where]), verb
    drive()
    assert rows() == before
    for verb, call in REFUSE.items():
        assert call(HELD) is not None, verb
        drive()
    for verb in ("recall", "list_all", "export", "forget"):
        assert NOTHING[verb](HELD), verb
    drive()


def test_tier_weak_10_the_index_has_every_record_by_its_id_and_loses_what_is_gone(memory: Storage) -> None:
    first = producers.remember(NS, "kelp forest")
    store(("old", timedelta(days=9)), tier=Tier.WARM, content="barnacle")
    drive()
    assert {i.record.id for i in memory.tier.recall(Scope(namespace=NS), "kelp").items if i.score.overlap} == set(
        first.ids
    )
    words = """SELECT count(*) FROM (
        SELECT record_key FROM tier_postings UNION SELECT record_key FROM cold_words) AS either"""
    assert fetch_all(words) == [(2,)]
    producers.forget(NS, first.ids)
    assert fetch_all(words) == [(1,)]
    evicting = policy(demote_idle=timedelta(days=1), cold_ttl=timedelta(0))
    run_pass(NS, evicting)
    run_pass(NS, evicting)
    assert fetch_all(words) == [(0,)]
    drive()


def test_tier_weak_16_every_verb_exists_and_forgetting_leaves_a_receipt() -> None:
    verbs = ("get", "update", "pin", "unpin", "restore", "forget", "export", "import_records", "list_all", "explain")
    assert all(verb in producers.__all__ for verb in verbs)
    store(("a", timedelta(hours=1)))
    accepted = producers.forget(NS, ["a"])
    drive()
    receipt = producers.forget_receipt(accepted.operation_id)
    assert (receipt.counts["records"], receipt.left, len(receipt.scope_sha256)) == (1, {}, 64)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_tier_weak_21_metrics_have_few_labels_every_move_a_reason_and_every_call_an_outcome(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(("a", timedelta(hours=30)), ("b", timedelta(hours=1)))
    producers.remember(Namespace.of("atlas", "s1", "a-scope-of-my-own"), "x")
    moved, refused = (
        sample("isotherm_tier_moves_total", reason="ttl"),
        sample("isotherm_verbs_total", verb="pin", outcome="refused"),
    )
    with capture_logs() as logs:
        run_pass(NS, policy(hot_ttl=timedelta(days=1)))
    assert sample("isotherm_tier_moves_total", reason="ttl") == moved + 1
    [told] = [line for line in logs if line["event"] == "tier.records_moved"]
    assert told["reasons"] == {"ttl": 1}
    with pytest.raises(RejectedError):
        producers.pin(NS, ["missing"])
    assert sample("isotherm_verbs_total", verb="pin", outcome="refused") == refused + 1
    assert ticks.depth() == {"state": "nobody looks"}
    looked_at = replace(memory, settings=memory.settings.model_copy(update={"metrics_port": 9_999}))
    monkeypatch.setattr(ticks.storage, "open", lambda: looked_at)
    assert ticks.depth() == {"records": 3}
    depth = {(s.labels["memory"], s.labels["tier"]): s.value for m in REGISTRY.collect() if m.name == "isotherm_tier_records"
             for s in m.samples}  # fmt: skip
    assert len(depth) == 15
    assert (depth["session", "hot"], depth["session", "warm"], depth["other", "hot"]) == (1, 1, 1)


def test_tier_weak_22_a_finished_run_leaves_the_hot_tier_by_itself_its_bytes_are_known_and_it_can_be_forgotten() -> (
    None
):
    run = Namespace.of("atlas", "s1", "conversation", run="r1")
    producers.remember(run, "kelp", record_id="a", time=datetime.now(UTC) - timedelta(days=2))
    drive()
    # Nobody writes to it any more, and nobody asked for a pass: the sweep finds it by its age.
    assert ticks.due() == {"namespaces": 1}
    drive()
    assert fetch_all("SELECT tier, size_bytes FROM tier_records") == [(2, 4)]
    accepted = producers.forget(run)
    drive()
    assert producers.forget_receipt(accepted.operation_id).left == {}
    assert producers.list_namespaces(None) == []


def test_a_large_body_leaves_the_blob_store_with_its_record(memory: Storage) -> None:
    folder: Path = memory.settings.data_dir
    store(
        ("a", timedelta(days=9)),
        ("b", timedelta(days=9)),
        tier=Tier.WARM,
        content=random.Random(7).randbytes(40_000).hex(),
    )
    run_pass(NS, policy(demote_idle=timedelta(days=1)))
    objects = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 16_000]
    assert len(objects) == 2
    accepted = producers.forget(NS, ["a"])
    drive()
    receipt = producers.forget_receipt(accepted.operation_id)
    assert (receipt.counts["blobs"], receipt.left) == (1, {})
    assert sum(path.exists() for path in objects) == 1
    producers.forget_agent(NS.bank)
    drive()
    assert not any(path.exists() for path in objects)
    assert fetch_all("SELECT count(*) FROM cold_blobs") == [(0,)]


def test_passes_over_a_tenant_forget_its_name_and_its_texts(memory: Storage) -> None:
    namespace = Namespace.of("atlas", "s1", tenant="acme")
    producers.remember(namespace, f"xyzzy {LONG}", record_id="a")
    drive()
    with connection() as conn:
        conn.execute(
            """INSERT INTO operations (id, kind, trace_id, state, finished_at) VALUES (gen_random_uuid(), 'tier.quota',
                   gen_random_uuid(), 'done', now())"""
        )
        conn.execute(
            """INSERT INTO operation_steps (operation_id, stage, unit, queue, input, input_hash, retry_until, nudge_at, state,
                   finished_at, answer)
               SELECT o.id, s.stage, '', 'db', s.input::jsonb, '', now(), now(), 'done', now(), s.answer::jsonb
               FROM operations AS o, (VALUES ('tier.plan', '{"tenant": "acme"}', NULL), ('cold.summarize',
                    json_build_object('moves', json_build_array(json_build_array((SELECT key FROM tier_records), 1, 2, 1, 'quota')))::text,
                    json_build_object('summaries', json_build_object((SELECT key FROM tier_records)::text, 'xyzzy'))::text))
                   AS s (stage, input, answer) WHERE o.kind = 'tier.quota'"""
        )
    steps = "SELECT input::text || coalesce(answer::text, '') FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id WHERE o.kind = 'tier.quota'"
    assert "xyzzy" in str(fetch_all(steps))
    producers.forget(namespace)
    drive()
    assert "xyzzy" not in str(fetch_all(steps))
    assert "acme" in str(fetch_all(steps))
    producers.remember(namespace, "again")
    producers.forget_tenant("acme")
    drive()
    assert "acme" not in str(fetch_all(steps))
    assert memory.tier.tail(namespace) == []


def test_an_export_of_a_pinned_and_a_cold_record_reads_back_as_both() -> None:
    store(("a", timedelta(hours=1)), pinned=True)
    store(("b", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("b")
    found = {r.id: r for r in (read_line(line.encode()) for line in producers.export(NS))}
    assert (found["a"].pinned, found["b"].tier, found["b"].content) == (True, Tier.COLD, f"{LONG} b")
    assert all(json.loads(line)["format"] == "isotherm.record/1" for line in producers.export(NS))
