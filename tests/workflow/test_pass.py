from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from harness import wait_until

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from harness import Processes

    from isotherm.storage.opened import Storage

SMALL = Policy(hot_capacity=5, warm_capacity=10, hot_ttl=None, warm_ttl=None, demote_idle=None, batch_size=7)


def test_records_fill_three_tiers_in_two_passes_and_a_cold_one_comes_back(
    opened: Storage, processes: Processes
) -> None:
    processes.worker()
    namespace = Namespace.of("atlas", "s1")
    now = datetime.now(UTC)
    records = [
        NewRecord(
            id=f"r{n:02}",
            content=f"note {n} on kelp " + (f"long passage {n} " * 500 if n % 5 == 0 else ""),
            created_at=now - timedelta(minutes=100 - n),
        )
        for n in range(40)
    ]
    producers.remember_records(namespace, records)
    for expected in ([(2, 35), (3, 5)], [(1, 25), (2, 10), (3, 5)], [(1, 25), (2, 10), (3, 5)]):
        accepted = producers.reconcile(namespace, SMALL)
        wait_until(lambda: producers.operation(accepted.operation_id).final, what="the pass")  # noqa: B023
        assert producers.operation(accepted.operation_id).state == "done"
        assert fetch_all("SELECT tier, count(*) FROM tier_records GROUP BY tier ORDER BY tier") == expected
    cold = opened.tier.get(namespace, "r00")
    assert cold.tier == "cold"
    assert cold.content is None
    restored = producers.restore(namespace, ["r00"])
    wait_until(lambda: producers.operation(restored.operation_id).final, what="the restore")
    back = opened.tier.get(namespace, "r00")
    assert back.content == records[0].content
    assert back.tier == "warm"
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]
