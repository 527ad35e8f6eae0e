from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from brokers import ON_BOTH, empty
from harness import all_final, assert_whole, conversation, ingest, leave_to_relay, outbox_is_empty, step_of, wait_until

from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import broker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    import redis
    from conftest import Faults
    from harness import Processes
    from rabbit_server import RabbitServer

    from isotherm.pipeline.transcript import TranscriptLine

pytestmark = pytest.mark.usefixtures("opened")

# Batches 2 and 6 stand at the gate, one in each process of the worker, while the ten behind them wait.
WORDS = {47: "gateword", 131: "gateword"}
GATED = (2, 6)


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "2", "ISOTHERM_OUTBOX_GRACE": "1", "ISOTHERM_NUDGE_AFTER": "1"}


def ingest_until_the_gate(faults: Faults) -> tuple[list[TranscriptLine], list[UUID], list[int]]:
    lines = conversation(240, WORDS)
    operation_ids = ingest(lines)
    return lines, operation_ids, faults.wait_inside(2)


def wait_whole(lines: Sequence[TranscriptLine]) -> None:
    wait_until(all_final, 40, "every operation to be final")
    wait_until(outbox_is_empty, 20, "the outbox to be empty")
    assert_whole(lines)


def attempts(operation_ids: Sequence[UUID]) -> list[int]:
    return [step_of(operation_id).attempts for operation_id in operation_ids]


@ON_BOTH
def test_ingest_survives_sigkill_of_a_worker_child(faults: Faults, processes: Processes) -> None:
    processes.beat()
    faults.worker()
    lines, operation_ids, inside = ingest_until_the_gate(faults)
    os.kill(inside[0], signal.SIGKILL)
    faults.set("open")
    wait_whole(lines)
    assert sorted(attempts(operation_ids)) == [1] * 11 + [2]
    [hit] = [step for i in operation_ids if (step := step_of(i)).attempts == 2]
    assert hit.last_error is not None
    assert hit.last_error.endswith(f":{inside[0]} was lost")


@ON_BOTH
def test_ingest_survives_sigkill_of_the_whole_worker_when_another_takes_over(
    faults: Faults, processes: Processes
) -> None:
    processes.beat()
    first = faults.worker()
    lines, operation_ids, _ = ingest_until_the_gate(faults)
    first.kill_all()
    faults.set("open")
    faults.worker("worker2")
    wait_whole(lines)
    hit = [n for n, tried in enumerate(attempts(operation_ids)) if tried == 2]
    assert hit == list(GATED)
    for n in hit:
        assert "was lost" in str(step_of(operation_ids[n]).last_error)


def test_ingest_survives_sigkill_of_beat_when_another_takes_over(faults: Faults, processes: Processes) -> None:
    first = processes.beat()
    faults.worker()
    lines, operation_ids, inside = ingest_until_the_gate(faults)
    first.kill_all()
    more = conversation(280, WORDS)[240:]
    with pytest.MonkeyPatch.context() as patched:
        leave_to_relay(patched)
        left = ingest(more)
    os.kill(inside[1], signal.SIGKILL)
    faults.set("open")
    wait_until(lambda: sum(attempts(operation_ids)) == 12, 60, what="all that needs no beat")
    assert [step_of(i).state for i in left] == ["pending"] * 2
    processes.beat("beat2")
    wait_whole([*lines, *more])
    assert sorted(attempts([*operation_ids, *left])) == [1] * 13 + [2]


@ON_BOTH
def test_ingest_survives_a_broker_that_loses_everything(
    faults: Faults, processes: Processes, client: redis.Redis, rabbit: RabbitServer | None
) -> None:
    processes.beat()
    faults.worker()
    lines, operation_ids, _ = ingest_until_the_gate(faults)
    assert broker.depth("db")
    client.flushall()
    if rabbit is not None:
        empty(rabbit)
    faults.set("open")
    wait_whole(lines)
    assert attempts(operation_ids) == [1] * 12
    assert fetch_all("SELECT 1 FROM operation_steps WHERE nudges > 0")
