from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inprocess import drive
from sessions import ATLAS, SAMPLE
from typer.testing import CliRunner

from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import produce_interest, producers
from isotherm.tasks.cli import app
from isotherm.tasks.commands import ingest as command

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def ingest(file: Path, *more: str) -> dict[str, Any]:
    ended = CliRunner().invoke(app, ["ingest", str(file), "--no-wait", "--json", *more])
    assert ended.exit_code == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def written(folder: Path, *said: tuple[str, str]) -> Path:
    """A file of messages by session, in the order given, one a second."""
    file = folder / "talk.jsonl"
    with file.open("w") as out:
        for n, (session, text) in enumerate(said):
            time = f"2026-03-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z"
            line = {"session": session, "agent": "atlas", "role": "user", "content": text, "time": time}
            out.write(json.dumps(line) + "\n")
    return file


def operations() -> list[tuple[str, int]]:
    return fetch_all("SELECT kind, count(*) FROM operations GROUP BY kind ORDER BY kind")


def run_all() -> None:
    """One operation after the other, since one that comes too early would wait for its turn."""
    for (operation_id,) in fetch_all("SELECT id FROM operations WHERE finished_at IS NULL ORDER BY created_at, id"):
        drive(operation_id)
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]


def test_a_file_is_read_session_by_session_and_again_changes_nothing() -> None:
    told = ingest(SAMPLE)
    assert (told["messages"], told["written"], told["bad_lines"]) == (215, 215, [])
    assert operations() == [("session.ingest", 8)]
    again = ingest(SAMPLE)
    assert again["written"] == 0
    assert again["operations"] == told["operations"]
    run_all()
    assert produce_interest.interests(ATLAS)


def test_without_interests_the_messages_are_only_remembered() -> None:
    assert ingest(SAMPLE, "--no-interests")["written"] == 215
    assert {kind for kind, _ in operations()} == {"tier.remember"}
    run_all()
    assert produce_interest.interests(ATLAS) == []


def test_sessions_that_are_mixed_in_a_file_are_each_read_once_as_a_whole(tmp_path: Path) -> None:
    said = [("s1", "I love tea."), ("s2", "I bake bread."), ("s1", "I'm vegetarian."), ("s2", "I love tea.")]
    ingest(written(tmp_path, *said))
    assert operations() == [("session.ingest", 2)]
    run_all()
    assert {one.name: one.sessions for one in produce_interest.interests(ATLAS)} == {
        "tea": 2,
        "bake bread": 1,
        "vegetarian": 1,
    }


@pytest.mark.parametrize("count", [producers.MAX_BATCH, producers.MAX_BATCH + 1])
def test_a_session_longer_than_one_call_goes_in_by_parts_and_is_read_once(tmp_path: Path, count: int) -> None:
    said = [("s1", "I love tea."), *(("s1", f"Note {n} is done.") for n in range(count - 2)), ("s1", "I bake bread.")]
    told = ingest(written(tmp_path, *said))
    assert told["written"] == count
    assert dict(operations())["session.ingest"] == 1
    run_all()
    assert {one.name for one in produce_interest.interests(ATLAS)} == {"tea", "bake bread"}


def test_what_waits_for_the_end_of_its_session_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_HELD_BYTES", 40)
    said = [("s1", "I love tea."), ("s2", "I bake bread."), ("s1", "I'm vegetarian."), ("s2", "I love tea.")] * 2
    told = ingest(written(tmp_path, *said))
    assert told["written"] == 8
    assert dict(operations())["session.ingest"] > 2
    run_all()
    assert {one.name: one.sessions for one in produce_interest.interests(ATLAS)} == {
        "tea": 2,
        "bake bread": 1,
        "vegetarian": 1,
    }
