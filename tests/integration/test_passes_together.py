"""Passes that wait together are planned and made in one go, each as an operation of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import STAGES, check_database, drive
from structlog.testing import capture_logs
from tiering import policy

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.quotas import Quota
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres import steps, tier_move
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.reach import system
from isotherm.tasks import passes, producers, ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from isotherm.storage.opened import Storage

SESSIONS = [Namespace.of("atlas", f"s{n}") for n in range(5)]
# Moves with their owner, and what their operations say: one line for each session.
MOVED = """
SELECT n.session, o.namespace_id = m.namespace_id, m.source, m.target, o.state, (o.result ->> 'demoted')::int
FROM tier_moves AS m JOIN namespaces AS n ON n.id = m.namespace_id LEFT JOIN operations AS o ON o.id = m.operation_id
ORDER BY n.session"""
PASSES = "SELECT o.state, count(*) FROM operations AS o WHERE o.kind = 'tier.reconcile' GROUP BY o.state"
PLANS = """
SELECT s.id, s.operation_id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE s.stage = 'tier.plan' AND s.state = 'pending' ORDER BY s.id"""


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_TIER": policy(hot_capacity=2).model_dump_json()}


@pytest.fixture
def over(memory: Storage) -> None:
    """Five sessions of three hot records each, of which two are to stay."""
    assert memory
    fill(*SESSIONS)


def fill(*sessions: Namespace, count: int = 3, content: str = "kelp", tier: Tier = Tier.HOT) -> None:
    now = datetime.now(UTC)
    for session in sessions:
        ages = [timedelta(hours=n + 1) for n in range(count)]
        producers.remember_records(
            session, [NewRecord(f"r{n}", f"{content} {n}", now - age, tier=tier) for n, age in enumerate(ages)]
        )
    drive()


def run_first() -> dict[str, Any]:
    """Deliver the message of the first plan alone; returns its receipt."""
    step_id, operation_id, trace_id = fetch_all(PLANS)[0]
    payload = {"step_id": step_id, "operation_id": str(operation_id), "trace_id": str(trace_id)}
    receipt: dict[str, Any] = STAGES["tier.plan"](payload)
    return receipt


def failing(act: Callable[[list[Any]], None]) -> Callable[..., Any]:
    """The moves of a batch, after something that may raise."""
    shift = tier_move.shift_together

    def later(conn: Any, moves_of: Any) -> Any:
        act(list(chain(*moves_of.values())))
        return shift(conn, moves_of)

    return later


@pytest.mark.usefixtures("over")
def test_one_message_plans_and_makes_the_passes_that_wait_each_in_its_own_operation() -> None:
    assert ticks.due() == {"namespaces": 5}
    assert ticks.due() == {"namespaces": 0}, "their passes wait"
    with capture_logs() as logs:
        assert run_first()["demoted"] == 1
    assert fetch_all(PLANS) == []
    assert fetch_all(MOVED) == [(f"s{n}", True, 3, 2, "done", 1) for n in range(5)]
    for event in ("tier.migration_planned", "tier.records_moved", "tier.migration_reported"):
        told = [entry for entry in logs if entry["event"] == event]
        assert len({entry["operation_id"] for entry in told}) == len({entry["namespace_id"] for entry in told}) == 5
    drive()
    assert fetch_all("SELECT count(*) FROM outbox WHERE builder <> 'step'") == [(0,)]
    assert ticks.due() == {"namespaces": 5}, "moves may push others"
    assert run_first()["moves"] == 0
    assert fetch_all(PASSES) == [("done", 10)]
    assert ticks.due() == {"namespaces": 0}
    check_database()


@pytest.mark.usefixtures("over")
def test_what_needs_steps_and_what_has_nothing_due_goes_with_what_is_made_at_once() -> None:
    fill(Namespace.of("atlas", "idle"), count=1)
    with connection() as conn:
        conn.execute("UPDATE namespaces SET due_at = now()")
    many = Namespace.of("atlas", "many")
    fill(many)
    asked = producers.reconcile(many, policy(hot_capacity=0, batch_size=1)).operation_id
    assert ticks.due() == {"namespaces": 6}
    run_first()
    assert fetch_all(PLANS) == []
    assert dict(fetch_all(PASSES)) == {"done": 6, "running": 1}
    assert drive() == ["tier.migrate", "tier.migrate", "tier.migrate", "tier.report"]
    assert producers.operation(asked).result == {
        "promoted": 0,
        "demoted": 3,
        "evicted": 0,
        "set_aside": 0,
        "unfinished": 0,
    }
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(8,)]


@pytest.mark.usefixtures("over")
def test_record_that_the_moves_fail_at_holds_up_no_other_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    [(poison,)] = fetch_all(
        "SELECT r.key FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id WHERE n.session = 's2' AND r.id = 'r2'"
    )

    def refuse(moves: list[Any]) -> None:
        if any(move.key == poison for move in moves):
            raise ValueError("a bug")

    monkeypatch.setattr(tier_move, "shift_together", failing(refuse))
    ticks.due()
    run_first()
    assert [row[0] for row in fetch_all(MOVED)] == ["s0", "s1", "s3", "s4"]
    stages = "SELECT s.stage FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id WHERE o.state = 'running'"
    assert sorted(row[0] for row in fetch_all(stages)) == ["tier.migrate", "tier.plan", "tier.report"]
    monkeypatch.undo()


@pytest.mark.usefixtures("over")
def test_server_that_goes_away_between_plans_and_moves_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_away(_: list[Any]) -> None:
        raise TransientError("the server went away")

    with monkeypatch.context() as away:
        away.setattr(tier_move, "shift_together", failing(go_away))
        ticks.due()
        assert run_first()["state"] == "postponed"
    states = "SELECT state, attempts, waits FROM operation_steps WHERE stage = 'tier.plan'"
    assert set(fetch_all(states)) == {("pending", 0, 1)}
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(0,)]
    assert fetch_all("SELECT count(*) FROM namespaces WHERE due_at IS NOT NULL") == [(5,)], "all stay in the sweep"
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    drive()
    assert fetch_all(MOVED) == [(f"s{n}", True, 3, 2, "done", 1) for n in range(5)]


@pytest.mark.parametrize("when", ["planned", "moved"])
@pytest.mark.usefixtures("over")
def test_pass_that_is_cancelled_meanwhile_moves_nothing_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    ticks.due()
    cancelled: UUID = fetch_all(PLANS)[2][1]
    waiting = [cancelled]

    def cancel(*_: object) -> None:
        if waiting:
            producers.cancel(waiting.pop())

    if when == "moved":
        monkeypatch.setattr(tier_move, "shift_together", failing(cancel))
    else:
        planned = passes.planned

        def late(*given: Any) -> Any:
            cancel()
            return planned(*given)

        monkeypatch.setattr(passes, "planned", late)
    run_first()
    assert not waiting
    assert [row[0] for row in fetch_all(MOVED)] == ["s0", "s1", "s3", "s4"]
    assert producers.operation(cancelled).state == "cancelled"
    assert dict(fetch_all(PASSES)) == {"done": 4, "cancelled": 1}


@pytest.mark.usefixtures("over")
def test_message_whose_own_step_is_taken_meanwhile_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_: list[Any]) -> None:
        with connection() as conn:
            conn.execute("UPDATE operation_steps SET token = token + 1 WHERE stage = 'tier.plan'")

    monkeypatch.setattr(tier_move, "shift_together", failing(take))
    ticks.due()
    assert run_first() == {"state": "skipped"}
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(0,)]


@pytest.mark.usefixtures("over")
def test_steps_of_a_message_that_went_with_its_first_are_not_claimed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    claim, claimed = steps.claim, []

    def noted(conn: Any, step_id: int, *given: Any, **more: Any) -> Any:
        claimed.append(step_id)
        return claim(conn, step_id, *given, **more)

    monkeypatch.setattr(steps, "claim", noted)
    ticks.due()
    first, *more = [{"step_id": s, "operation_id": str(o), "trace_id": str(t)} for s, o, t in fetch_all(PLANS)]
    assert STAGES["tier.plan"]({**first, "more": more})["more"] == 4
    assert claimed == [first["step_id"]]
    assert STAGES["tier.plan"]({**first, "more": more})["demoted"] == 1, "what came of it"
    assert fetch_all("SELECT DISTINCT token, attempts FROM operation_steps WHERE stage = 'tier.plan'") == [(1, 1)]


@pytest.mark.usefixtures("over")
def test_steps_of_a_message_that_did_not_go_with_its_first_are_run_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> frozenset[int]:
        raise TransientError("the server went away")

    ticks.due()
    first, *more = [{"step_id": s, "operation_id": str(o), "trace_id": str(t)} for s, o, t in fetch_all(PLANS)]
    monkeypatch.setattr(steps, "claim_more", lambda *_, **__: [])
    monkeypatch.setattr(steps, "open_of", away)
    STAGES["tier.plan"]({**first, "more": more})
    assert fetch_all(MOVED) == [(f"s{n}", True, 3, 2, "done", 1) for n in range(5)]


@pytest.mark.usefixtures("over")
def test_pass_for_a_quota_goes_by_itself() -> None:
    ticks.due()
    with system():
        passes.request_quota(None, Quota(records=13))
    run_first()
    own = "SELECT o.kind, o.state FROM operations AS o JOIN operation_steps AS s ON s.operation_id = o.id WHERE s.stage = 'tier.plan'"
    assert set(fetch_all(own)) == {("tier.reconcile", "done"), ("tier.quota", "done")}
    drive()
    assert fetch_all("SELECT count(*) FROM operations WHERE state NOT IN ('done')") == [(0,)]
    check_database()


@pytest.mark.usefixtures("memory")
def test_moves_that_are_more_than_a_batch_go_in_several() -> None:
    fill(*SESSIONS[:3], count=6)
    limits = policy(hot_capacity=2, batch_size=4)
    for session in SESSIONS[:3]:
        producers.reconcile(session, limits)
    run_first()
    assert fetch_all(PLANS) == []
    times = "SELECT count(DISTINCT moved_at), count(*) FROM tier_records WHERE tier = 2"
    assert fetch_all(times) == [(3, 12)], "each batch is a transaction"


@pytest.mark.usefixtures("over")
def test_namespace_that_is_gone_is_not_asked_for_and_one_that_waits_keeps_its_policy() -> None:
    ids = [row[0] for row in fetch_all("SELECT id FROM namespaces ORDER BY id")]
    asked = producers.reconcile(SESSIONS[1], policy(hot_capacity=0))
    with system():
        assert passes.request_due([*ids, 10**9]) == 4
    drive()
    assert producers.operation(asked.operation_id).result is not None
    assert [row[0] for row in fetch_all(MOVED)] == ["s0", *["s1"] * 3, "s2", "s3", "s4"]
