"""Tiered memory from the command line: depth, plan, single records, forgetting, export and import."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from commanding import Done, answer, isotherm
from inprocess import drive
from tiering import LONG, NS, archive, store

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import tier_held
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers
from isotherm.tasks.commands import memory as commands
from isotherm.tasks.commands import tiers as tiers_command

if TYPE_CHECKING:
    from pathlib import Path

    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("memory")
HERE = ("--agent", "atlas", "--session", "s1")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(autouse=True)
def at_once(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that wait find their work done, without a worker."""
    assert memory.tier

    def done(operation_id: Any, seconds: float = 0) -> Any:
        assert seconds >= 0
        drive(operation_id)
        return producers.operation(operation_id)

    for module in ("memory", "edit", "erase"):
        monkeypatch.setattr(f"isotherm.tasks.commands.{module}.wait_for", done)


def refused(*arguments: str, code: int = 1) -> Done:
    done = isotherm(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_record_is_shown_changed_and_refused_by_its_version() -> None:
    store(("a", timedelta(hours=1)), content="kelp")
    assert answer("get", "a", *HERE)["text"] == "kelp a"
    assert answer("update", "a", "granite", *HERE, "--version", "1")["version"] == 2
    assert "version 2, not 1" in refused("update", "a", "basalt", *HERE, "--version", "1").stderr
    assert answer("update", "a", *HERE, "--metadata", '{"n": 1}')["written"] is True
    assert "JSON object" in refused("update", "a", *HERE, "--metadata", "[]").stderr
    assert "something to change" in refused("update", "a", *HERE).stderr
    assert "granite" in isotherm("get", "a", *HERE).stdout
    refused("get", "a", "--agent", "atlas", "--session", "s2")
    drive()


def test_scope_and_run_reach_every_namespace_and_no_other(tmp_path: Path) -> None:
    audit, of_run = ("--agent", "atlas", "--scope", "audit"), (*HERE, "--run", "r7")
    for where, text in ((HERE, "kelp in a session"), (audit, "kelp in an audit"), (of_run, "kelp in a run")):
        answer("remember", text, *where, "--key", "k")
    [(session_id,), (audit_id,), (run_id,)] = fetch_all("SELECT id FROM tier_records ORDER BY key")
    drive()
    for where, record_id, foreign in ((HERE, session_id, of_run), (audit, audit_id, HERE), (of_run, run_id, audit)):
        found = answer("get", record_id, *where)
        assert found["text"] in {"kelp in a session", "kelp in an audit", "kelp in a run"}
        assert (found["scope"], found["run"]) == (
            "audit" if where == audit else "session",
            "r7" if where == of_run else None,
        )
        assert [r["id"] for r in answer("recall", "kelp", *where)["records"]] == [record_id]
        assert [r["id"] for r in answer("recall", "", *where)] == [record_id]
        assert answer("pin", record_id, *where)["pinned"] == 1
        assert answer("explain", record_id, *where)["record"]["pinned"]
        assert answer("unpin", record_id, *where)["unpinned"] == 1
        assert answer("update", record_id, f"{found['text']} again", *where)["written"]
        drive()
        assert answer("restore", record_id, *where)["records"][0]["tier"] == "hot"
        assert answer("reconcile", *where)["namespaces"] == 1
        [planned] = answer("tiers", "plan", *where)
        assert (planned["scope"], planned["run"]) == (found["scope"], found["run"])
        for verb in ("get", "pin", "explain", "restore"):
            assert "Traceback" not in refused(verb, record_id, *foreign).stderr
    assert len(answer("recall", "kelp", "--agent", "atlas")["records"]) == 3
    assert answer("reconcile", "--agent", "atlas")["namespaces"] == 3
    assert [(d["session"], d["scope"], d["run"]) for d in answer("tiers")] == [
        (None, "audit", None), ("s1", "session", None), ("s1", "session", "r7")]  # fmt: skip
    shown = isotherm("tiers").stdout
    assert "scope" in shown
    assert "audit" in shown
    assert "s1 / r7" in shown
    assert answer("export", *audit, "--out", str(tmp_path / "of-audit.jsonl"))["records"] == 1
    assert "name the agent" in refused("export", "--run", "r7").stderr
    assert answer("forget", audit_id, *audit, "--yes")["counts"]["records"] == 1
    assert answer("forget", *of_run, "--yes")["level"] == "namespace"
    assert fetch_all("SELECT content FROM tier_records") == [("kelp in a session again",)]
    assert "either records" in refused("forget", "--agent", "atlas", "--run", "r7", "--interest", str(uuid4())).stderr


def test_a_cold_record_is_read_whole_and_pinned_back_to_warm() -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a")
    shown = answer("get", "a", *HERE)
    assert (shown["tier"], shown["text"]) == ("cold", f"{LONG} a")
    assert answer("pin", "a", *HERE)["restored_from_cold"] == 1
    assert answer("get", "a", *HERE)["tier"] == "warm"
    assert "1 record unpinned" in isotherm("unpin", "a", *HERE).stdout
    refused("pin", "missing", *HERE)


def test_a_record_is_explained_in_words_and_in_json() -> None:
    store(("a", timedelta(hours=30)), ("b", timedelta(hours=1)), content="kelp")
    told = answer("explain", "a", *HERE, "--query", "kelp")
    assert told["next_move"] == {"to": "warm", "reason": "ttl"}
    assert told["rating"]["place"] == 2
    assert told["rating"]["score"]["overlap"] > 0
    words = isotherm("explain", "a", *HERE, "--query", "kelp").stdout
    assert "the next pass moves it to warm, because of ttl" in words
    assert "place 2 of 2" in words
    refused("explain", "missing", *HERE)


def test_depth_shows_what_is_due_and_the_oldest_and_a_plan_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store(("a", timedelta(hours=30)), ("b", timedelta(hours=1)), content="kelp")
    [shown] = answer("tiers", "--agent", "atlas")
    assert shown["tiers"]["hot"]["records"] == 2
    assert shown["due_at"] is not None
    assert "now" in isotherm("tiers").stdout
    [planned] = answer("tiers", "plan", *HERE)
    assert planned["moves"] == [{"id": "a", "from": "hot", "to": "warm", "reason": "ttl"}]
    assert "1 hot → warm (ttl)" in isotherm("tiers", "plan", "--agent", "atlas").stdout
    assert "nothing is due" in isotherm("tiers", "plan", "--agent", "zoe").stdout
    assert fetch_all("SELECT DISTINCT tier FROM tier_records") == [(3,)]
    looks: list[float] = []

    def interrupted(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(tiers_command, "sleep", interrupted)
    assert isotherm("tiers", "--watch", "--every", "0.2").returncode == 0
    assert looks == [0.2, 0.2, 0.2]
    refused("tiers", "--watch", "--json")


def test_what_is_set_aside_is_listed_with_its_reason_and_tried_again_when_asked() -> None:
    assert "nothing is set aside" in isotherm("tiers", "aside").stdout
    store(("a", timedelta(hours=1)), ("lost", timedelta(hours=1)), content="kelp")
    audit = Namespace.of("zoe", None, "audit", run="r1", tenant="acme")
    producers.remember(audit, "kelp", record_id="b")
    drive()
    keys = dict(fetch_all("SELECT id, key FROM tier_records"))
    with connection() as conn:
        for reasons in ({keys["a"]: "summary [empty]"}, {keys["a"]: "summary [empty]", keys["b"]: "summary declined"}):
            tier_held.hold(conn, reasons, tier_held.Patience())
        tier_held.hold(conn, {keys["lost"]: tier_held.MISSING_BODY}, tier_held.Patience())
        conn.execute("UPDATE namespaces SET due_at = NULL")
    first, lost = answer("tiers", "aside")
    assert (first["scope"], first["agent"], first["session"], first["run"]) == ("session", "atlas", "s1", None)
    assert (first["id"], first["tier"], first["reason"], first["attempts"]) == ("a", "hot", "summary [empty]", 2)
    assert datetime.fromisoformat(first["held_until"]) > datetime.now(UTC) + timedelta(minutes=19)
    assert (lost["id"], lost["held_until"], lost["quarantined"]) == ("lost", None, True)
    [other] = answer("tiers", "aside", "--tenant", "acme", "--agent", "zoe")
    assert (other["tenant"], other["scope"], other["run"], other["id"]) == ("acme", "audit", "r1", "b")
    assert answer("tiers", "aside", "--agent", "zoe") == []
    words = " ".join(isotherm("tiers", "aside", columns=160).stdout.split())
    assert "summary [empty]" in words
    assert "until it is restored" in words
    assert "--limit" in isotherm("tiers", "aside", "--limit", "1").stdout
    assert answer("tiers", "aside", "--again") == {"again": 1}
    assert "0 records" in isotherm("tiers", "aside", "--again", "--agent", "nobody").stdout
    assert fetch_all("SELECT record_key FROM tier_set_aside WHERE held_until <= now()") == [(keys["a"],)]
    assert fetch_all("SELECT agent FROM namespaces WHERE due_at <= now()") == [("atlas",)], "nobody else's are touched"
    assert "no longer" in isotherm("tiers", "aside", columns=160).stdout


def test_tables_fit_a_narrow_terminal() -> None:
    store(("a", timedelta(hours=30)), ("b", timedelta(hours=1)), content="kelp")
    drive()
    lines = isotherm("tiers", columns=80).stdout.splitlines()
    assert [line.count("█") > 0 for line in lines if line.startswith((" atlas", " all"))] == [True, True]
    assert not any(line.strip(" █") == "" and "█" in line for line in lines), "a bar is broken into lines"
    shown = isotherm("ops", "list", columns=80).stdout
    assert "kind and result" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_what_is_not_there_is_forgotten_without_an_empty_table() -> None:
    store(("a", timedelta(hours=1)), content="kelp")
    shown = isotherm("forget", "--agent", "atlas", "--session", "another", "--yes")
    assert shown.returncode == 0
    assert "nothing was there" in shown.stdout
    assert "how many" not in shown.stdout


def test_records_say_whose_they_are_so_an_agent_is_refused_for_them(tmp_path: Path) -> None:
    store(("a", timedelta(hours=1)), content="kelp")
    file = tmp_path / "all.jsonl"
    assert isotherm("export", "--out", str(file)).returncode == 0
    assert "records say themselves whose they are" in " ".join(
        refused("import", str(file), "--agent", "zoe", code=2).stderr.replace("│", " ").split()
    )
    assert isotherm("import", str(file), "--no-wait").returncode == 0


def test_forgetting_asks_first_prints_a_receipt_and_can_be_looked_at_again() -> None:
    store(("a", timedelta(hours=1)), ("b", timedelta(hours=1)), content="kelp")
    refused("forget", "a", *HERE)
    assert len(fetch_all("SELECT 1 FROM tier_records")) == 2
    receipt = answer("forget", "a", *HERE, "--yes")
    assert (receipt["counts"]["records"], receipt["left"]) == (1, {})
    done = isotherm("forget", *HERE, "--yes")
    assert "nothing is left" in done.stdout
    assert "backups" in done.stdout
    assert fetch_all("SELECT count(*) FROM tier_records") == [(0,)]
    assert answer("forgotten", receipt["operation"])["finished_at"] is not None
    refused("forgotten", "nonsense")


def test_forgetting_takes_no_name_for_granted() -> None:
    producers.remember(Namespace.of("default"), "kelp", record_id="a")
    for wrong in (["forget", "--yes"], ["forget", "a", "--yes"], ["forget", "--session", "s1", "--yes"]):
        refused(*wrong)
    producers.remember(Namespace.of("atlas", "s1", tenant="acme"), "kelp")
    assert answer("forget", "--tenant", "acme", "--yes")["level"] == "tenant"
    assert fetch_all("SELECT id FROM tier_records") == [("a",)]
    drive()


def test_what_is_left_is_named_with_exit_code_4() -> None:
    store(("a", timedelta(hours=1)), content="kelp")
    [[key, bank, ns]] = fetch_all("SELECT key, bank_id, namespace_id FROM tier_records")
    receipt = answer("forget", "a", *HERE, "--yes")
    fetch_all(
        "INSERT INTO tier_postings (bank_id, term, record_key, namespace_id) VALUES (%(b)s, 1, %(k)s, %(n)s) RETURNING 1",
        {"b": bank, "k": key, "n": ns},
    )
    assert "1 in tier_postings" in refused("forgotten", receipt["operation"], code=4).stdout
    fetch_all("DELETE FROM tier_postings RETURNING 1")


def test_an_export_comes_back_as_it_was_and_bad_lines_are_set_aside(tmp_path: Path) -> None:
    store(("a", timedelta(hours=1)), ("b", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("b")
    file = tmp_path / "memory.jsonl"
    assert answer("export", "--agent", "atlas", "--out", str(file))["records"] == 2
    piped = isotherm("export", "--agent", "atlas")
    assert piped.stdout == file.read_text(encoding="utf-8")
    answer("forget", "--agent", "atlas", "--yes")
    good = file.read_bytes().splitlines(keepends=True)
    broken = json.loads(good[1]) | {"content": "xyzzy-secret"}
    file.write_bytes(b"".join([good[0], b"{nonsense\n", json.dumps(broken).encode() + b"\n", good[1]]))
    done = refused("import", str(file), "--no-wait", "--json")
    told = json.loads(done.stdout)
    assert (told["records"], told["written"]) == (2, 2)
    assert [line["line"] for line in told["bad_lines"]] == [2, 3]
    assert "xyzzy" not in done.stdout + done.stderr
    drive()
    file.write_bytes(b"".join(good))
    assert isotherm("export").stdout == file.read_text(encoding="utf-8")
    assert answer("import", str(file), "--no-wait")["written"] == 0
    drive()


def test_an_export_says_that_a_body_is_lost(tmp_path: Path) -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a")
    fetch_all("UPDATE cold_bodies SET body = 'x' RETURNING 1")
    producers.remember(NS, 'say "content":null', record_id="b", time=datetime.now(UTC))
    done = refused("export", "--out", str(tmp_path / "memory.jsonl"), code=4)
    assert "1 of them have lost their text" in done.stderr
    assert commands.tier_name(Tier.COLD)
    drive()
