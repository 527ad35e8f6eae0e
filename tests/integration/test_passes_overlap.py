"""Passes that meet: what one of them is moving the next one does not plan again, and no namespace is forgotten meanwhile."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import _READY, STAGES, drive
from tiering import LONG, NS, accessed, archive, policy, store, tiers

from isotherm import storage
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres import sweep
from isotherm.storage.postgres.migrate import migrate
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@pytest.fixture
def row_security(emptied_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second lock on this module's database, which is off again for the others."""
    migrate(emptied_dsn, rls=True)
    with monkeypatch.context() as patched:
        patched.setenv("ISOTHERM_RLS", "on")
        yield
    storage.close()
    migrate(emptied_dsn, rls=os.environ.get("ISOTHERM_TEST_RLS") == "on")


@pytest.mark.usefixtures("row_security")
def test_pass_under_row_security_leaves_out_what_one_for_a_quota_moves(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    test_pass_for_a_quota_and_one_of_a_namespace_share_what_is_to_be_done(monkeypatch, request, quota_first=True)


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


def due_in() -> timedelta | None:
    wait: timedelta | None = fetch_all("SELECT due_at - now() FROM namespaces WHERE agent = 'atlas'")[0][0]
    return wait


def is_due() -> bool:
    wait = due_in()
    return wait is not None and wait <= timedelta(0)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_namespace_of_a_pass_that_is_cancelled_stays_in_the_sweep(memory: Storage, steps: int) -> None:
    assert memory
    store(("old", 48 * HOUR), ("older", 49 * HOUR))
    operation_id = producers.reconcile(NS, policy(hot_ttl=HOUR, batch_size=1)).operation_id
    for _ in range(steps):
        run_next(operation_id)
    producers.cancel(operation_id)
    assert is_due()
    assert ticks.due() == {"namespaces": 1}
    drive()
    assert Tier.HOT not in tiers().values()


def test_namespace_of_a_pass_that_never_ends_is_looked_at_again(memory: Storage) -> None:
    """Whatever becomes of its report: lost, dead, or waiting for a model for a day."""
    assert memory
    store(("a", HOUR), tier=Tier.WARM, content=LONG)
    store(("young", 0 * HOUR))
    plan_only(warm_capacity=0)
    wait = due_in()
    assert wait is not None
    assert timedelta(minutes=9) < wait < timedelta(minutes=11)
    assert ticks.due() == {"namespaces": 0}, "not at every tick"
    second = plan_only(warm_capacity=0)
    assert producers.operation(second).state == "done"
    wait = due_in()
    assert wait is not None
    assert wait > timedelta(minutes=9), "the first one may still be lost"
    drive()
    assert is_due()
    drive(producers.reconcile(NS, policy(warm_capacity=0)).operation_id)
    assert due_in() is None, "nothing is on its way, and nothing ages"


def test_plan_that_ends_its_runner_is_not_asked_for_again_while_it_is_tried(memory: Storage) -> None:
    assert memory
    store(("a", HOUR))
    assert ticks.due() == {"namespaces": 1}
    with connection() as conn:
        conn.execute("UPDATE operations SET state = 'running' WHERE state = 'accepted'")
        conn.execute(
            """UPDATE operation_steps SET state = 'running', lease_until = now() - interval '1 s', attempts = 1
               WHERE stage = 'tier.plan'"""
        )
    assert is_due()
    assert ticks.due() == {"namespaces": 0}
    with connection() as conn:
        assert len(sweep.expired(conn, cap=1, delay=timedelta(0), nudge_after=timedelta(0)).dead) == 1
    assert ticks.due() == {"namespaces": 0}, "and then it has its wait"
    with connection() as conn:
        conn.execute("UPDATE operations SET finished_at = finished_at - interval '11 minutes' WHERE state = 'dead'")
    assert ticks.due() == {"namespaces": 1}


def test_dead_report_leaves_its_namespace_in_the_sweep(memory: Storage) -> None:
    assert memory
    store(("old", 48 * HOUR), ("older", 49 * HOUR), ("next", 0 * HOUR))
    operation_id = plan_only(hot_ttl=HOUR, batch_size=1)
    assert [run_next(operation_id) for _ in range(2)] == ["tier.migrate"] * 2
    with connection() as conn:
        conn.execute(
            "UPDATE operation_steps SET state = 'dead', finished_at = now() WHERE stage = 'tier.report' AND state = 'pending'"
        )
        conn.execute("UPDATE operations SET state = 'partial', finished_at = now() WHERE id = %s", (operation_id,))
    wait = due_in()
    assert wait is not None
    assert wait < timedelta(minutes=11)


def test_move_that_the_cool_down_holds_is_due_when_it_ends_though_the_others_came_to_nothing(memory: Storage) -> None:
    assert memory
    store(("a", 2 * HOUR), ("b", 2 * HOUR), ("held", HOUR))
    with connection() as conn:
        conn.execute(
            "UPDATE tier_records SET moved_at = now() - interval '10 minutes', moved_from = 2 WHERE id = 'held'"
        )
    operation_id = plan_only(hot_capacity=0, cooldown=HOUR, batch_size=1)
    producers.forget(NS, ["a", "b"])
    with connection() as conn:
        conn.execute("UPDATE namespaces SET due_at = NULL")
    drive(operation_id)
    wait = due_in()
    assert wait is not None
    assert timedelta(minutes=49) < wait < timedelta(minutes=51)


def test_record_that_a_quota_sent_down_goes_on_by_its_age(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    limits = policy(demote_idle=30 * 24 * HOUR)
    monkeypatch.setenv("ISOTHERM_QUOTAS", json.dumps({"*": {"records": 1}}))
    monkeypatch.setenv("ISOTHERM_TIER", limits.model_dump_json())
    memory: Storage = request.getfixturevalue("memory")
    assert memory
    store(("a", 2 * HOUR), ("b", HOUR))
    drive(producers.reconcile(NS, limits).operation_id)
    assert due_in() is None, "hot records do not age by this policy"
    ticks.hold_quotas()
    drive()
    assert tiers() == {"a": Tier.WARM, "b": Tier.HOT}
    assert is_due()
    drive(producers.reconcile(NS, limits).operation_id)
    wait = due_in()
    assert wait is not None
    assert wait > timedelta(days=29)
