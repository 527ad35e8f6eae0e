"""A judge that answers nothing of use for a whole run: everything waits for review, and ends as if it had been there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from inprocess import drive
from model_server import Answer, Script, said
from sessions import ATLAS, FORGE, ingest, session
from topic_judge import TopicJudge, about, asked, environment_of, name_of, text_of, topic_server

from isotherm.pipeline import stages
from isotherm.pipeline.identity import Bank
from isotherm.pipeline.interest.budget import Budget
from isotherm.storage.models import http
from isotherm.storage.postgres import steps
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import interest_tend, produce_interest, producers

pytestmark = pytest.mark.usefixtures("memory")

# The second session has a group that s1 would merge, points that the first one has, a contradiction, and something new.
BEFORE = ("kelp", "nori")
DURING = ("kelps", "kelpy", "norix", "antinori", "laver", "lavers", "dulse")
AFTER = {"kelp": 2, "nori": 2, "antinori": 1, "laver": 1, "dulse": 1}


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def judge() -> TopicJudge:
    return TopicJudge()


@pytest.fixture
def server(judge: TopicJudge) -> Iterator[Script]:
    with topic_server(judge) as script:
        yield script


@pytest.fixture
def pace(server: Script) -> dict[str, str]:
    return environment_of(server)


def run(agent: str, name: str, *topics: str, day: int = 0) -> str:
    operation_id = ingest(session(name, *about(*topics), day=day, agent=agent))
    drive(operation_id)
    return producers.operation(operation_id).state


def names(bank: Bank) -> dict[str, int]:
    return {one.name: one.sessions for one in produce_interest.interests(bank)}


def tensions(bank: Bank) -> set[frozenset[str]]:
    found = produce_interest.contradictions(bank)
    return {frozenset({one.left.interest.name, one.right.interest.name}) for one in found}


def long_ago() -> None:
    with connection() as conn:
        conn.execute("UPDATE interest_points SET updated_at = now() - interval '1 hour'")
        conn.execute("UPDATE operations SET finished_at = now() - interval '1 hour' WHERE finished_at IS NOT NULL")


@pytest.mark.parametrize(
    "answer", [Answer(status=403), said("I will not."), Answer(status=503)], ids=["403", "no", "503"]
)
def test_what_a_judge_that_was_away_left_is_judged_when_it_is_back_and_no_duplicates_stay(
    judge: TopicJudge, server: Script, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    # One look is enough for a test; what the server says never is a reason to wait until tomorrow.
    monkeypatch.setattr(http, "Patience", partial(http.Patience, attempts=1))
    monkeypatch.setattr(steps, "is_late", lambda *_: True)
    assert run("forge", "s1", *BEFORE) == run("forge", "s2", *DURING, day=1) == "done"
    assert names(FORGE) == AFTER
    assert run("atlas", "s1", *BEFORE) == "done"
    judge.refuse = lambda name, _: None if name == "interest_extract" else answer
    assert run("atlas", "s2", *DURING, day=1) == "partial"
    waiting = {one.name: one.status.value for one in produce_interest.interests(ATLAS)}
    assert waiting == {**dict.fromkeys(BEFORE, "active"), **dict.fromkeys(DURING, "pending_review"), "dulse": "active"}
    # While it is still away nothing changes.
    if answer.status != 503:
        long_ago()
        interest_tend.due()
        drive()
        assert {one.name: one.status.value for one in produce_interest.interests(ATLAS)} == waiting
    judge.refuse = lambda *_: None
    long_ago()
    assert interest_tend.due()["banks"] >= 1
    drive()
    assert names(ATLAS) == names(FORGE) == AFTER
    assert {one.status.value for one in produce_interest.interests(ATLAS)} == {"active"}
    assert tensions(ATLAS) == tensions(FORGE) == {frozenset({"nori", "antinori"})}
    assert asked(server)["interest_extract"] == 6  # the second session has two windows


def test_a_retry_settles_what_the_judge_left_and_asks_only_for_that(judge: TopicJudge, server: Script) -> None:
    run("atlas", "s1", *BEFORE)
    judge.refuse = lambda name, _: said("no") if name == "interest_v1_2" else None
    operation_id = ingest(session("s2", *about(*DURING), day=1))
    drive(operation_id)
    assert producers.operation(operation_id).state == "partial"
    judge.refuse = lambda *_: None
    before = asked(server)
    failed = fetch_all(
        "SELECT count(*) FROM operation_steps WHERE state = 'failed' AND stage = %(stage)s",
        {"stage": stages.V1_2_ADJUDICATE},
    )
    producers.retry(operation_id)
    drive(operation_id)
    assert (asked(server) - before)["interest_v1_2"] == failed[0][0] > 0
    assert (asked(server) - before).keys() <= {"interest_v1_2", "embed"}
    assert producers.operation(operation_id).state == "done"
    assert names(ATLAS) == AFTER
    assert {one.status.value for one in produce_interest.interests(ATLAS)} == {"active"}
    logged = fetch_all("SELECT count(*) FROM interest_points WHERE status = 'archived'")
    assert logged == [(2,)]  # what waited as norix is a part of nori now, and kelps of kelp


@pytest.mark.parametrize("calls", [0, 1, 4, 6])
def test_a_budget_that_ends_anywhere_and_is_raised_later_ends_as_one_that_lasted(
    judge: TopicJudge, server: Script, calls: int
) -> None:
    for agent in ("forge", "atlas"):
        assert run(agent, "s1", *BEFORE) == "done"
    assert run("forge", "s2", *DURING, day=1) == "done"
    judge.tokens = 1_000
    operation_id = ingest(session("s2", *about(*DURING), day=1))
    produce_interest.grant_budget(operation_id, Budget(tokens=max(1_000 * calls - 500, 0)))
    before = len(server.asked)
    drive(operation_id)
    ended = producers.operation(operation_id)
    assert ended.state == "partial"
    assert "budget_spent" in (ended.error or "")
    assert sum(name_of(one) != "embed" for one in server.asked[before:]) == calls
    produce_interest.grant_budget(operation_id, Budget(tokens=100_000))
    producers.retry(operation_id)
    drive(operation_id)
    assert producers.operation(operation_id).state == "done"
    assert names(ATLAS) == names(FORGE) == AFTER
    assert tensions(ATLAS) == tensions(FORGE)
    assert {one.status.value for one in produce_interest.interests(ATLAS)} == {"active"}
    mine = Counter(text_of(one) for one in server.asked[before:] if name_of(one) != "embed")
    assert set(mine.values()) == {1}
