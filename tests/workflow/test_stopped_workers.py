from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness import all_final, conversation, ingest, step_of, wait_until

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.storage.postgres import operations
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import broker, producers

if TYPE_CHECKING:
    from harness import Processes

    from isotherm.storage.postgres.operations import Backlog

pytestmark = pytest.mark.usefixtures("opened")


def backlog() -> list[Backlog]:
    with connection() as conn:
        return operations.backlog(conn)


def test_producers_answer_without_workers_and_the_backlog_tells_which_queue_nobody_serves(
    processes: Processes,
) -> None:
    processes.worker("ticker", queues="maintenance", concurrency=1)
    operation_ids = ingest(conversation(60))
    producers.reconcile(Namespace.of("atlas", "s1"))
    found = producers.recall(Bank(None, "atlas"), "kelp depth7")
    assert "note 7 on kelp depth7" in [item.record.text for item in found.items]
    assert {step_of(i).state for i in operation_ids} == {"pending"}
    consumers = broker.consumers(timeout=1.0)
    assert list(consumers) == ["maintenance"]
    assert [name.partition("@")[0] for name in consumers["maintenance"]] == ["ticker"]
    wait_until(lambda: backlog()[0].oldest_s > 0.5, what="the oldest step to age")
    [db] = backlog()
    assert (db.queue, db.steps, db.running) == ("db", 4, 0)
    [(oldest,)] = fetch_all("SELECT extract(epoch FROM now() - min(created_at))::float8 FROM operation_steps")
    assert db.oldest_s == pytest.approx(oldest, abs=1.0)

    processes.worker("late", queues="db,llm", concurrency=1)
    wait_until(all_final, what="the late worker to finish everything")
    assert sorted(broker.consumers(timeout=1.0)) == ["db", "llm", "maintenance"]
    assert backlog() == []
