from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from brokers import ON_BOTH
from harness import assert_whole, conversation, ingest, leave_to_relay, outbox_is_empty, step_of, tick_until, wait_until

from isotherm.storage.postgres import operations, outbox
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import broker, producers, ticks
from isotherm.tasks.publish import publish

if TYPE_CHECKING:
    from harness import Processes
    from rabbit_server import RabbitServer

PRODUCER = textwrap.dedent("""
    from isotherm.pipeline.identity import Namespace
    from isotherm.tasks import producers

    namespace = Namespace.of("atlas", "s1")
    for n in range(3):
        print("accepted", producers.remember(namespace, f"note {n} on kelp", key=str(n)).operation_id)
""")

pytestmark = pytest.mark.usefixtures("opened")


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_OUTBOX_GRACE": "0.2"}


@pytest.fixture
def unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers of this process leave everything to the relay."""
    leave_to_relay(monkeypatch)


@ON_BOTH
def test_message_whose_broker_was_away_is_published_by_the_relay(
    processes: Processes, rabbit: RabbitServer | None, tmp_path: Path
) -> None:
    (tmp_path / "dead_broker_producer.py").write_text(PRODUCER)
    worker = processes.worker(concurrency=1, ready=False)
    away = "redis://127.0.0.1:1/0" if rabbit is None else rabbit.url_at(1)  # nothing listens on port 1
    producer = processes.start("dead_broker_producer", name="producer", ISOTHERM_BROKER_URL=away)
    assert producer.popen.wait(timeout=30) == 0, producer.output()
    answers = [UUID(line.split()[1]) for line in producer.output().splitlines() if line.startswith("accepted")]
    assert len(answers) == 3
    assert "outbox.publish_postponed" in producer.output()
    assert broker.depth("db") == 0
    assert {step_of(i).state for i in answers} == {"pending"}
    worker.wait_ready()
    tick_until(lambda: all(producers.operation(i).final for i in answers), what="the relay")
    assert [producers.operation(i).state for i in answers] == ["done"] * 3
    assert [step_of(i).attempts for i in answers] == [1] * 3
    tick_until(outbox_is_empty)


@ON_BOTH
@pytest.mark.usefixtures("unpublished")
def test_relay_killed_between_publishing_and_deleting_has_one_effect(processes: Processes) -> None:
    lines = conversation(40)
    operation_ids = ingest(lines)
    wait_until(lambda: fetch_all("SELECT count(*) FROM outbox WHERE not_before <= now()") == [(2,)], what="the grace")
    with connection() as conn:
        assert len(publish(outbox.due(conn))) == 2
        conn.rollback()
    assert broker.depth("db") == 1, "steps of one stage ride together"
    assert ticks.relay() == {"published": 2, "dropped": 0}
    assert broker.depth("db") == 2
    worker = processes.worker(concurrency=2)
    wait_until(lambda: worker.output().count("] succeeded in ") == 2, what="both deliveries to end")
    assert [step_of(i).attempts for i in operation_ids] == [1] * 2
    assert worker.output().count("tier.records_indexed") == 2
    assert_whole(lines)


@pytest.mark.usefixtures("unpublished")
def test_message_of_a_cancelled_operation_is_dropped_and_never_run() -> None:
    [operation_id] = ingest(conversation(20))
    with connection() as conn:
        assert operations.cancel(conn, operation_id).state == "cancelled"
    wait_until(lambda: fetch_all("SELECT 1 FROM outbox WHERE not_before <= now()"), what="the grace")
    assert ticks.relay() == {"published": 0, "dropped": 1}
    assert broker.depth("db") == 0
    assert outbox_is_empty()
