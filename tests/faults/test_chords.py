from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from brokers import ON_BOTH
from harness import outbox_is_empty, steps_of, tick_until, wait_until

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.payloads import FanOut, StepRef
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.postgres import operations
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import app, broker, canvas, producers

if TYPE_CHECKING:
    from uuid import UUID

    import redis
    from conftest import Faults

    from isotherm.storage.postgres.operations import Operation, StepRow

pytestmark = pytest.mark.usefixtures("opened")

ATLAS = Namespace.of("atlas", "s1")
RECORDS = 30
POLICY = Policy(hot_capacity=10, warm_capacity=1000, hot_ttl=None, warm_ttl=None, demote_idle=None, batch_size=5)


@pytest.fixture
def pace() -> dict[str, str]:
    return {
        "ISOTHERM_MAX_ATTEMPTS": "2",
        "ISOTHERM_RETRY_BASE": "1",
        "ISOTHERM_OUTBOX_GRACE": "1",
        "ISOTHERM_NUDGE_AFTER": "1",
    }


def start_pass() -> UUID:
    """Twenty of thirty records go from hot to warm, in four batches."""
    now = datetime.now(UTC)
    records = [
        NewRecord(id=f"r{n:02}", content=f"note {n} on kelp", created_at=now - timedelta(minutes=RECORDS - n))
        for n in range(RECORDS)
    ]
    producers.remember_records(ATLAS, records)
    return producers.reconcile(ATLAS, POLICY).operation_id


def finish(operation_id: UUID) -> Operation:
    tick_until(lambda: producers.operation(operation_id).final, what="the pass")
    tick_until(outbox_is_empty, what="the outbox to be empty")
    return producers.operation(operation_id)


def of_stage(operation_id: UUID, stage: str) -> list[StepRow]:
    return [step for step in steps_of(operation_id) if step.stage == stage]


def outbox_is_empty_of(builder: str) -> bool:
    return not fetch_all("SELECT 1 FROM outbox WHERE builder = %(builder)s", {"builder": builder})


def depths() -> dict[int, int]:
    return dict(fetch_all("SELECT tier, count(*) FROM tier_records GROUP BY tier"))


def result(demoted: int, unfinished: int) -> dict[str, int]:
    return {"promoted": 0, "demoted": demoted, "evicted": 0, "set_aside": 0, "unfinished": unfinished}


@ON_BOTH
def test_header_task_that_was_postponed_still_gets_its_report(faults: Faults) -> None:
    faults.set("shift-busy-once")
    faults.set("shift-gate")
    worker = faults.worker()
    operation_id = start_pass()
    faults.wait_inside(2)
    assert outbox_is_empty_of("fan_out")
    with connection() as conn:  # no announcement for want of a claim: only the end of a late step may make one
        conn.execute("UPDATE operation_steps SET nudge_at = now() + interval '1 hour' WHERE stage = 'tier.report'")
    faults.set("open")
    ended = finish(operation_id)
    assert ended.state == "done"
    assert ended.result == result(20, 0)
    assert sorted((s.attempts, s.waits) for s in of_stage(operation_id, "tier.migrate")) == [(1, 0)] * 3 + [(1, 1)]
    assert depths() == {2: 20, 3: 10}
    # The chord's body came too early and was left; the end of the postponed step had it announced again.
    [report] = of_stage(operation_id, "tier.report")
    assert report.attempts == 1
    assert f"step {report.id} is pending: owned, waiting or not due" in worker.output()


def test_chord_whose_counter_was_lost_is_completed_by_the_sweeper(faults: Faults, client: redis.Redis) -> None:
    faults.set("shift-gate")
    faults.worker()
    operation_id = start_pass()
    faults.wait_inside(2)
    client.flushall()
    faults.set("open")
    ended = finish(operation_id)
    assert ended.state == "done"
    assert ended.result == result(20, 0)
    assert depths() == {2: 20, 3: 10}
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(20,)]
    assert {s.attempts for s in steps_of(operation_id)} == {1}


def counters(client: redis.Redis) -> list[bytes]:
    """Keys by which the result backend counts the members of chords."""
    return [key for key in client.scan_iter("*taskset-meta*") if key.endswith((b".j", b".t"))]


def test_chord_whose_results_expire_after_a_second_is_completed_by_the_sweeper(
    faults: Faults, client: redis.Redis
) -> None:
    faults.set("shift-gate")
    faults.worker(FAULT_RESULT_EXPIRES="1")
    operation_id = start_pass()
    first, _ = faults.wait_inside(2)
    faults.set(f"open-{first}")
    wait_until(lambda: counters(client), what="the first members to be counted")
    wait_until(lambda: not counters(client), what="their count to expire")
    faults.set("open")
    ended = finish(operation_id)
    assert (ended.state, ended.result) == ("done", result(20, 0))
    assert depths() == {2: 20, 3: 10}
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(20,)]
    assert {s.attempts for s in steps_of(operation_id)} == {1}


@ON_BOTH
def test_chord_delivered_twice_has_one_effect_and_one_report(faults: Faults) -> None:
    faults.set("shift-gate")
    worker = faults.worker()
    operation_id = start_pass()
    faults.wait_inside(2)
    *header, body = [
        StepRef(step_id=s.id, stage=s.stage)
        for s in steps_of(operation_id)
        if s.stage in {"tier.migrate", "tier.report"}
    ]
    trace_id = producers.operation(operation_id).trace_id
    again = FanOut(trace_id=trace_id, operation_id=operation_id, header=[[ref] for ref in header], body=body)
    canvas.fan_out(again.model_dump(mode="json")).apply_async()
    faults.set("open")
    ended = finish(operation_id)
    assert (ended.state, ended.result) == ("done", result(20, 0))
    wait_until(lambda: worker.output().count("Task tier.report[") >= 4, what="both bodies to come and end")
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(20,)]
    assert {s.attempts for s in steps_of(operation_id)} == {1}
    assert worker.output().count("tier.migration_reported") == 1


@ON_BOTH
def test_chord_without_members_runs_its_body() -> None:
    operation_id = start_pass()
    producers.flush()
    with app.connection_for_write() as link:
        link.default_channel.queue_purge("db")
    [plan] = steps_of(operation_id)
    body = StepRef(step_id=plan.id, stage=plan.stage)
    trace_id = producers.operation(operation_id).trace_id
    empty = FanOut(trace_id=trace_id, operation_id=operation_id, header=[], body=body)
    canvas.fan_out(empty.model_dump(mode="json")).apply_async()
    assert broker.depth("db") == 1


def test_header_step_that_ends_dead_makes_the_operation_partial_and_the_report_says_so(faults: Faults) -> None:
    faults.set("shift-broken-for-one")
    faults.worker()
    operation_id = start_pass()
    ended = finish(operation_id)
    assert ended.state == "partial"
    assert ended.result == {**result(15, 1), "set_aside": 5}
    assert "ValueError in faulty.py:" in str(ended.error)
    [dead] = [s for s in of_stage(operation_id, "tier.migrate") if s.state != "done"]
    assert (dead.state, dead.attempts) == ("dead", 2)
    assert depths() == {2: 15, 3: 15}

    faults.clear("shift-broken-for-one")
    with connection() as conn:
        opened = operations.reopen(
            conn, operation_id, retry_for=timedelta(minutes=1), nudge_after=timedelta(milliseconds=100)
        )
    assert [stage for _, stage in opened] == ["tier.migrate", "tier.report"]
    ended = finish(operation_id)
    assert (ended.state, ended.result, ended.error) == ("done", result(20, 0), None)
    assert depths() == {2: 20, 3: 10}
