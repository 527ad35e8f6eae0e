"""Runs whose runners are killed around every model call and every commit: the same state, and nothing is paid twice."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from harness import leave_to_relay, outbox_is_empty, steps_of, tick_until
from model_server import Script
from sessions import ingest, session
from topic_judge import TopicJudge, about, environment_of, name_of, text_of, topic_server

from isotherm.pipeline import stages
from isotherm.storage.postgres import interest_steps
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from conftest import Faults
    from harness import Process

pytestmark = pytest.mark.usefixtures("opened")

# The second session has a group to merge, points that are stored, a contradiction, a queue of two, and something new.
BEFORE = ("kelp", "nori", "wakame")
DURING = ("kelps", "kelpy", "antinori", "wakaleft", "wakaright", "laver")
QUESTIONS = ("interest_extract", "interest_s1", "interest_v1_2")

PLACES = {
    "kim": [f"before-{stage}" for stage in interest_steps.ORDER],
    "lou": [f"after-{stage}" for stage in (stages.EXTRACT, stages.S1_FOLD, stages.S2_CLUSTER, stages.V1_3_PERSIST)],
    "mia": [f"answered-{name}" for name in QUESTIONS],
    "ned": [f"stored-{name}" for name in QUESTIONS],
}


@pytest.fixture
def judge() -> TopicJudge:
    return TopicJudge()


@pytest.fixture
def server(judge: TopicJudge) -> Iterator[Script]:
    with topic_server(judge) as script:
        yield script


@pytest.fixture
def pace(server: Script) -> dict[str, str]:
    return {
        **environment_of(server),
        "ISOTHERM_LEASE": "1.5",
        "ISOTHERM_OUTBOX_GRACE": "0.5",
        "ISOTHERM_NUDGE_AFTER": "0.5",
        "ISOTHERM_MAX_ATTEMPTS": "20",
        # What is lost with a runner is what it had under way: to count it, that is one question.
        "ISOTHERM_CHAT_PARALLEL": "1",
    }


def worker(faults: Faults, **more: str) -> Process:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "apps"), os.environ.get("PYTHONPATH")]))
    return faults.processes.worker(
        app="faulty_interest", concurrency=2, PYTHONPATH=path, FAULTS=str(faults.folder), **more
    )


def tell(agent: str, name: str, *topics: str, day: int = 0) -> UUID:
    return ingest(session(name, *about(*topics, who=f"({agent})"), day=day, agent=agent))


def finish(*operations: UUID) -> None:
    tick_until(lambda: all(producers.operation(one).final for one in operations), 90, "all runs")
    tick_until(outbox_is_empty, what="the outbox to be empty")
    states = {one: (producers.operation(one).state, producers.operation(one).error) for one in operations}
    assert {state for state, _ in states.values()} == {"done"}, states


_STATE = {
    "points": "SELECT name, status, seen_count, replace(summary, b.agent, ''), confidence, importance, reliability, p.version "
    "FROM interest_points AS p JOIN banks AS b ON b.id = p.bank_id WHERE b.agent = %(agent)s",
    "evidence": "SELECT p.name, e.turn, e.event_time FROM interest_evidence AS e JOIN interest_points AS p ON p.id = "
    "e.point_id JOIN banks AS b ON b.id = p.bank_id WHERE b.agent = %(agent)s",
    "edges": "SELECT least(s.name, t.name), greatest(s.name, t.name), e.kind, e.weight FROM interest_edges AS e JOIN "
    "interest_points AS s ON s.id = e.source_id JOIN interest_points AS t ON t.id = e.target_id "
    "JOIN banks AS b ON b.id = e.bank_id WHERE b.agent = %(agent)s",
    "contradictions": "SELECT least(l.name, r.name), greatest(l.name, r.name), c.status, c.current_because FROM "
    "interest_contradictions AS c JOIN interest_points AS l ON l.id = c.left_id JOIN interest_points AS r "
    "ON r.id = c.right_id JOIN banks AS b ON b.id = c.bank_id WHERE b.agent = %(agent)s",
    "log": "SELECT p.name, g.action FROM interest_log AS g JOIN interest_points AS p ON p.id = g.point_id "
    "JOIN banks AS b ON b.id = g.bank_id WHERE b.agent = %(agent)s AND g.action <> 'contradict'",
    "version": "SELECT i.version, i.turn_of FROM interest_banks AS i JOIN banks AS b ON b.id = i.bank_id WHERE b.agent = %(agent)s",
}


def state(agent: str) -> dict[str, Any]:
    """All that a run leaves, without ids."""
    return {name: Counter(fetch_all(sql, {"agent": agent})) for name, sql in _STATE.items()}


def paid(server: Script, agent: str) -> Counter[tuple[str, str]]:
    """Chat questions of an agent's sessions, by kind and text."""
    asked = [one for one in list(server.asked) if name_of(one) in QUESTIONS and f"({agent})" in text_of(one)]
    return Counter((name_of(one), text_of(one)) for one in asked)


def by_kind(questions: Counter[tuple[str, str]]) -> Counter[str]:
    return sum((Counter({kind: n}) for (kind, _), n in questions.items()), Counter())


def test_runs_killed_at_every_boundary_and_answer_end_as_one_that_nobody_disturbed(
    faults: Faults, server: Script
) -> None:
    worker(faults)
    finish(*(tell(agent, "s1", *BEFORE) for agent in ("eve", *PLACES)))
    finish(tell("eve", "s2", *DURING, day=1))
    undisturbed, asked = state("eve"), paid(server, "eve")
    assert set(by_kind(asked)) == set(QUESTIONS)
    assert by_kind(asked)["interest_v1_2"] == 4
    assert len(undisturbed["contradictions"]) == 1
    runs: dict[str, UUID] = {}
    for agent, places in PLACES.items():
        lines = session("s2", *about(*DURING, who=f"({agent})"), day=1, agent=agent)
        runs[agent] = doomed(faults, lines, places)
    finish(*runs.values())
    for agent, places in PLACES.items():
        died = {place for place in places if (faults.folder / f"died-{runs[agent]}-{place}").exists()}
        assert died == set(places), agent
        assert state(agent) == undisturbed, agent
        extra = by_kind(paid(server, agent)) - by_kind(asked)
        # An answer that nobody stored is lost with its runner; nothing else is asked twice.
        assert extra == (dict.fromkeys(QUESTIONS, 1) if agent == "mia" else {}), agent
        assert sum(one.attempts for one in steps_of(runs[agent])) >= len(steps_of(runs[agent])) + (agent != "lou")


def doomed(faults: Faults, lines: Any, places: list[str]) -> UUID:
    """Ingest a session whose runners are to die at some places; they wait until that is said."""
    with pytest.MonkeyPatch.context() as patch:
        leave_to_relay(patch)
        operation_id = ingest(lines)
        for place in places:
            faults.set(f"die-{operation_id}-{place}")
    return operation_id


# Of the second session: both windows are one step's, which has them under way side by side; each unit is a step of its own.
@pytest.mark.parametrize(("thinks_about", "least"), [("interest_extract", 2), ("interest_v1_2", 2)])
def test_runners_killed_while_the_model_thinks_ask_those_questions_once_more_and_no_other(
    faults: Faults, judge: TopicJudge, server: Script, thinks_about: str, least: int
) -> None:
    started = worker(faults, ISOTHERM_CHAT_PARALLEL="4")
    finish(tell("eve", "s1", *BEFORE), tell("kim", "s1", *BEFORE))
    finish(tell("eve", "s2", *DURING, day=1))
    thinking = threading.Event()
    judge.hold = lambda name, text: thinking if name == thinks_about and "(kim)" in text else None
    before = by_kind(paid(server, "kim"))
    operation_id = tell("kim", "s2", *DURING, day=1)
    tick_until(lambda: (by_kind(paid(server, "kim")) - before)[thinks_about] >= least, what="the model to be asked")
    for child in started.children():
        os.kill(child, signal.SIGKILL)
    judge.hold = lambda *_: None
    held_back = (by_kind(paid(server, "kim")) - before)[thinks_about]
    thinking.set()
    finish(operation_id)
    assert state("kim") == state("eve")
    extra = by_kind(paid(server, "kim")) - by_kind(paid(server, "eve"))
    assert extra == {thinks_about: held_back}
