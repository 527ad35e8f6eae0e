from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import all_final, outbox_is_empty, steps_of, tick_until
from sessions import FIRST, SECOND, assert_both_are_stored_once, ingest, session

from isotherm.pipeline import stages
from isotherm.storage.postgres import interest_steps
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers
from isotherm.tasks.app import app

if TYPE_CHECKING:
    from uuid import UUID

    import redis
    from conftest import Faults
    from harness import Process

pytestmark = pytest.mark.usefixtures("opened")


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "1.5", "ISOTHERM_OUTBOX_GRACE": "0.5", "ISOTHERM_NUDGE_AFTER": "0.5"}


def worker(faults: Faults) -> Process:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "apps"), os.environ.get("PYTHONPATH")]))
    return faults.processes.worker(app="faulty_interest", PYTHONPATH=path, FAULTS=str(faults.folder))


def finish(operation_id: UUID) -> None:
    tick_until(lambda: producers.operation(operation_id).final, what="the session")
    tick_until(outbox_is_empty, what="the outbox to be empty")
    assert producers.operation(operation_id).state == "done"


def to_the_gate(faults: Faults, stage: str) -> tuple[UUID, int]:
    """The first session is stored; the second one stands at the end of a stage. Returns its operation and the process."""
    finish(ingest(session("s1", *FIRST)))
    faults.set(f"gate-{stage}")
    operation_id = ingest(session("s2", *SECOND, day=1))
    tick_until(faults.inside, what="the gate")
    return operation_id, faults.inside()[0]


def attempts(operation_id: UUID) -> dict[str, int]:
    return {step.stage: step.attempts for step in steps_of(operation_id)}


@pytest.mark.parametrize("stage", interest_steps.ORDER)
def test_a_child_killed_at_the_end_of_a_stage_leaves_its_effect_to_be_done_once(faults: Faults, stage: str) -> None:
    worker(faults)
    operation_id, inside = to_the_gate(faults, stage)
    faults.clear(f"gate-{stage}")
    os.kill(inside, signal.SIGKILL)
    finish(operation_id)
    assert_both_are_stored_once()
    assert attempts(operation_id) == {stages.INDEX: 1, **dict.fromkeys(interest_steps.ORDER, 1), stage: 2}


def test_every_message_delivered_twice_does_everything_once(faults: Faults) -> None:
    worker(faults)
    finish(ingest(session("s1", *FIRST)))
    operation_id = ingest(session("s2", *SECOND, day=1))
    finish(operation_id)
    trace = str(producers.operation(operation_id).trace_id)
    for step in steps_of(operation_id):
        for _ in range(2):
            job = {"step_id": step.id, "operation_id": str(operation_id), "trace_id": trace}
            app.send_task(step.stage, args=(job,), ignore_result=True)
    later = ingest(session("s3", "Hello.", day=2))
    finish(later)
    assert fetch_all("SELECT version FROM interest_banks") == [(2,)]
    assert_both_are_stored_once()
    assert set(attempts(operation_id).values()) == {1}


@pytest.mark.parametrize("stage", [stages.S1_JUDGE, stages.V1_2_ADJUDICATE])
def test_redis_emptied_in_the_middle_of_a_chord_loses_nothing(faults: Faults, client: redis.Redis, stage: str) -> None:
    worker(faults)
    operation_id, _ = to_the_gate(faults, stage)
    client.flushall()
    faults.set("open")
    finish(operation_id)
    tick_until(all_final)
    assert_both_are_stored_once()
    assert set(attempts(operation_id).values()) == {1}
