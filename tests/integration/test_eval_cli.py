from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, new, settle, uid
from commanding import answer, isotherm
from hash_embedder import HashEmbedder
from inprocess import drive

from isotherm.pipeline.identity import Namespace
from isotherm.storage.models import factory
from isotherm.tasks import producers
from isotherm.tasks.produce_brain import put_many

if TYPE_CHECKING:
    from pathlib import Path

    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(autouse=True)
def embedder(memory: Storage) -> None:
    factory.use_embedder(memory.settings, HashEmbedder())


def written(tmp_path: Path, *lines: dict[str, Any]) -> str:
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(file)


def test_questions_about_knowledge_show_what_each_leg_and_the_graph_find(tmp_path: Path) -> None:
    put_many(KNOWLEDGE, [
        new(1, "Dark River (film)", "a film by Clio Barnard"), new(2, "Clio Barnard", "was brought up in Otley"),
        *(new(n, f"Place {n}", "place of birth") for n in range(10, 14)),
    ])  # fmt: skip
    settle()
    file = written(
        tmp_path,
        {"question": "birth place of who made Dark River", "expected": [str(uid(1)), "Clio Barnard"], "kb": "atlas"},
        {"question": "who wrote Moby Dick", "expected": ["nothing here"]},
    )
    found = answer("eval", file, "--agent", "atlas")
    assert found["questions"] == 2
    assert list(found["ways"]) == ["words alone", "vectors alone", "both, by ranks", "both", "both and graph"]
    assert found["ways"]["both and graph"]["recall"]["3"] == 0.5
    assert found["places"][0]["both and graph"] == [0, 1]
    assert found["places"][0]["words alone"] == [0]
    assert found["places"][1]["both"] == []
    assert found["unknown"] == [{"line": 2, "expected": "nothing here"}]
    done = isotherm("eval", file, "--agent", "atlas", "--misses")
    assert done.returncode == 0
    assert "recall@10" in done.stdout
    assert "█" in done.stdout
    assert "Moby Dick" in done.stdout
    assert "1 expected name not in what was asked, line 2" in done.stderr


def test_questions_about_records_show_the_parts_of_recall(tmp_path: Path) -> None:
    namespace = Namespace.of("atlas", "s1")
    ids = [producers.remember(namespace, text).ids[0] for text in ("the key is under the mat", "tea at noon")]
    drive()
    file = written(tmp_path, {"question": "where is the key", "expected": [ids[0]], "agent": "atlas"})
    found = answer("eval", file)
    assert found["ways"]["recall"]["recall"]["1"] == 1.0
    assert found["ways"]["recall, words alone"]["mrr"] == 1.0
    assert found["unknown"] == []
    file = written(tmp_path, {"question": "where is the key", "expected": [ids[0], "another"], "agent": "atlas"})
    assert answer("eval", file)["unknown"] == [{"line": 1, "expected": "another"}]


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"\xff")
    assert "not UTF-8" in isotherm("eval", str(file)).stderr
    file.write_text('{"question": "who"}')
    done = isotherm("eval", str(file))
    assert (done.returncode, "line 1: expected" in done.stderr) == (1, True)
