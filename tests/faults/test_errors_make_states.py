from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from brokers import ON_BOTH
from harness import all_final, assert_whole, conversation, ingest, outbox_is_empty, step_of, tick_until

from isotherm.storage.postgres import operations
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from conftest import Faults

pytestmark = pytest.mark.usefixtures("opened")


@pytest.fixture
def pace() -> dict[str, str]:
    return {
        "ISOTHERM_LEASE": "1",
        "ISOTHERM_MAX_ATTEMPTS": "3",
        "ISOTHERM_RETRY_BASE": "0.1",
        "ISOTHERM_RETRY_FOR": "3",
        "ISOTHERM_OUTBOX_GRACE": "1",
        "ISOTHERM_NUDGE_AFTER": "1",
    }


@ON_BOTH
def test_record_that_kills_its_process_ends_dead_and_one_command_replays_it(faults: Faults) -> None:
    faults.worker()
    lines = conversation(100, {5: "deadlyword"})
    deadly, *behind = ingest(lines)
    tick_until(all_final, what="every operation to be final")
    step = step_of(deadly)
    assert (step.state, step.attempts) == ("dead", 3)
    assert str(step.last_error).startswith("its runner was lost 3 times; the last was ")
    assert producers.operation(deadly).state == "dead"
    assert producers.operation(deadly).error == step.last_error
    assert [producers.operation(i).state for i in behind] == ["done"] * 4

    faults.set("harmless")
    with connection() as conn:
        opened = operations.reopen(
            conn, deadly, retry_for=timedelta(minutes=1), nudge_after=timedelta(milliseconds=100)
        )
    assert opened == [(step.id, "tier.index")]
    tick_until(lambda: producers.operation(deadly).final, what="the replay")
    tick_until(outbox_is_empty, what="the outbox to be empty")
    assert_whole(lines)
    assert producers.operation(deadly).error is None


def test_each_kind_of_error_makes_its_own_state(faults: Faults) -> None:
    faults.set("busy")
    faults.worker(concurrency=1)
    lines = conversation(80, {5: "onceword", 25: "busyword", 45: "refusedword"})
    bug, passing, refused, fine = ingest(lines)
    tick_until(lambda: step_of(passing).waits >= 2, what="two waits")
    faults.clear("busy")
    tick_until(all_final, what="every operation to be final")
    tick_until(outbox_is_empty, what="the outbox to be empty")

    step = step_of(bug)
    assert (step.state, step.attempts, step.waits) == ("done", 2, 0)
    assert str(step.last_error).startswith("ValueError in faulty.py:")
    step = step_of(passing)
    assert (step.state, step.attempts) == ("done", 1)
    assert step.last_error == "the server is busy"
    step = step_of(refused)
    assert (step.state, step.attempts, step.waits) == ("failed", 1, 0)
    assert step.last_error == "a record that can never be indexed"
    step = step_of(fine)
    assert (step.state, step.attempts, step.last_error) == ("done", 1, None)
    states = [producers.operation(i) for i in (bug, passing, refused, fine)]
    assert [o.state for o in states] == ["done", "done", "failed", "done"]
    assert [o.error for o in states] == [None, None, "a record that can never be indexed", None]
    assert fetch_all("SELECT count(*) FROM tier_records WHERE indexed") == [(60,)]


def test_passing_failure_never_counts_as_an_attempt_and_ends_with_its_time(faults: Faults) -> None:
    faults.set("busy")
    worker = faults.worker(concurrency=1)
    [operation_id] = ingest(conversation(20, {5: "busyword"}))
    tick_until(lambda: step_of(operation_id).waits >= 2, what="two waits")
    assert step_of(operation_id).attempts <= 1  # 1 only while a claim is held
    assert not producers.operation(operation_id).final
    tick_until(lambda: producers.operation(operation_id).final, what="the end of its patience")
    step = step_of(operation_id)
    assert (step.state, step.attempts) == ("failed", 1)
    assert step.last_error == "gave up waiting: the server is busy"
    assert producers.operation(operation_id).state == "failed"
    assert worker.output().count("operations.step_postponed") == step.waits
