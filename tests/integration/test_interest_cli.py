from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from inprocess import drive
from sessions import ATLAS, ingest, session
from typer.testing import CliRunner

from isotherm.tasks import produce_interest
from isotherm.tasks.cli import app


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def call(*words: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [*words, "--agent", "atlas"])
    assert result.exit_code == code, result.output
    return result.stdout


def told(*words: str) -> Any:
    return json.loads(call(*words, "--json"))


def tell(name: str, *said: str, day: int = 0) -> None:
    drive(ingest(session(name, *said, day=day)))


@pytest.fixture
def known(memory: object) -> object:
    tell("s1", "I'm vegetarian.", "I love sea kayaking.")
    tell("s2", "I'm not vegetarian anymore.", "I love sea kayaking.", day=1)
    return memory


def names(found: Sequence[dict[str, Any]]) -> set[str]:
    return {one["name"] for one in found}


@pytest.mark.usefixtures("known")
def test_a_question_needs_no_name_of_a_command_and_may_have_a_span_of_time() -> None:
    assert names(told("interests")) == {"vegetarian", "sea kayaking", "not vegetarian anymore"}
    assert names(told("interests", "kayaking")) == names(told("interests", "list", "kayaking")) == {"sea kayaking"}
    assert names(told("interests", "kayaking", "--before", "2026-03-01")) == set()
    assert names(told("interests", "vegetarian", "--after", "2026-03-02", "--before", "2026-03-03")) == {
        "not vegetarian anymore"
    }
    assert names(told("interests", "vegetarian", "--days", "1")) == set()
    call("interests", "--days", "1", code=1)


@pytest.mark.usefixtures("known")
def test_an_interest_is_shown_with_its_evidence_and_history_and_a_merge_taken_back() -> None:
    [kayaking] = told("interests", "kayaking")
    shown = told("interests", "show", kayaking["id"])
    assert len(shown["evidence"]) == 2
    assert [one["action"] for one in shown["log"]] == ["update", "create"]
    assert "I love sea kayaking" in call("interests", "show", kayaking["id"])
    log = told("interests", "log", "--limit", "2", "--offset", "1")
    assert len(log) == 2
    assert "sea kayaking" in call("interests", "log")
    [entry] = [one["id"] for one in told("interests", "log") if one["undoable"]]
    assert "are two again" in call("interests", "undo", str(entry))
    assert [one.sessions for one in produce_interest.interests(ATLAS) if one.name == "sea kayaking"] == [1, 1]
    call("interests", "undo", str(entry), code=1)
    call("interests", "show", "01a22a71-c772-7551-97f4-cab9c58384fc", code=1)


@pytest.mark.usefixtures("known")
def test_a_contradiction_is_shown_settled_and_opened_again() -> None:
    [one] = told("contradictions")
    assert told("contradictions", "show", one["id"])["status"] == "open"
    assert "vegetarian" in call("contradictions", "show", one["id"])
    older = {side["name"]: side["id"] for side in (one["left"], one["right"])}["vegetarian"]
    call("contradictions", "resolve", one["id"], "--keep", one["id"], code=2)
    assert "resolved" in call("contradictions", "resolve", one["id"], "--keep", older)
    assert told("contradictions") == []
    [settled] = told("contradictions", "--resolved")
    assert (settled["current"], settled["because"]) == (older, "decided by hand")
    assert "open again" in call("contradictions", "reopen", one["id"])
    assert told("contradictions")[0]["because"] == "said later"


@pytest.mark.usefixtures("known")
def test_a_block_for_a_prompt_and_themes_are_printed() -> None:
    block = call("interests", "context", "kayaking")
    assert block.startswith("<isotherm_memory")
    assert "- sea kayaking" in block
    assert call("interests", "context", "kayaking", "--budget", "5").strip() == ""
    assert "no themes of atlas yet" in call("interests", "themes")
    assert told("interests", "themes") == []
