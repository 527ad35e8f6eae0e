from __future__ import annotations

from typing import TYPE_CHECKING

from harness import all_final, conversation, ingest, wait_until

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from harness import Processes

    from isotherm.storage.opened import Storage

NS = Namespace.of("atlas", "s1")


def test_an_agent_is_forgotten_while_its_messages_are_still_worked_on_and_what_comes_after_stays(
    opened: Storage, processes: Processes
) -> None:
    processes.worker()
    ingest(conversation(200))
    accepted = producers.forget_agent(Bank(None, "atlas"))
    assert opened.tier.tail(NS) == []
    producers.remember(NS, "a new beginning", record_id="new")
    wait_until(lambda: producers.operation(accepted.operation_id).final, 60, "the erasure")
    assert producers.operation(accepted.operation_id).state == "done"
    receipt = producers.forget_receipt(accepted.operation_id)
    assert receipt.left == {}
    assert receipt.counts["records"] == 200
    wait_until(all_final, what="what came after")
    assert fetch_all("SELECT id, indexed FROM tier_records") == [("new", True)]
    assert [r.content for r in opened.tier.tail(NS)] == ["a new beginning"]
    assert fetch_all("SELECT count(*) FROM tier_postings WHERE record_key NOT IN (SELECT key FROM tier_records)") == [
        (0,)
    ]
    assert fetch_all("SELECT count(*) FROM namespaces WHERE forgotten_at IS NOT NULL") == [(0,)]
