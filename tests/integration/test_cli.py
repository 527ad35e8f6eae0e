from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commanding import answer, isotherm

from isotherm.storage.opened import Storage
from isotherm.storage.postgres.pool import fetch_all
from isotherm.storage.settings import settings
from isotherm.tasks import ticks
from isotherm.tasks.commands import doctor

LINES = [
    {"session": "s1", "role": "user", "content": f"note {n} about kelp forests", "time": f"2026-08-03T10:{n:02}:00Z"}
    for n in range(12)
]


def as_a_person_would(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "isotherm.tasks.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    file = tmp_path / "talk.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in LINES))
    return file


@pytest.mark.usefixtures("opened")
def test_what_is_remembered_is_recalled_before_any_worker_ran() -> None:
    first = answer("remember", "Tordis is a red kayak", "--agent", "atlas", "--session", "s1", "--key", "k1")
    again = answer("remember", "Tordis is a red kayak", "--agent", "atlas", "--session", "s1", "--key", "k1")
    assert (first["new"], again["new"]) == (True, False)
    assert first["id"] == again["id"]
    found = answer("recall", "kayak", "--agent", "atlas")
    assert [r["text"] for r in found["records"]] == ["Tordis is a red kayak"]
    assert answer("recall", "kayak", "--agent", "other")["records"] == []
    newest = answer("recall", "--agent", "atlas", "--session", "s1")
    assert [r["text"] for r in newest] == ["Tordis is a red kayak"]


@pytest.mark.usefixtures("opened")
def test_a_key_with_another_body_is_refused_with_a_sentence() -> None:
    answer("remember", "one", "--key", "k")
    done = isotherm("remember", "two", "--key", "k")
    assert done.returncode == 1
    assert "another body" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("opened")
def test_ingesting_twice_changes_nothing(sample: Path) -> None:
    first = answer("ingest", str(sample), "--no-wait")
    before = fetch_all("SELECT id, version, content FROM tier_records ORDER BY key")
    second = answer("ingest", str(sample), "--no-wait")
    assert (first["messages"], first["written"]) == (12, 12)
    assert (second["messages"], second["written"]) == (12, 0)
    assert first["operations"] == second["operations"]
    assert fetch_all("SELECT id, version, content FROM tier_records ORDER BY key") == before


@pytest.mark.usefixtures("opened")
def test_bad_lines_are_named_and_set_aside_and_the_rest_goes_in(sample: Path) -> None:
    good = sample.read_text().splitlines()
    secret = "xyzzy-secret"
    bad = ["{not json " + secret, json.dumps({"session": "s1", "role": "user", "content": secret, "time": "yesterday"})]
    sample.write_text("\n".join([good[0], bad[0], *good[1:5], bad[1], *good[5:]]))
    done = isotherm("ingest", str(sample), "--no-wait", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["written"] == 12
    assert [b["line"] for b in told["bad_lines"]] == [2, 7]
    assert secret not in done.stdout + done.stderr
    kept = [json.loads(line) for line in Path(told["set_aside"]).read_text().splitlines()]
    assert [k["line"] for k in kept] == [2, 7]
    assert kept[0]["raw"].startswith("{not json")
    # Repaired and ingested again, only the missing messages are new.
    assert fetch_all("SELECT count(*), count(DISTINCT id) FROM tier_records") == [(12, 12)]


@pytest.mark.usefixtures("opened")
def test_a_refused_line_is_forgotten_with_its_session_shown_by_the_doctor_and_gone_at_its_age(sample: Path) -> None:
    bad = [json.dumps({"session": s, "role": "user", "content": "refused", "time": "yesterday"}) for s in ("s1", "s2")]
    sample.write_text("\n".join(bad))
    kept = Path(
        json.loads(isotherm("ingest", str(sample), "--agent", "atlas", "--no-wait", "--json").stdout)["set_aside"]
    )
    told = json.loads(isotherm("doctor", "--json").stdout)["findings"]
    assert [(f["well"], f["text"].split(" of ")[0]) for f in told if f["subject"] == "refused lines"] == [
        (True, "1 file")
    ]
    done = isotherm("forget", "--agent", "atlas", "--session", "s1", "--yes", "--no-wait", "--json")
    assert json.loads(done.stdout)["counts"]["refused_lines"] == 1
    assert [json.loads(json.loads(line)["raw"])["session"] for line in kept.read_text().splitlines()] == ["s2"]
    old = time.time() - 40 * 86_400
    os.utime(kept, (old, old))
    [late] = [f for f in doctor._refused(settings()) if not f.well]
    assert "--queues maintenance" in late.remedy
    assert ticks.purge()["files"] == 1
    assert not list(doctor._refused(settings()))


@pytest.mark.usefixtures("opened")
def test_json_with_sessions_is_ingested_too(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    messages = [{key: line[key] for key in ("role", "content", "time")} for line in LINES]
    file.write_text(json.dumps({"sessions": [{"session": "s1", "agent": "atlas", "messages": messages}]}))
    assert answer("ingest", str(file), "--no-wait")["written"] == 12
    assert fetch_all("SELECT DISTINCT agent, session FROM namespaces") == [("atlas", "s1")]


@pytest.mark.usefixtures("opened")
def test_without_a_worker_the_doctor_names_the_queue_and_the_age_of_the_oldest_job(sample: Path) -> None:
    done = isotherm("ingest", str(sample))
    assert done.returncode == 0
    assert "no worker listens" in done.stdout
    done = isotherm("doctor", "--json")
    assert done.returncode == 4
    findings = {f["subject"]: f for f in json.loads(done.stdout)["findings"]}
    assert not findings["queue db"]["well"], findings
    assert "no consumer; 1 step waits, the oldest for" in findings["queue db"]["text"]
    assert findings["servers"]["well"]


@pytest.mark.usefixtures("opened")
def test_operations_are_listed_shown_cancelled_and_run_again() -> None:
    answer("remember", "a note")
    [listed] = answer("ops", "list")
    assert (listed["kind"], listed["state"]) == ("tier.remember", "accepted")
    shown = answer("ops", "show", listed["id"])
    assert [s["stage"] for s in shown["steps"]] == ["tier.index"]
    assert isotherm("ops", "cancel", listed["id"]).returncode == 0
    assert answer("ops", "show", listed["id"])["state"] == "cancelled"
    assert isotherm("ops", "cancel", listed["id"]).returncode == 1
    assert isotherm("ops", "retry", listed["id"]).returncode == 0
    assert answer("ops", "show", listed["id"])["state"] == "running"
    assert isotherm("ops", "show", "nonsense").returncode == 1
    assert answer("ops", "list", "--state", "done") == []


def test_a_database_that_is_away_is_a_sentence_and_exit_code_3(environment: dict[str, str]) -> None:
    dead = {**environment, "ISOTHERM_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/none"}
    done = as_a_person_would("recall", "anything", environment=dead)
    assert done.returncode == 3
    assert "PostgreSQL cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_that_are_wrong_are_named_without_their_values(environment: dict[str, str]) -> None:
    done = as_a_person_would("tiers", environment={**environment, "ISOTHERM_LEASE": "soon-secret"})
    assert done.returncode == 1
    assert "ISOTHERM_LEASE" in done.stderr
    assert "soon-secret" not in done.stderr


@pytest.mark.usefixtures("opened")
def test_text_comes_from_standard_input_and_a_naive_time_is_refused() -> None:
    assert isotherm("remember", "-", text="from a pipe\n").returncode == 0
    assert fetch_all("SELECT content FROM tier_records") == [("from a pipe\n",)]
    done = isotherm("remember", "x", "--time", "2026-08-03T10:00:00")
    assert done.returncode == 1
    assert "time" in done.stderr


def test_tables_are_for_people(opened: Storage, sample: Path) -> None:
    assert opened.settings.max_attempts == 5
    isotherm("ingest", str(sample), "--no-wait")
    tiers = isotherm("tiers")
    assert "default" in tiers.stdout
    assert " 12 " in tiers.stdout
    assert "kelp forests" in isotherm("recall", "kelp").stdout
    assert "session.ingest" in isotherm("ops", "list").stdout
    assert isotherm("--version").stdout.startswith("isotherm 0.")
