from __future__ import annotations

import os
import random
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from harness import all_final, assert_whole, conversation, ingest, leave_to_relay, outbox_is_empty, step_of, wait_until

from isotherm import storage
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage import opened as opened_module
from isotherm.storage.embedded import Embedded, Endpoints
from isotherm.storage.postgres.migrate import migrate
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from uuid import UUID

    import redis
    from conftest import Faults
    from harness import Processes

    from isotherm.pipeline.transcript import TranscriptLine

NS = Namespace.of("atlas", "s1")
WORDS = {47: "gateword", 131: "gateword"}


@pytest.fixture(scope="module")
def own(base_dir: Path) -> Iterator[Embedded]:
    """Servers that a test may kill."""
    servers = Embedded(base_dir / "own", system_dir=base_dir / "system")
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def endpoints(own: Embedded) -> Endpoints:
    return own.start()


@pytest.fixture
def dsn(endpoints: Endpoints) -> Iterator[str]:
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA public CASCADE")
        conn.execute("CREATE SCHEMA public")
    migrate(endpoints.postgres_dsn)
    yield endpoints.postgres_dsn
    opened_module.close_storage()


@pytest.fixture(autouse=True)
def unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages take the way over the relay: Celery of this process has another Redis than these servers'."""
    leave_to_relay(monkeypatch)


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "2", "ISOTHERM_OUTBOX_GRACE": "0.1", "ISOTHERM_NUDGE_AFTER": "1"}


def kill(servers: Embedded, number: int) -> None:
    pid = servers.status()[number].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def wait_whole(lines: Sequence[TranscriptLine]) -> None:
    wait_until(all_final, 60, "every operation to be final")
    wait_until(outbox_is_empty, 20, "the outbox to be empty")
    assert_whole(lines)


@pytest.mark.usefixtures("opened")
def test_ingest_survives_kill_9_of_postgresql(own: Embedded, dsn: str, faults: Faults, processes: Processes) -> None:
    processes.beat()
    faults.worker()
    lines = conversation(240, WORDS)
    operation_ids = ingest(lines[:200])
    faults.wait_inside(2)
    kill(own, 0)
    wait_until(lambda: not answers(dsn), what="PostgreSQL to be away")
    with pytest.raises(TransientError):
        producers.remember_messages(lines[200:220])
    faults.set("open")
    own.start()
    operation_ids += ingest(lines[200:])
    wait_whole(lines)
    # A step that met the outage either waited, uncounted, or lost its lease.
    assert all(step_of(i).attempts <= 2 for i in operation_ids)


@pytest.mark.usefixtures("opened")
def test_ingest_survives_kill_9_of_redis(
    own: Embedded, client: redis.Redis, faults: Faults, processes: Processes
) -> None:
    processes.beat()
    worker = faults.worker()
    lines = conversation(240, WORDS)
    operation_ids = ingest(lines[:200])
    faults.wait_inside(2)
    kill(own, 1)
    operation_ids += ingest(lines[200:])  # answered while the broker is away
    faults.set("open")
    wait_until(lambda: sum(step_of(i).state == "done" for i in operation_ids) >= 2, what="the steps at hand to end")
    own.start()
    assert client.ping()
    wait_whole(lines)
    assert worker.popen.poll() is None
    assert {step_of(i).attempts for i in operation_ids} == {1}


@pytest.mark.usefixtures("opened")
def test_consumption_goes_on_within_30_s_of_each_of_two_restarts_idle_and_busy(
    own: Embedded, client: redis.Redis, faults: Faults, processes: Processes
) -> None:
    processes.beat()
    worker = faults.worker()
    lines = conversation(60, {47: "gateword"})
    operation_ids: list[UUID] = []

    def consumed() -> bool:
        return {step_of(i).state for i in operation_ids} == {"done"}

    def restart() -> None:
        kill(own, 1)
        own.start()
        assert client.ping()

    for part in (lines[:20], lines[20:40]):
        restart()
        operation_ids += ingest(part)
        wait_until(consumed, 30, "consumption to go on")
    operation_ids += ingest(lines[40:])
    faults.wait_inside()
    for _ in range(2):
        restart()
    faults.set("open")
    wait_until(consumed, 30, "consumption to go on")
    wait_whole(lines)
    assert worker.popen.poll() is None
    assert {step_of(i).attempts for i in operation_ids} == {1}


@pytest.mark.usefixtures("opened")
def test_cold_bodies_survive_kill_9_of_worker_and_postgresql_between_upload_and_flip(
    own: Embedded, dsn: str, faults: Faults, processes: Processes
) -> None:
    texts = {
        f"r{n}": "".join(random.Random(n).choices("abcdefghijklmnop qrstuvwxyz\u20ac", k=40_000)) for n in range(6)
    }
    old = datetime.now(UTC) - timedelta(hours=1)
    stored = producers.remember_records(NS, [NewRecord(i, t, old, tier=Tier.WARM) for i, t in texts.items()])
    processes.beat()
    first = faults.worker()
    wait_until(lambda: step_of(stored.operation_id).state == "done", what="the words to be indexed")
    faults.set("archive-gate")
    limits = Policy.single_level().model_copy(update={"warm_capacity": 0, "batch_size": 3})
    operation_id = producers.reconcile(NS, limits).operation_id
    faults.wait_inside(2)
    first.kill_all()
    for mark in faults.folder.glob("inside-*"):
        mark.unlink()
    faults.worker("worker2")
    faults.wait_inside(2)
    assert uploads() == {"writing": 12}
    kill(own, 0)
    wait_until(lambda: not answers(dsn), what="PostgreSQL to be away")
    faults.set("open")
    own.start()
    storage.close()
    storage.open()
    wait_until(lambda: producers.operation(operation_id).final, 60, "the pass to end")
    assert producers.operation(operation_id).result["demoted"] == 6  # type: ignore[index]
    memory = storage.open()
    assert {i: memory.tier.original(NS, i) for i in texts} == texts
    with connection() as conn:
        conn.execute("UPDATE cold_blobs SET changed_at = now() - interval '1 day'")
    ticks.collect()
    live = {
        key
        for (key,) in fetch_all("SELECT o.object_key FROM cold_blobs AS o JOIN cold_bodies AS b ON b.blob_id = o.id")
    }
    assert (uploads(), set(memory.blobs.keys(""))) == ({"live": 6}, live)


def uploads() -> dict[str, int]:
    return dict(fetch_all("SELECT state, count(*) FROM cold_blobs GROUP BY state"))
