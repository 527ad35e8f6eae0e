"""A redactor runs before anything is stored: no table, no key of Redis and no file holds what it takes out."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from inprocess import drive
from typer.testing import CliRunner

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import produce_brain, produce_interest, producers
from isotherm.tasks.cli import app

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from isotherm.storage.opened import Storage

SECRET = "ghp_" + "a1B2c3D4e5" * 4
MARK = "[redacted:api-key]"
HERE = Namespace.of("atlas", "today")
WHEN = datetime(2026, 10, 12, 9, 0, tzinfo=UTC)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_REDACTOR": "secrets"}


def tables_with(text: str) -> list[str]:
    names = fetch_all("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return [
        n for (n,) in names if fetch_all(f'SELECT 1 FROM "{n}" AS t WHERE strpos(t::text, %s) > 0 LIMIT 1', (text,))
    ]


def keys_with(client: redis.Redis, text: str) -> list[bytes]:
    return [key for key in client.scan_iter() if text.encode() in (client.dump(key) or b"")]


def line(content: str) -> TranscriptLine:
    return TranscriptLine(1, "atlas", "today", None, "user", content, WHEN, metadata={"k": SECRET})


@pytest.mark.usefixtures("memory")
def test_a_secret_reaches_no_table_and_no_key(client: redis.Redis) -> None:
    said = f"My token is {SECRET}, I use it for tidewater"
    producers.remember(HERE, said, key="k", metadata={"note": [SECRET], "deep": {"a": SECRET}})
    producers.remember_messages([line(said)])
    produce_interest.ingest_session(HERE, [line(said)])
    knowledge = produce_brain.knowledge("atlas")
    one = produce_brain.put(
        knowledge, "note", title=said, summary=said, content=said, properties={"p": [SECRET]}, key="one"
    )
    two = produce_brain.put(knowledge, "note", title="two", key="two")
    produce_brain.link(knowledge, one.ids[0], two.ids[0], "cites", note=said)
    drive()

    assert tables_with(SECRET) == []
    assert keys_with(client, SECRET) == []
    assert set(tables_with(MARK)) >= {"tier_records", "brain_objects", "brain_edges"}
    found = producers.recall(Bank(None, "atlas"), "token tidewater").items
    assert all(MARK in item.record.text for item in found)
    assert MARK in produce_brain.search(knowledge, "token tidewater").results[0].object.title


def test_a_secret_that_comes_by_an_update_or_an_import_is_taken_out(memory: Storage, tmp_path: Path) -> None:
    producers.remember(HERE, "kelp", record_id="a")
    producers.update(HERE, "a", content=f"kelp {SECRET}", metadata={"note": [SECRET]})
    drive()
    assert tables_with(SECRET) == []
    lines = [json.loads(line) for line in producers.export(HERE)]
    content = f"algae {SECRET}"
    line = {**lines[0], "id": "b", "content": content, "sha256": hashlib.sha256(content.encode()).hexdigest()}
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(line) + "\n" + json.dumps({**line, "tier": SECRET}) + "\n")
    done = CliRunner().invoke(app, ["import", str(file), "--no-wait"])
    assert done.exit_code == 1, done.output
    drive()
    assert tables_with(SECRET) == []
    assert producers.get(HERE, "b").content == f"algae {MARK}"
    assert SECRET not in "".join(p.read_text() for p in (memory.settings.data_dir / "set-aside").iterdir())


@pytest.mark.usefixtures("memory")
def test_repeating_a_call_with_a_secret_is_still_a_repeat() -> None:
    first = producers.remember(HERE, f"token {SECRET}", key="k")
    again = producers.remember(HERE, f"token {SECRET}", key="k")
    assert first.new
    assert not again.new
    assert again.operation_id == first.operation_id


def test_a_line_that_is_set_aside_is_kept_without_the_secret(opened: Storage, tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps({"session": "s", "role": "user", "content": 3, "token": SECRET}) + "\n")
    done = CliRunner().invoke(app, ["ingest", str(file), "--no-wait"])
    assert done.exit_code == 1, done.output
    kept = "".join(p.read_text() for p in (opened.settings.data_dir / "set-aside").iterdir())
    assert SECRET not in kept
    assert MARK in kept
