from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from harness import all_final, wait_until

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.tasks import producers

if TYPE_CHECKING:
    from uuid import UUID

    import redis
    from harness import Process, Processes

    from isotherm.storage.opened import Storage

ATLAS = Namespace.of("atlas", "s1")
SECRET = "xylophonist"
POLICY = Policy(hot_capacity=2, warm_capacity=3, hot_ttl=None, warm_ttl=None, demote_idle=None, batch_size=2)
# The only key that may hold text: the newest records, as the next reader wants them.
TAIL = b"isotherm:{1}:tail"


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_COLD_MIN_BYTES": "100"}


def events(worker: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]


def told(worker: Process, operation_id: UUID) -> dict[str, str]:
    """What an operation told, by event, and the task that told it."""
    return {e["event"]: e["task"] for e in events(worker) if e.get("operation_id") == str(operation_id)}


def values(client: redis.Redis, key: bytes) -> bytes:
    """Everything a key of Redis holds, in one piece."""
    kind = client.type(key)
    if kind == b"string":
        return client.get(key) or b""
    if kind == b"list":
        return b"\n".join(client.lrange(key, 0, -1))
    if kind == b"set":
        return b"\n".join(client.smembers(key))
    if kind == b"zset":
        return b"\n".join(client.zrange(key, 0, -1))
    assert kind in {b"hash", b"none"}, kind  # none: it expired meanwhile
    return b"\n".join(part for pair in client.hgetall(key).items() for part in pair)


def leaks(client: redis.Redis) -> list[bytes]:
    """Keys that hold the text of a record."""
    return [key for key in client.scan_iter(count=1000) if SECRET.encode() in key + values(client, key)]


def test_run_leaves_its_trace_in_the_log_and_no_text_anywhere(
    opened: Storage, processes: Processes, client: redis.Redis
) -> None:
    now = datetime.now(UTC)
    records = [
        NewRecord(
            id=f"r{n}",
            content=f"note {n} of the {SECRET}. " + f"It went on and on {n}. " * 20,
            created_at=now - timedelta(minutes=10 - n),
            metadata={"who": SECRET},
        )
        for n in range(8)
    ]
    stored = producers.remember_records(ATLAS, records)
    wait_until(lambda: client.llen("db") == 1, what="the message")
    assert producers.flush()
    assert leaks(client) == []
    assert len(opened.tier.tail(ATLAS)) == 8
    assert leaks(client) == [TAIL]
    worker = processes.worker()
    accepted = [stored.operation_id]
    for _ in range(2):
        accepted.append(producers.reconcile(ATLAS, POLICY).operation_id)
        wait_until(all_final, what="the pass")
    assert len(opened.tier.tail(ATLAS)) == 8
    assert leaks(client) == [TAIL]
    accepted.append(producers.restore(ATLAS, ["r0"]).operation_id)
    wait_until(all_final, what="the restore")
    assert set(leaks(client)) <= {TAIL}
    assert SECRET not in worker.output()

    for operation_id, wanted in zip(
        accepted,
        [
            {"tier.records_indexed": "tier.index"},
            {"tier.migration_planned": "tier.plan", "tier.migration_reported": "tier.report"},
            {
                "tier.migration_planned": "tier.plan",
                "cold.summaries_written": "cold.summarize",
                "cold.records_archived": "cold.archive",
                "tier.migration_reported": "tier.report",
            },
            {"tier.records_restored": "tier.restore"},
        ],
        strict=True,
    ):
        # What was done is told after it is committed.
        wait_until(lambda one=operation_id, all_of=wanted: told(worker, one).keys() >= all_of.keys(), what="its events")  # type: ignore[misc]
        assert {event: task for event, task in told(worker, operation_id).items() if event in wanted} == wanted
        mine = [event for event in events(worker) if event.get("operation_id") == str(operation_id)]
        assert {e["trace_id"] for e in mine} == {str(producers.operation(operation_id).trace_id)}
        assert all(e["task_id"] and e["root_id"] for e in mine)
