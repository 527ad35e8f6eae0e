from __future__ import annotations

import json
import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from harness import steps_of, tick_until, wait_until
from sessions import (
    ATLAS,
    FIRST,
    NEEDS_MODEL,
    SECOND,
    assert_both_are_stored_once,
    ingest,
    sample,
    session,
)

from isotherm.pipeline import stages
from isotherm.storage.postgres import interest_steps
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import app, produce_interest, producers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from harness import Process, Processes

pytestmark = pytest.mark.usefixtures("opened")

EVENTS = {
    stages.EXTRACT: "interest.candidates_extracted",
    stages.S1_FOLD: "interest.candidates_folded",
    stages.S1_JUDGE: "interest.groups_judged",
    stages.S2_CLUSTER: "interest.points_clustered",
    stages.V1_2_ADJUDICATE: "interest.units_adjudicated",
    stages.V1_3_PERSIST: "interest.interests_persisted",
}


def finished(operation_id: UUID) -> bool:
    return producers.operation(operation_id).final


@contextmanager
def monitored() -> Iterator[dict[str, list[str]]]:
    """What a monitor such as flower is told meanwhile: types of events by the name of their task."""
    names: dict[str, str] = {}
    told: dict[str, list[str]] = defaultdict(list)

    def take(event: dict[str, str]) -> None:
        if event["type"].startswith("task-"):
            name = names.setdefault(event["uuid"], event.get("name", ""))
            told[name].append(event["type"])

    with app.connection_for_read() as conn:
        receiver = app.events.Receiver(conn, handlers={"*": take})
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False}, daemon=True)
        thread.start()
        try:
            yield told
        finally:
            receiver.should_stop = True
            thread.join(10)


def test_a_session_goes_through_every_stage_of_a_real_worker_each_seen_in_its_log(processes: Processes) -> None:
    worker = processes.worker()
    with monitored() as told:
        _goes_through_every_stage(worker)
        wait_until(lambda: all("task-succeeded" in told[stage] for stage in interest_steps.ORDER), what="the monitor")
    for stage in interest_steps.ORDER:
        assert told[stage].count("task-received") == told[stage].count("task-started") >= 1, stage


def _told(worker: Process, event: str, operation_id: UUID) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event and line.get("operation_id") == str(operation_id)]


def _goes_through_every_stage(worker: Process) -> None:
    first = ingest(session("s1", *FIRST))
    wait_until(lambda: finished(first), what="the first session")
    second = ingest(session("s2", *SECOND, day=1))
    wait_until(lambda: finished(second), what="the second session")
    assert producers.operation(second).state == "done"
    assert_both_are_stored_once()
    ran = {step.stage for step in steps_of(second)}
    assert ran == {stages.INDEX, *interest_steps.ORDER}
    assert {step.attempts for step in steps_of(second)} == {1}
    for stage, event in EVENTS.items():
        wait_until(lambda event=event: _told(worker, event, second), what=f"{event}, which follows its commit")  # type: ignore[misc]
        told = _told(worker, event, second)
        assert [line["task"] for line in told] == [stage], stage
    assert "vegetarian" not in worker.output()
    assert "kayak" not in worker.output()


def test_a_long_session_is_read_in_parallel_parts_and_joined_once(processes: Processes) -> None:
    processes.worker()
    said = [f"Note {n} is done." for n in range(450)]
    said[3], said[205], said[440] = "I love sea kayaking.", "I'm vegetarian.", "I bake bread."
    lines = session("s1", *said)
    operation_id = ingest(lines)
    tick_until(lambda: finished(operation_id), what="the session")
    assert producers.operation(operation_id).state == "done"
    parts = [step.receipt for step in steps_of(operation_id) if step.stage == stages.EXTRACT and step.unit]
    assert len(parts) == 3
    assert {one.name for one in produce_interest.interests(ATLAS)} == {"sea kayaking", "vegetarian", "bake bread"}


def test_many_sessions_of_one_agent_at_once_end_as_if_they_had_come_one_by_one(processes: Processes) -> None:
    processes.worker(concurrency=3)
    operation_ids = [
        ingest(session(f"s{n}", "I love sea kayaking.", f"I use Postgres {n + 10}.", day=n)) for n in range(6)
    ]
    tick_until(lambda: all(map(finished, operation_ids)), 60, "all sessions")
    assert {producers.operation(i).state for i in operation_ids} == {"done"}
    found = {one.name: one.sessions for one in produce_interest.interests(ATLAS)}
    assert found.pop("sea kayaking") == 6
    assert found == {f"Postgres {n + 10}": 1 for n in range(6)}
    # Each version contradicts each other one, and the newest counts.
    told = produce_interest.contradictions(ATLAS)
    assert len(told) == 15
    newest = {
        one.current.interest.name
        for one in told
        if one.current and "15" in (one.left.interest.name + one.right.interest.name)
    }
    assert "Postgres 15" in newest
    assert fetch_all("SELECT count(*) FROM interest_banks WHERE turn_of IS NOT NULL") == [(0,)]


@NEEDS_MODEL
def test_the_sample_is_understood_by_real_workers_with_vectors(
    processes: Processes, environment: dict[str, str]
) -> None:
    assert environment
    processes.worker(ISOTHERM_EMBEDDER="offline")
    operation_ids = [ingest(lines) for lines in sample().values()]
    tick_until(lambda: all(map(finished, operation_ids)), 90, "all sessions")
    assert {producers.operation(i).state for i in operation_ids} == {"done"}
    found = {one.name: one.sessions for one in produce_interest.interests(ATLAS)}
    assert max(found.values()) == 4
    assert len(produce_interest.contradictions(ATLAS)) == 4
