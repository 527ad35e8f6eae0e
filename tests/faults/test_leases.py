from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from brokers import ON_BOTH
from harness import assert_whole, conversation, ingest, outbox_is_empty, step_of, tick_until, wait_until

from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Faults

pytestmark = pytest.mark.usefixtures("opened")

# Celery stops a worker warm on SIGTERM, waiting for its tasks without end, unless SIGTERM is mapped to SIGQUIT.
SOFT = {"REMAP_SIGTERM": "SIGQUIT"}


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "1.5", "ISOTHERM_OUTBOX_GRACE": "1", "ISOTHERM_NUDGE_AFTER": "1"}


@pytest.fixture
def paused() -> Iterator[list[int]]:
    """Processes to resume at the end, whatever happens; a stopped one would keep its worker from ending."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@ON_BOTH
def test_runner_that_lost_its_lease_is_refused_and_the_effect_happens_once(faults: Faults, paused: list[int]) -> None:
    worker = faults.worker()
    lines = conversation(20, {5: "gateword"})
    [operation_id] = ingest(lines)
    [first] = faults.wait_inside()
    os.kill(first, signal.SIGSTOP)
    paused.append(first)
    tick_until(lambda: len(faults.inside()) == 2, what="another runner at the gate")
    assert step_of(operation_id).attempts == 2
    faults.set(f"open-{first}")
    os.kill(first, signal.SIGCONT)
    wait_until(lambda: "has another runner" in worker.output(), what="the first runner to be refused")
    assert not fetch_all("SELECT 1 FROM tier_postings")
    assert step_of(operation_id).state == "running"
    faults.set("open")
    tick_until(lambda: producers.operation(operation_id).final)
    tick_until(outbox_is_empty)
    assert_whole(lines)
    assert step_of(operation_id).attempts == 2
    wait_until(lambda: "tier.records_indexed" in worker.output(), what="its event, which follows the commit")
    assert worker.output().count("tier.records_indexed") == 1


@ON_BOTH
def test_step_that_outlasts_a_soft_shutdown_is_given_back_uncounted_and_finished_by_another(faults: Faults) -> None:
    first = faults.worker(ISOTHERM_SOFT_SHUTDOWN="1", **SOFT)
    lines = conversation(60, {5: "gateword", 25: "gateword"})
    operation_ids = ingest(lines)
    faults.wait_inside(2)
    first.terminate()
    assert [(s.state, s.attempts) for s in map(step_of, operation_ids)][:2] == [("pending", 0)] * 2
    faults.set("open")
    faults.worker("worker2")
    tick_until(lambda: all(producers.operation(i).final for i in operation_ids))
    tick_until(outbox_is_empty)
    assert_whole(lines)
    assert [step_of(i).attempts for i in operation_ids] == [1] * 3


def test_step_that_ends_within_a_soft_shutdown_is_done_at_its_first_attempt(faults: Faults) -> None:
    worker = faults.worker(ISOTHERM_SOFT_SHUTDOWN="2", **SOFT)
    lines = conversation(20, {5: "gateword"})
    [operation_id] = ingest(lines)
    faults.wait_inside()
    worker.popen.send_signal(signal.SIGTERM)
    wait_until(lambda: "Initiating Soft Shutdown" in worker.output(), what="the soft shutdown to begin")
    faults.set("open")
    worker.popen.wait(timeout=20)
    assert step_of(operation_id).attempts == 1
    tick_until(outbox_is_empty)
    assert_whole(lines)
