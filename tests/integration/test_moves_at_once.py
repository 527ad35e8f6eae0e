"""A pass whose moves make one batch and leave all bodies where they are is done by the step that planned it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import STAGES, check_database, drive
from tiering import NS, policy, store, tiers

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import tier_move
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from collections.abc import Callable

    from isotherm.storage.opened import Storage

COUNTS = ("promoted", "demoted", "evicted", "set_aside", "unfinished")
DUE = "SELECT count(*) FROM namespaces WHERE due_at <= now()"


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def over(memory: Storage) -> None:
    """Three hot records, of which two are to stay."""
    assert memory
    store(*[(name, timedelta(hours=n)) for n, name in enumerate("cba", start=1)])


def before_the_move(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have something happen once, between the plan and its moves."""
    shift, waiting = tier_move.shift_together, [act]

    def later(*given: Any) -> Any:
        if waiting:
            waiting.pop()()
        return shift(*given)

    monkeypatch.setattr(tier_move, "shift_together", later)


@pytest.mark.usefixtures("over")
def test_one_batch_needs_one_step_and_two_need_steps_of_their_own() -> None:
    one = producers.reconcile(NS, policy(hot_capacity=2)).operation_id
    assert drive(one) == ["tier.plan"]
    done = producers.operation(one)
    assert done.result == {"moves": 1, "batches": 1, "truncated": False, **dict.fromkeys(COUNTS, 0), "demoted": 1}
    assert fetch_all("SELECT operation_id, source, target, reason FROM tier_moves") == [(one, 3, 2, "capacity")]
    assert fetch_all(DUE) == [(1,)], "moves may push others"
    two = producers.reconcile(NS, policy(hot_capacity=0, batch_size=1)).operation_id
    assert drive(two) == ["tier.plan", "tier.migrate", "tier.migrate", "tier.report"]
    assert set(tiers().values()) == {Tier.WARM}
    check_database()


@pytest.mark.usefixtures("over")
def test_record_that_changes_between_plan_and_move_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def change() -> None:
        """As a writer of records does: the record first, then its namespace, neither of which is held."""
        with connection() as conn:
            conn.execute("SET LOCAL lock_timeout = '2s'")
            conn.execute("UPDATE tier_records SET version = version + 1 WHERE id = 'a'")
            conn.execute("UPDATE namespaces SET due_at = now()")

    before_the_move(monkeypatch, change)
    accepted = producers.reconcile(NS, policy(hot_capacity=1))
    drive(accepted.operation_id)
    result = producers.operation(accepted.operation_id).result
    assert result is not None
    assert {name: result[name] for name in COUNTS} == {**dict.fromkeys(COUNTS, 0), "demoted": 1}
    assert tiers() == {"a": Tier.HOT, "b": Tier.WARM, "c": Tier.HOT}
    assert fetch_all(DUE) == [(1,)], "another pass looks at what was left"


@pytest.mark.usefixtures("over")
def test_pass_that_breaks_off_before_its_moves_stays_in_the_sweep_and_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def break_off() -> None:
        raise TransientError("the server went away")

    before_the_move(monkeypatch, break_off)
    accepted = producers.reconcile(NS, policy(hot_capacity=2))
    [(step_id, trace_id)] = fetch_all(
        "SELECT s.id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id WHERE o.id = %(id)s",
        {"id": accepted.operation_id},
    )
    STAGES["tier.plan"]({"step_id": step_id, "operation_id": str(accepted.operation_id), "trace_id": str(trace_id)})
    assert set(tiers().values()) == {Tier.HOT}
    assert fetch_all("SELECT count(*) FROM namespaces WHERE due_at IS NOT NULL") == [(1,)], "it stays in the sweep"
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    drive(accepted.operation_id)
    assert producers.operation(accepted.operation_id).state == "done"
    assert tiers() == {"a": Tier.WARM, "b": Tier.HOT, "c": Tier.HOT}
    assert fetch_all("SELECT count(*) FROM tier_moves") == [(1,)]
