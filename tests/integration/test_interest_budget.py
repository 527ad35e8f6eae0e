"""What a run may spend, what it has spent, and how it goes on when that was too little; asked of a server that counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hash_embedder import HashEmbedder
from inprocess import drive
from model_server import Answer, Script, model_server, said
from sessions import ATLAS, ingest, session
from typer.testing import CliRunner

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.interest.budget import Budget
from isotherm.storage.models import factory
from isotherm.storage.models.chat import HttpChatModel
from isotherm.storage.models.http import ModelServer
from isotherm.storage.models.usage import collect
from isotherm.storage.opened import Storage
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import interest_models, produce_interest, producers
from isotherm.tasks.cli import app
from isotherm.tasks.commands import runs

TOPICS = ("kelp", "dulse", "nori", "wakame", "laver")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_CHAT_INPUT_PRICE": "1000", "ISOTHERM_CHAT_OUTPUT_PRICE": "1000"}


class Judge:
    """Answers by the question: reads out the topics that a text names, merges nothing, and decides by what it is told."""

    def __init__(self) -> None:
        self.decide: dict[str, Any] = {"action": "merge", "target": "h1"}
        self.broken: set[str] = set()

    def __call__(self, question: dict[str, Any]) -> Answer:
        name, text = name_of(question), question["messages"][1]["content"]
        if any(word in text.split('"h1"')[0] and name == "interest_v1_2" for word in self.broken):
            return said("I would rather not say.")
        if name == "interest_extract":
            items = [_item(topic) for topic in re.findall(r"about (\w+)", text)]
            return said(json.dumps({"items": items}))
        if name == "interest_s1":
            return said('{"merges": []}')
        points = re.findall(r'"handle": "(n\d+)"', text)
        return said(json.dumps({"decisions": [{"point": point, **self.decide} for point in points]}))


def _item(topic: str) -> dict[str, Any]:
    return {"topic": topic, "reason": f"cares about {topic}", "confidence": 0.8, "first_turn": 0, "last_turn": 0}


def name_of(question: dict[str, Any]) -> str:
    return str(question["response_format"]["json_schema"]["name"])


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def server(memory: Storage, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    factory.use_embedder(memory.settings, HashEmbedder(64, "test"))
    with model_server(reply=judge) as script:
        model = HttpChatModel(ModelServer(script.url, timeout=5), "test", observer=collect)
        monkeypatch.setattr(factory, "chat_model", lambda _: model)
        yield script
    factory.use_embedder(memory.settings, None)


@pytest.fixture
def spend(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what runs may spend, in settings."""
    meter = interest_models._meter

    def set_to(budget: Budget) -> None:
        chosen = memory.settings.model_copy(update={"run_tokens": budget.tokens, "run_money": budget.money})
        monkeypatch.setattr(interest_models, "_meter", lambda _, step, model: meter(chosen, step, model))

    return set_to


def run(name: str, *topics: str, day: int = 0) -> UUID:
    operation_id = ingest(session(name, *(f"{name}: tell me about {topic}." for topic in topics), day=day))
    drive(operation_id)
    return operation_id


def states() -> dict[str, str]:
    return {one.name: one.status.value for one in produce_interest.interests(ATLAS)}


def asked(script: Script) -> Counter[str]:
    return Counter(map(name_of, script.asked))


def shown(*words: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["runs", *words])
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_run_says_by_stage_what_it_asked_and_what_that_cost(server: Script) -> None:
    run("s1", *TOPICS)
    operation_id = run("s2", *TOPICS, day=1)
    assert asked(server) == {"interest_extract": 2, "interest_v1_2": 5}
    [told] = json.loads(shown("--json", "--limit", "1"))
    assert (told["id"], told["state"], told["agent"], told["session"]) == (str(operation_id), "done", "atlas", "s2")
    spent = {row["stage"]: row["spent"] for row in told["stages"] if row["spent"]["calls"]}
    assert {stage: (s["calls"], s["tokens"], s["cost"]) for stage, s in spent.items()} == {
        stages.EXTRACT: (1, 18, pytest.approx(0.018)), stages.V1_2_ADJUDICATE: (5, 90, pytest.approx(0.09)),
    }  # fmt: skip
    assert told["spent"]["tokens"] == 108
    units = {row["stage"]: (row["units"], row["done"], row["failed"]) for row in told["stages"]}
    assert units[stages.V1_2_ADJUDICATE] == (5, 5, 0)
    result = producers.operation(operation_id).result
    assert result is not None
    assert (result["model_calls"], result["input_tokens"], result["output_tokens"]) == (6, 66, 42)
    page = shown("show", str(operation_id))
    assert all(stage in page for stage in (stages.EXTRACT, stages.V1_3_PERSIST, "5/5", "0.0900"))
    assert "Failed" not in page
    assert str(operation_id) in shown("--agent", "atlas")
    assert "no runs" in shown("--agent", "nobody")


@pytest.mark.parametrize(
    ("budget", "more"), [(Budget(tokens=0), Budget(tokens=9_000)), (Budget(money=0), Budget(money=9))]
)
def test_a_run_without_a_budget_asks_nothing_and_goes_on_when_it_gets_one(
    server: Script, spend: Any, budget: Budget, more: Budget
) -> None:
    run("s1", "kelp")
    spend(budget)
    before = len(server.asked)
    operation_id = run("s2", "kelp", "dulse", day=1)
    ended = producers.operation(operation_id)
    assert (ended.state, ended.error) == ("partial", "budget_spent: the run may spend no more on models")
    assert len(server.asked) == before
    produce_interest.grant_budget(operation_id, more)
    assert producers.retry(operation_id) > 0
    drive(operation_id)
    assert producers.operation(operation_id).state == "done"
    assert states() == {"kelp": "active", "dulse": "active"}
    assert {one.name: one.sessions for one in produce_interest.interests(ATLAS)} == {"kelp": 2, "dulse": 1}


def test_a_budget_that_ends_in_the_middle_leaves_points_for_review_and_a_larger_one_settles_only_these(
    server: Script, spend: Any
) -> None:
    run("s1", *TOPICS)
    # Each question has about 200 tokens by our count, and 18 by the server's, which is what is spent.
    spend(Budget(tokens=300))
    server.reply = with_usage(server.reply, 60)
    operation_id = run("s2", *TOPICS, day=1)
    before = asked(server)
    assert 0 < before["interest_v1_2"] < 5
    ended = producers.operation(operation_id)
    assert ended.state == "partial"
    assert ended.error is not None
    assert ended.error.startswith(f"{stages.V1_2_ADJUDICATE}/c")
    found = Counter(one.status.value for one in produce_interest.interests(ATLAS))
    missing = 5 - before["interest_v1_2"]
    assert found == {"active": 5, "pending_review": missing}
    page = shown("show", str(operation_id))
    assert "of 300 tokens" not in page  # the budget of this test is not the one of the settings
    assert page.count("budget_spent") == missing + 1  # each unit, and why the run ended as it did
    told = json.loads(shown("show", str(operation_id), "--json"))
    assert {one["reason"] for one in told["failed_units"]} == {"budget_spent"}
    assert "steps run again" in shown("retry", str(operation_id), "--tokens", "100000")
    drive(operation_id)
    assert "of 100,000 tokens" in shown("show", str(operation_id))
    assert producers.operation(operation_id).state == "done"
    assert asked(server) - before == {"interest_v1_2": missing}
    assert {one.name: (one.sessions, one.status.value) for one in produce_interest.interests(ATLAS)} == dict.fromkeys(
        TOPICS, (2, "active")
    )


def with_usage(reply: Any, tokens: int) -> Any:
    def counted(question: dict[str, Any]) -> Answer:
        answer = reply(question)
        return replace(answer, body={**answer.body, "usage": {"prompt_tokens": tokens, "completion_tokens": 0}})

    return counted


def test_what_came_to_nothing_is_counted_too(server: Script, judge: Judge) -> None:
    run("s1", "kelp")
    before = len(server.asked)
    judge.broken = {"kelp"}
    operation_id = run("s2", "kelp", day=1)
    [(calls, repairs, failures, tokens)] = fetch_all(
        """SELECT calls, repairs, failures, input_tokens + output_tokens FROM interest_usage
           WHERE operation_id = %(id)s AND stage = 'interest.v1_2.adjudicate'""",
        {"id": operation_id},
    )
    assert (calls, repairs, failures, tokens) == (2, 1, 1, 36)
    assert len(server.asked) == before + 3


def test_tokens_that_a_server_does_not_count_are_estimated(server: Script) -> None:
    reply = server.reply
    server.reply = lambda question: replace(reply(question), body={**reply(question).body, "usage": None})  # type: ignore[misc,dict-item]
    run("s1", "kelp")
    [(tokens, estimated)] = fetch_all("SELECT input_tokens + output_tokens, estimated_tokens FROM interest_usage")
    assert tokens == estimated > 50
    assert f"~{tokens}" in shown()


@pytest.mark.parametrize("broken", ["kelp", "laver"])
def test_one_of_five_units_failing_for_good_leaves_the_others_and_a_retry_asks_only_for_it(
    server: Script, judge: Judge, broken: str
) -> None:
    run("s1", *TOPICS)
    judge.broken = {broken}
    operation_id = run("s2", *TOPICS, day=1)
    ended = producers.operation(operation_id)
    assert ended.state == "partial"
    [failed] = json.loads(shown("show", str(operation_id), "--json"))["failed_units"]
    assert ended.error == f"{stages.V1_2_ADJUDICATE}/{failed['unit']}: {failed['error']}"
    assert failed["reason"] == "refused"
    found = {(one.name, one.sessions, one.status.value) for one in produce_interest.interests(ATLAS)}
    assert found == {(t, 1 if t == broken else 2, "active") for t in TOPICS} | {(broken, 1, "pending_review")}
    judge.broken = set()
    before = asked(server)
    producers.retry(operation_id)
    drive(operation_id)
    assert asked(server) - before == {"interest_v1_2": 1}
    assert producers.operation(operation_id).state == "done"
    assert {one.name: (one.sessions, one.status.value) for one in produce_interest.interests(ATLAS)} == dict.fromkeys(
        TOPICS, (2, "active")
    )


def test_a_budget_is_for_a_run_that_exists_and_money_needs_prices(
    server: Script, memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation_id = run("s1", "kelp")
    assert asked(server) == {"interest_extract": 1}
    with pytest.raises(RejectedError, match="no run"):
        produce_interest.grant_budget(UUID(int=7), Budget(tokens=1))
    assert "no run" in CliRunner().invoke(app, ["runs", "show", str(UUID(int=7))]).output
    chosen = memory.settings.model_copy(update={"chat_input_price": None})
    monkeypatch.setattr(produce_interest.storage, "open", lambda: replace(memory, settings=chosen))
    with pytest.raises(RejectedError, match="price"):
        produce_interest.grant_budget(operation_id, Budget(money=1))


def test_a_run_is_watched_until_it_ends(server: Script) -> None:
    operation_id = run("s1", "kelp")
    with connection() as conn:
        conn.execute("DELETE FROM operation_steps WHERE operation_id = %s", (operation_id,))
    page = shown("show", str(operation_id), "--watch", "--every", "0.2")
    assert "Ctrl-C" not in page
    assert stages.EXTRACT in page  # what it cost outlives its steps
    assert len(server.asked) == 1
    shown("--watch", "--json", code=1)


def test_a_run_is_seen_going_on_while_it_is_watched(server: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    operation_id = ingest(session("s1", *(f"Tell me about {topic}." for topic in TOPICS)))
    looks: list[float] = []

    def work(every: float) -> None:
        looks.append(every)
        drive(operation_id)

    monkeypatch.setattr(runs, "sleep", work)
    page = shown("show", str(operation_id), "--watch", "--every", "0.5")
    assert looks == [0.5]
    assert "done" in page
    assert len(server.asked) == 1

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "sleep", interrupted)
    assert "Ctrl-C ends" in shown("--watch")
