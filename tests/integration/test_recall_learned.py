"""What was learned and what sums up a session, as legs of recall and in the text for a prompt."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import drive
from typer.testing import CliRunner

from isotherm.pipeline import text
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.records import NewRecord
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage import tier_learned
from isotherm.storage.postgres.pool import connection
from isotherm.tasks import produce_interest, producers
from isotherm.tasks.cli import app

if TYPE_CHECKING:
    from isotherm.pipeline.tier.answers import Recall
    from isotherm.storage.opened import Storage

T0 = datetime.now(UTC).replace(microsecond=0) - timedelta(days=30)
BANK, ONE = Bank(None, "atlas"), Namespace.of("atlas", "one")
QUESTION = "Which seaweed does she gather?"
SAID = ("I love tea.", "The ferry was late.", "Bread is best on Tuesdays.", "Rain again.")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def learn(namespace: Namespace = ONE) -> None:
    """A point that is called otherwise than anything that was said, as a model may call it."""
    agent = str(namespace.agent)
    at = [T0 + timedelta(minutes=n) for n in range(len(SAID))]
    lines = [
        TranscriptLine(n, agent, str(namespace.session), None, "user", said, at[n - 1], id=f"{namespace.session}.{n}")
        for n, said in enumerate(SAID, start=1)
    ]
    produce_interest.ingest_session(namespace, lines)
    drive()
    with connection() as conn:
        conn.execute(
            """UPDATE interest_points SET name = 'gathers seaweed', summary = 'Gathers seaweed and dries it.', terms = %s
               WHERE bank_id = (SELECT id FROM banks WHERE agent = %s)""",
            (text.terms("gathers seaweed and dries it"), agent),
        )


def ask(scope: Bank | Namespace = BANK, **options: Any) -> Recall:
    return producers.recall(scope, QUESTION, budget=RecallBudget(total=4), touch=False, **({"learned": True} | options))


def best(answer: Recall) -> str:
    return max(answer.items, key=lambda item: item.score.total).record.id


def test_a_point_that_matches_brings_the_record_it_stands_on(memory: Storage) -> None:
    assert memory
    learn()
    answer = ask()
    assert [(p.name, p.records) for p in answer.learned] == [("gathers seaweed", ("one.1",))]
    found = next(item for item in answer.items if item.record.id == "one.1")
    assert "learned" in found.legs
    assert best(answer) == "one.1"
    assert sum(found.score.shares.values()) == pytest.approx(found.score.semantic)
    off = ask(learned=False)
    assert off.learned == ()
    assert all("learned" not in item.legs for item in off.items)


def test_points_of_other_agents_and_sessions_bring_nothing(memory: Storage) -> None:
    assert memory
    learn()
    producers.remember_records(Namespace.of("atlas", "two"), [NewRecord("two.1", "The ferry is blue.", T0)])
    producers.remember_records(Namespace.of("other", "one"), [NewRecord("other.1", "The ferry is red.", T0)])
    drive()
    for scope in (Namespace.of("atlas", "two"), Bank(None, "other"), Namespace.of("other", "one")):
        answer = ask(scope)
        assert answer.learned == ()
        assert {item.record.id for item in answer.items} <= {"two.1", "other.1"}


def test_without_points_nothing_changes(memory: Storage) -> None:
    assert memory
    producers.remember_records(ONE, [NewRecord(f"{n}", said, T0) for n, said in enumerate(SAID)])
    drive()
    on, off = ask(), ask(learned=False)
    assert [(i.record.id, i.legs, i.score.shares) for i in on.items] == [
        (i.record.id, i.legs, i.score.shares) for i in off.items
    ]


def test_interests_out_of_reach_leave_the_records(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory
    learn()

    def away(*_: object) -> tuple[()]:
        raise TransientError("away")

    monkeypatch.setattr(tier_learned, "points", away)
    answer = ask()
    assert answer.degraded == ("interests",)
    assert len(answer.items) == len(SAID)
    assert producers.recall_context(BANK, QUESTION, touch=False).degraded == ("interests",)


def test_the_text_for_a_prompt_shows_what_was_learned_marked_and_with_its_source(memory: Storage) -> None:
    assert memory
    learn()
    packed = producers.recall_context(BANK, QUESTION, touch=False)
    line = next(line for line in packed.text.splitlines() if "gathers seaweed" in line)
    assert "[derived; last said" in line
    assert line.endswith("from one.1]")
    assert [p.name for p in packed.learned] == ["gathers seaweed"]
    assert packed.tokens <= 1_500
    assert "seaweed" not in producers.recall_context(BANK, QUESTION, touch=False, learned=False).text
    assert "seaweed" not in producers.recall_context(BANK, QUESTION, touch=False, tokens=150).text


def test_the_command_shows_what_was_learned(memory: Storage) -> None:
    assert memory
    learn()
    told = CliRunner().invoke(app, ["recall", QUESTION, "-a", "atlas", "--context", "900", "--json"])
    assert [p["records"] for p in json.loads(told.stdout)["learned"]] == [["one.1"]]
    plain = CliRunner().invoke(app, ["recall", QUESTION, "-a", "atlas", "--json"])
    assert json.loads(plain.stdout)["learned"] == []
    asked = CliRunner().invoke(app, ["recall", QUESTION, "-a", "atlas", "--learned", "--graph", "--json"])
    assert json.loads(asked.stdout)["learned"][0]["name"] == "gathers seaweed"
    assert json.loads(asked.stdout)["walked"]["seeds"] >= 0


def test_a_summary_of_a_session_speaks_for_its_turns(memory: Storage) -> None:
    assert memory
    for session, note in (("one", "They spoke of seaweed and of gathering it."), ("two", "They spoke of the ferry.")):
        turns = [
            NewRecord(f"{session}.{n}", said, T0 + timedelta(minutes=n), role="user") for n, said in enumerate(SAID)
        ]
        summary = NewRecord(f"{session}.sum", note, T0 + timedelta(hours=1), categories=("summary",))
        producers.remember_records(Namespace.of("atlas", session), [*turns, summary])
    drive()
    shares = {i.record.id: i.score.shares for i in producers.recall(BANK, "seaweed", touch=False).items}
    assert shares["one.0"]["session"] > shares["two.0"]["session"] == 0
    assert shares["one.sum"]["session"] == 0
