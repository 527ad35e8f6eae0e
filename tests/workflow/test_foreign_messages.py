"""Messages that somebody put on the broker by hand: a real worker refuses each, tells of it, runs nothing and goes on."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from brokers import ON_BOTH
from harness import all_final, step_of, wait_until

from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import broker, producers
from isotherm.tasks.app import app

if TYPE_CHECKING:
    from harness import Processes

pytestmark = pytest.mark.usefixtures("opened")

CANARY = "xyzzyplugh"
JSON, PICKLE = "application/json", "application/x-python-serialize"
STATE = (
    "SELECT s.id, s.state, s.attempts, o.state FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id"
)


class Touch:
    """What a pickle can do to whoever reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def send(body: bytes, content_type: str = JSON, task: str | None = "tier.index", encoding: str = "utf-8") -> None:
    """Put a message on the queue as any program could, without anything of ours."""
    names = {} if task is None else {"lang": "py", "task": task, "id": str(uuid4())}
    with app.connection_for_write() as connection:
        connection.default_channel.basic_publish(
            connection.default_channel.prepare_message(
                body, content_type=content_type, content_encoding=encoding, headers=names
            ),
            exchange="", routing_key="db",
        )  # fmt: skip


def arguments(payload: object) -> bytes:
    return json.dumps([[payload], {}, {}]).encode()


@ON_BOTH
def test_foreign_messages_are_refused_and_told_and_the_next_real_one_is_done(
    processes: Processes, tmp_path: Path
) -> None:
    kept = producers.remember(Namespace.of("atlas", "s1"), "kelp")
    theirs = producers.remember(Namespace.of("boreas", "s1", tenant="acme"), "theirs")
    job = {
        "operation_id": str(kept.operation_id),
        "step_id": step_of(kept.operation_id).id,
        "trace_id": str(producers.operation(kept.operation_id).trace_id),
    }
    producers.flush()
    with app.connection_for_write() as connection:  # the real ones are announced again, after all that follows
        connection.default_channel.queue_purge("db")
    before = fetch_all(STATE)
    touched = tmp_path / "touched"
    send(pickle.dumps([[Touch(touched)], {}, {}]), PICKLE, encoding="binary")
    send(pickle.dumps(Touch(touched)), JSON, encoding="binary")
    send(b"\xff\xfe\0", "text/plain")
    send(b"\xff\xfe\0" + CANARY.encode() * 500_000)
    send(CANARY.encode(), "application/x-nonsense")
    send(arguments(job), task="os.system")
    send(arguments(job), task=None)
    send(CANARY.encode() * 500_000)
    send(arguments({**job, "note": CANARY * 500_000}))
    send(b"[" * 100_000)
    for wrong in (
        {name: value for name, value in job.items() if name != "step_id"},
        {**job, "step_id": step_of(theirs.operation_id).id},
        {**job, "step_id": 10**12},
        {**job, "schema_version": 2},
        {**job, "namespace_id": 1},
        [job],
        None,
    ):
        send(arguments(wrong))
    send(arguments(job), task="cold.summarize")
    worker = processes.worker(queues="db", concurrency=1)
    wait_until(lambda: broker.depth("db") == 0, 30, "every message to be taken")
    send(arguments({**job, "schema_version": 3}))
    wait_until(lambda: worker.output().count("operations.delivery_refused") >= 7, 30, "refusals to be told")
    assert fetch_all(STATE) == before
    assert not touched.exists()
    log = worker.output()
    dropped = {
        "Received invalid task message": 3,
        "Received unregistered task of type": 1,
        "Can't decode message body": 4,
    }
    assert {line: log.count(f'"event": "{line}"') for line in dropped} == dropped
    assert "unknown message" in log
    assert CANARY not in log
    processes.worker("second", queues="db,maintenance", concurrency=1)
    processes.beat()
    wait_until(all_final, 40, "the real messages, announced again, to be done")
    assert {row[1] for row in fetch_all(STATE)} == {"done"}
    assert {row[3] for row in fetch_all(STATE)} == {"done"}
