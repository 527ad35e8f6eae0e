"""What a broker may do to messages that are at work, wait or are many."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from harness import (
    all_final,
    assert_whole,
    conversation,
    ingest,
    leave_to_relay,
    outbox_is_empty,
    step_of,
    steps_of,
    tick_until,
    wait_until,
)

from isotherm.pipeline import stages
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import app, passes, producers

if TYPE_CHECKING:
    from uuid import UUID

    import redis
    from conftest import Faults
    from harness import Processes

pytestmark = pytest.mark.usefixtures("opened")

ATLAS = Namespace.of("atlas", "s1")
# A longer form: ISOTHERM_OPERATIONS=10000.
OPERATIONS = int(os.environ.get("ISOTHERM_OPERATIONS", "300"))


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "3", "ISOTHERM_OUTBOX_GRACE": "1", "ISOTHERM_NUDGE_AFTER": "30"}


def job_of(operation_id: UUID) -> dict[str, Any]:
    step = steps_of(operation_id)[0]
    trace = str(producers.operation(operation_id).trace_id)
    return {"operation_id": str(operation_id), "step_id": step.id, "trace_id": trace}


def test_job_longer_than_the_visibility_timeout_has_one_effect(faults: Faults) -> None:
    worker = faults.worker(FAULT_VISIBILITY="1")
    lines = conversation(20, {5: "gateword"})
    [operation_id] = ingest(lines)
    faults.wait_inside()
    wait_until(lambda: "operations.delivery_skipped" in worker.output(), what="the same message to come again")
    faults.set("open")
    tick_until(all_final, what="the operation")
    tick_until(outbox_is_empty, what="the outbox to be empty")
    assert step_of(operation_id).attempts == 1
    wait_until(lambda: "tier.records_indexed" in worker.output(), what="its event, which follows the commit")
    assert worker.output().count("tier.records_indexed") == 1
    assert_whole(lines)


def test_countdown_longer_than_the_visibility_timeout_makes_one_pass(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = faults.worker(FAULT_VISIBILITY="1")
    ingest(conversation(20))
    tick_until(all_final, what="the records")
    monkeypatch.setattr(passes, "publish_after_commit", lambda _: None)
    policy = Policy(hot_capacity=5, warm_capacity=1000, hot_ttl=None, warm_ttl=None, demote_idle=None)
    operation_id = producers.reconcile(ATLAS, policy).operation_id
    app.send_task(stages.PLAN, args=[job_of(operation_id)], countdown=3)
    # What waits for its moment is taken for lost, and given out once more each time.
    wait_until(lambda: producers.operation(operation_id).final, what="the pass")
    wait_until(lambda: worker.output().count(f"Task {stages.PLAN}[") >= 4, what="a second delivery to come and end")
    assert producers.operation(operation_id).state == "done"
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(15,)]
    assert worker.output().count("tier.migration_planned") == 1
    assert worker.output().count("tier.migration_reported") == 1
    assert {step.attempts for step in steps_of(operation_id)} == {1}


def test_many_small_operations_leave_no_keys_and_no_channels(
    processes: Processes, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = processes.worker()
    producers.remember(ATLAS, "the first one makes what stays")
    producers.reconcile(ATLAS)
    tick_until(lambda: all_final() and outbox_is_empty(), what="the first ones")
    before = set(client.scan_iter())
    for n in range(OPERATIONS):
        producers.remember(ATLAS, f"note {n} on kelp", key=f"k{n}")
        if n % 50 == 0:
            producers.reconcile(ATLAS)
    leave_to_relay(monkeypatch)
    tick_until(lambda: all_final() and outbox_is_empty(), 600, "every operation")
    wait_until(lambda: not client.hlen("unacked"), what="the last message to be acknowledged")
    left = {key for key in client.scan_iter() if key not in before and not key.startswith((b"unacked", b"_kombu"))}
    # A chord that is over is remembered by Celery for some minutes, so that it is not run twice.
    lasting = {key: client.ttl(key) for key in left if not 0 < client.ttl(key) <= 300}
    assert lasting == {}
    assert client.llen("db") == 0
    channels = [c for c in client.pubsub_channels() if b"celery-task-meta" in c or b"reply" in c]
    assert channels == []
    assert worker.popen.poll() is None
