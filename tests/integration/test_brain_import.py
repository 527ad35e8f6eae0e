"""A folder of texts becomes objects with parts, a file a step; when a text was written is not when it was taken in."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, new, settle, titles, uid
from harness import steps_of
from inprocess import drive
from typer.testing import CliRunner

from isotherm.pipeline.brain.documents import Document
from isotherm.pipeline.brain.objects import NewObject, namespace_uuid
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank
from isotherm.storage import brain_mirror
from isotherm.storage.postgres import brain_imports, namespaces
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import brain_import, producers
from isotherm.tasks.cli import app
from isotherm.tasks.produce_brain import knowledge, put, put_many, read, search
from isotherm.tasks.produce_import import import_files

if TYPE_CHECKING:
    from pathlib import Path

    from isotherm.storage.opened import Storage

NOW = datetime.now(UTC)
LONG = "# a\n\nb\n\n" * 60

pytestmark = pytest.mark.usefixtures("words_only")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def call(*arguments: str) -> tuple[int, str]:
    ended = CliRunner(env={"COLUMNS": "160"}).invoke(app, arguments)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout


def documents(**texts: str) -> list[Document]:
    return [Document(uid(n), name, text) for n, (name, text) in enumerate(texts.items(), 1)]


def test_each_file_is_a_step_and_one_that_fails_is_named_while_the_others_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brain_import, "MOST_PARTS", 50)
    accepted = import_files(KNOWLEDGE, documents(kelp="# Kelp\n\nTwelve meters.", long=LONG, moss="Moss is green."))
    assert search(KNOWLEDGE, "moss").results == ()
    ran = drive(accepted.operation_id)
    assert ran.count("brain.import") == 3
    assert ran.count("brain.report_import") == 1
    done = producers.operation(accepted.operation_id)
    assert done.state == "partial"
    assert done.error is not None
    assert done.error.startswith("brain.import/long: more than 50 parts")
    assert done.result == {"files": 2, "failed": 1, "failed_files": ["long"], "parts": 2, "written": 4, "removed": 0}
    assert titles(search(KNOWLEDGE, "moss")) == ["moss"]
    assert titles(search(KNOWLEDGE, "twelve meters")) == ["Kelp"]
    assert fetch_all("SELECT name FROM brain_imports") == [("long",)], "kept for a retry"
    monkeypatch.setattr(brain_import, "MOST_PARTS", 500)
    assert producers.retry(accepted.operation_id) == 2, "the file, and what sums up"
    drive(accepted.operation_id)
    assert producers.operation(accepted.operation_id).state == "done"
    assert fetch_all("SELECT count(*) FROM brain_imports") == [(0,)]


def test_a_file_delivered_twice_is_stored_once_and_a_repeated_call_is_the_first_one() -> None:
    accepted = import_files(KNOWLEDGE, documents(kelp="# Kelp\n\nTwelve meters."), key="monday")
    again = import_files(KNOWLEDGE, documents(kelp="# Kelp\n\nTwelve meters."), key="monday")
    assert (again.operation_id, again.new) == (accepted.operation_id, False)
    with pytest.raises(RejectedError):
        import_files(KNOWLEDGE, documents(kelp="Other."), key="monday")
    [(step, operation, trace)] = fetch_all(
        """SELECT s.id, s.operation_id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
           WHERE s.stage = 'brain.import'"""
    )
    payload = {"step_id": step, "operation_id": str(operation), "trace_id": str(trace)}
    first = brain_import.import_file(payload)
    assert brain_import.import_file(payload) == first == {"parts": 1, "written": 2, "removed": 0}
    drive()
    assert fetch_all("SELECT count(*) FROM brain_objects WHERE revision = 1") == [(2,)]


def test_a_text_that_comes_late_leaves_the_newer_one_of_its_object_alone() -> None:
    older = import_files(KNOWLEDGE, documents(kelp="# Kelp\n\nTwelve meters."))
    newer = import_files(KNOWLEDGE, documents(kelp="# Kelp\n\nThirteen meters."))
    drive(newer.operation_id)
    drive(older.operation_id)
    late = producers.operation(older.operation_id)
    assert (late.state, late.error) == ("done", None)
    [file, _] = steps_of(older.operation_id)
    assert file.receipt == {"parts": 0, "written": 0, "removed": 0, "superseded": 1}
    assert fetch_all("SELECT content FROM brain_objects WHERE parent_id IS NOT NULL") == [("Thirteen meters.",)]
    assert fetch_all("SELECT count(*) FROM brain_imports") == [(0,)]


def test_a_text_that_is_read_while_a_newer_one_is_stored_is_not_written_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = import_files(KNOWLEDGE, documents(kelp="# Kelp\n\nTwelve meters."))
    newer = import_files(KNOWLEDGE, documents(kelp="# Kelp\n\nThirteen meters."))
    read = brain_imports.get

    def read_and_be_overtaken(conn: Any, key: int) -> Any:
        found = read(conn, key)
        monkeypatch.setattr(brain_imports, "get", read)
        drive(newer.operation_id)
        return found

    monkeypatch.setattr(brain_imports, "get", read_and_be_overtaken)
    drive(older.operation_id)
    assert producers.operation(older.operation_id).state == "done"
    assert fetch_all("SELECT content FROM brain_objects WHERE parent_id IS NOT NULL") == [("Thirteen meters.",)]


def test_what_cannot_be_one_call_is_refused() -> None:
    one = Document(uid(1), "a", "text")
    for wrong in (
        [],
        [one, one],
        [one, Document(uid(2), "a", "text")],
        [Document(namespace_uuid(KNOWLEDGE), "", "\ud800")] * 501,
    ):
        with pytest.raises(RejectedError):
            import_files(KNOWLEDGE, wrong)


def test_an_erased_namespace_takes_its_waiting_files_along() -> None:
    import_files(KNOWLEDGE, documents(kelp="Twelve meters."))
    receipt = producers.forget_agent(Bank(None, "atlas"))
    drive(receipt.operation_id)
    assert producers.operation(receipt.operation_id).state == "done"
    assert fetch_all("SELECT count(*) FROM brain_imports") == [(0,)]


def test_the_command_takes_a_folder_and_names_what_it_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.md").write_text("hidden")
    (tmp_path / "guide.md").write_text("# Kelp guide\n\nKelp grows.\n\n## Depth\n\nTwelve meters.")
    (tmp_path / "deep" / "notes.txt").write_text("Invoices are paid in thirty days.")
    (tmp_path / "deep" / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    code, out = call("import", str(tmp_path), "--no-wait", "--json", "--agent", "atlas")
    told = json.loads(out)
    assert (code, told["files"], told["bad_files"]) == (1, 2, [{"file": "deep/latin.txt", "reason": "not in UTF-8"}])
    settle()
    [found] = search(knowledge("atlas"), "twelve meters").results
    assert (found.object.title, found.object.properties) == ("Kelp guide", {"file": "guide.md"})
    [row] = fetch_all("SELECT DISTINCT properties->>'file' FROM brain_objects WHERE title = 'notes'")
    assert row == ("deep/notes.txt",)
    (tmp_path / "deep" / "latin.txt").unlink()
    (tmp_path / "guide.md").write_text("# Kelp guide\n\nKelp grows.")
    # A clock of the command's own: other threads of this process go on sleeping.
    monkeypatch.setattr("isotherm.tasks.commands.import_texts.time", SimpleNamespace(sleep=lambda _: drive()))
    code, out = call("import", str(tmp_path), "--json", "--agent", "atlas")
    told = json.loads(out)
    assert (code, told["files"], told["written"], told["removed"], told["unfinished"]) == (0, 2, 0, 1, 0), told
    code, out = call("import", str(tmp_path / "guide.md"), "--agent", "atlas")
    assert code == 0
    assert "1 file with 1 part: 0 objects and parts new or changed" in out
    assert call("import", str(tmp_path / "photo.png"), "--agent", "atlas")[0] == 2  # by its name no text, so records
    assert call("import", str(tmp_path / "photo.png"))[0] == 1


def test_records_are_still_imported_by_the_same_command(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    file.write_text("")
    assert call("import", str(file), "--no-wait") == (0, "0 records read: 0 new, 0 known already\n")
    assert call("import", str(tmp_path), "--records")[0] == 1
    assert call("import", str(tmp_path), "--kb")[0] == 1


def aged(answer: Any) -> dict[str, float]:
    return {result.object.title: result.score for result in answer.results}


def test_brain_weak_13_what_an_import_brings_is_as_old_as_its_source_says_and_a_repair_changes_no_age(
    memory: Storage, tmp_path: Path
) -> None:
    old = NOW - timedelta(days=400)
    put_many(KNOWLEDGE, [new(1, "fresh kelp"), NewObject(uid(2), "note", "dated kelp", source_time=old)])
    file = tmp_path / "filed.md"
    file.write_text("# filed kelp")
    os.utime(file, (old.timestamp(), old.timestamp()))
    assert call("import", str(file), "--no-wait", "--agent", "atlas")[0] == 0
    settle()
    scores = aged(search(KNOWLEDGE, "kelp"))
    assert scores["fresh kelp"] > scores["dated kelp"]
    assert scores["filed kelp"] == pytest.approx(scores["dated kelp"], rel=1e-3)
    stored = read(KNOWLEDGE, uid(2))
    assert stored.source_time == old
    assert stored.updated_at > NOW - timedelta(minutes=5)
    place = namespaces.find(KNOWLEDGE)
    assert place is not None
    brain_mirror.rebuild(memory.brain.graph, place.namespace_id, namespace_uuid(KNOWLEDGE))
    assert read(KNOWLEDGE, uid(2)) == stored
    assert put(KNOWLEDGE, "note", object_id=uid(2), title="dated kelp", source_time=old).written == 0
    assert put(KNOWLEDGE, "note", object_id=uid(2), title="dated kelp", source_time=NOW).written == 1
    with pytest.raises(RejectedError, match="source_time"):
        put(KNOWLEDGE, "note", title="x", source_time=datetime(2024, 1, 1))  # noqa: DTZ001 - what is refused
