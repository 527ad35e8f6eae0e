"""What the models of runs cost, by step, and budgets that a run has of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from isotherm.pipeline.interest.budget import Budget, Spent
from isotherm.storage.postgres.pool import Connection

_SUMS = """coalesce(sum(u.calls), 0)::int, coalesce(sum(u.repairs), 0)::int, coalesce(sum(u.failures), 0)::int,
    coalesce(sum(u.input_tokens), 0)::bigint, coalesce(sum(u.output_tokens), 0)::bigint,
    coalesce(sum(u.estimated_tokens), 0)::bigint, coalesce(sum(u.cost), 0), coalesce(sum(u.model_ms), 0)::bigint"""

# Of a run that was forgotten meanwhile nothing is kept.
_ADD = """
INSERT INTO interest_usage AS u (operation_id, stage, unit, model, calls, repairs, failures, input_tokens, output_tokens,
                                 estimated_tokens, cost, model_ms)
SELECT o.id, %(stage)s, %(unit)s, %(model)s, %(calls)s, %(repairs)s, %(failures)s, %(input_tokens)s, %(output_tokens)s,
       %(estimated_tokens)s, %(cost)s, %(model_ms)s
FROM operations AS o WHERE o.id = %(operation)s FOR KEY SHARE
ON CONFLICT (operation_id, stage, unit, model) DO UPDATE SET
    calls = u.calls + excluded.calls, repairs = u.repairs + excluded.repairs, failures = u.failures + excluded.failures,
    input_tokens = u.input_tokens + excluded.input_tokens, output_tokens = u.output_tokens + excluded.output_tokens,
    estimated_tokens = u.estimated_tokens + excluded.estimated_tokens, cost = u.cost + excluded.cost,
    model_ms = u.model_ms + excluded.model_ms"""

_SPENT = f"SELECT {_SUMS} FROM interest_usage AS u WHERE u.operation_id = %s"
_OF_STEP = f"""
SELECT {_SUMS} FROM interest_usage AS u WHERE u.operation_id = %s AND u.stage = %s AND u.unit = %s"""
_BY_STAGE = f"""
SELECT u.operation_id, u.stage, {_SUMS} FROM interest_usage AS u WHERE u.operation_id = ANY(%s)
GROUP BY u.operation_id, u.stage"""

_GRANT = """
INSERT INTO interest_budgets (operation_id, tokens, money) VALUES (%s, %s, %s)
ON CONFLICT (operation_id) DO UPDATE SET tokens = excluded.tokens, money = excluded.money"""


def add(conn: Connection, operation_id: UUID, stage: str, unit: str, model: str, spent: Spent) -> None:
    """Add what calls of a step came to."""
    place = {"operation": operation_id, "stage": stage, "unit": unit, "model": model}
    conn.execute(_ADD, {**place, **asdict(spent)})


def spent(conn: Connection, operation_id: UUID) -> Spent:
    """What a run has spent so far, with what was paid for by runners that were killed."""
    row = conn.execute(_SPENT, (operation_id,)).fetchone()
    return Spent(*row) if row else Spent()


def of_step(conn: Connection, operation_id: UUID, stage: str, unit: str) -> Spent:
    """What one step of a run has spent, over all of its tries."""
    row = conn.execute(_OF_STEP, (operation_id, stage, unit)).fetchone()
    return Spent(*row) if row else Spent()


def by_stage(conn: Connection, operations: Sequence[UUID]) -> dict[tuple[UUID, str], Spent]:
    """What runs have spent, by run and stage."""
    rows = conn.execute(_BY_STAGE, (list(operations),)).fetchall()
    return {(operation, str(stage)): Spent(*sums) for operation, stage, *sums in rows}


def granted(conn: Connection, operation_id: UUID) -> Budget | None:
    """The budget that a run has of its own."""
    row = conn.execute("SELECT tokens, money FROM interest_budgets WHERE operation_id = %s", (operation_id,)).fetchone()
    return None if row is None else Budget(*row)


def grant(conn: Connection, operation_id: UUID, budget: Budget) -> None:
    """Give a run a budget of its own, instead of whatever it had."""
    conn.execute(_GRANT, (operation_id, budget.tokens, budget.money))
