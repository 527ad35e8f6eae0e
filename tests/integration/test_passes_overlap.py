"""Passes that meet: what one of them is moving the next one does not plan again, and no namespace is forgotten meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import _READY, STAGES, drive
from tiering import LONG, NS, accessed, archive, policy, store, tiers

from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from uuid import UUID

    from isotherm.storage.opened import Storage

HOUR = timedelta(hours=1)
_MOVES = """
SELECT s.stage, m ->> 0 FROM operation_steps AS s, jsonb_array_elements(s.input -> 'moves') AS m
WHERE s.state IN ('pending', 'running') AND s.stage <> 'cold.summarize'"""


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def plan_only(**limits: Any) -> UUID:
    """A pass whose moves nobody makes yet."""
    operation_id = producers.reconcile(NS, policy(**limits)).operation_id
    run_next(operation_id)
    return operation_id


def run_next(operation_id: UUID | None = None) -> str:
    step_id, operation, trace, stage = fetch_all(_READY, {"operation": operation_id})[0]
    STAGES[stage]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})
    return str(stage)


def planned() -> Counter[str]:
    """How often each record is in an open step, by its row key."""
    return Counter(key for _, key in fetch_all(_MOVES))


def test_pass_beside_a_slow_one_plans_only_what_is_not_under_way(memory: Storage) -> None:
    assert memory
    store(*[(f"w{n}", n * HOUR) for n in range(6)], tier=Tier.WARM, content=LONG)
    for _ in range(3):
        plan_only(warm_capacity=2)
    assert set(planned().values()) == {1}
    assert planned().total() == 4, "exactly the overflow, and no others instead of those that go"
    producers.remember_records(NS, [NewRecord("newer", "kelp", datetime.now(UTC), tier=Tier.WARM)])
    drive_index()
    plan_only(warm_capacity=2)
    assert planned().total() == 5
    assert set(planned().values()) == {1}
    drive()
    assert Counter(tiers().values()) == {Tier.COLD: 5, Tier.WARM: 2}


def test_what_is_on_its_way_takes_its_room(memory: Storage) -> None:
    assert memory
    store(*[(f"w{n}", n * HOUR) for n in range(3)], tier=Tier.WARM)
    limits = {"hot_capacity": 1, "promote_access": 1}
    accessed("w0", 5)
    plan_only(**limits)
    accessed("w1", 4)
    plan_only(**limits)
    drive()
    assert Counter(tiers().values()) == {Tier.HOT: 1, Tier.WARM: 2}


def test_record_that_changed_since_it_was_planned_is_planned_again(memory: Storage) -> None:
    assert memory
    store(("a", HOUR), tier=Tier.WARM, content=LONG)
    plan_only(warm_capacity=0)
    producers.remember_records(NS, [NewRecord("a", "kelp", datetime.now(UTC), tier=Tier.WARM)])
    drive_index()
    plan_only(warm_capacity=0)
    assert planned().total() == 2
    drive()
    assert tiers() == {"a": Tier.COLD}


def drive_index() -> None:
    """Run the steps that index records, and no other."""
    for step_id, operation, trace, stage in fetch_all(
        """SELECT s.id, o.id, o.trace_id, s.stage FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
           WHERE s.state = 'pending' AND s.stage = 'tier.index'"""
    ):
        STAGES[stage]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})


def test_record_that_somebody_is_restoring_is_not_evicted(memory: Storage) -> None:
    assert memory
    store(("a", 90 * 24 * HOUR), tier=Tier.WARM)
    archive("a")
    producers.restore(NS, ["a"])
    assert producers.plan(NS, policy(cold_capacity=0)).moves == ()


@pytest.mark.parametrize("quota_first", [True, False])
def test_pass_for_a_quota_and_one_of_a_namespace_share_what_is_to_be_done(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, *, quota_first: bool
) -> None:
    monkeypatch.setenv("ISOTHERM_QUOTAS", json.dumps({"*": {"records": 2}}))
    monkeypatch.setenv("ISOTHERM_TIER", policy().model_dump_json())
    monkeypatch.setenv("ISOTHERM_QUOTA_TICK", "0.001")
    memory: Storage = request.getfixturevalue("memory")
    assert memory
    store(*[(f"w{n}", n * HOUR) for n in range(6)], tier=Tier.WARM, content=LONG)
    if quota_first:
        for _ in range(3):
            assert ticks.hold_quotas() == {"tenants": 1}
            run_pending_plan()
        plan_only(warm_capacity=2)
    else:
        plan_only(warm_capacity=2)
        ticks.hold_quotas()
        run_pending_plan()
    assert set(planned().values()) == {1}
    assert planned().total() == 4
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now() WHERE state = 'pending'")
    drive()
    assert Counter(tiers().values()) == {Tier.COLD: 4, Tier.WARM: 2}


def run_pending_plan() -> None:
    ((operation_id,),) = fetch_all(
        "SELECT operation_id FROM operation_steps WHERE stage = 'tier.plan' AND state = 'pending'"
    )
    run_next(operation_id)
