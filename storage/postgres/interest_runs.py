"""Runs over sessions as people watch them: by stage what is done and what is left, what failed and why, time and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.interest.budget import Budget, Spent
from isotherm.pipeline.stages import TEND
from isotherm.storage.postgres import interest_usage
from isotherm.storage.postgres.interest_steps import ORDER
from isotherm.storage.postgres.pool import Connection

KINDS = ("session.ingest", "interest.tend")
STAGES = (*ORDER, TEND)
_UNITS_MAX = 200

_RUNS = """
SELECT o.id, o.kind, o.state, b.tenant, b.agent, n.session, o.error, o.created_at, o.started_at, o.finished_at, x.tokens,
       x.money
FROM operations AS o JOIN banks AS b ON b.id = o.bank_id LEFT JOIN namespaces AS n ON n.id = o.namespace_id
LEFT JOIN interest_budgets AS x ON x.operation_id = o.id
WHERE o.kind = ANY(%(kinds)s) AND (%(id)s::uuid IS NULL OR o.id = %(id)s)
  AND (%(agent)s::text IS NULL OR b.agent = %(agent)s)
  AND (b.tenant IS NOT DISTINCT FROM %(tenant)s::text OR (%(agent)s::text IS NULL AND %(tenant)s::text IS NULL))
ORDER BY o.id DESC LIMIT %(limit)s"""

# A step's time ends when it does; of an open one it goes on.
_PROGRESS = """
SELECT s.operation_id, s.stage, count(*)::int, (count(*) FILTER (WHERE s.state = 'done'))::int,
       (count(*) FILTER (WHERE s.state IN ('failed', 'dead', 'cancelled')))::int,
       (count(*) FILTER (WHERE s.state = 'running'))::int, sum(s.attempts)::int,
       coalesce(extract(epoch FROM max(coalesce(s.finished_at, now())) FILTER (WHERE s.started_at IS NOT NULL)
                                   - min(s.started_at)), 0)::float,
       coalesce(jsonb_agg(s.receipt) FILTER (WHERE s.receipt IS NOT NULL), '[]')
FROM operation_steps AS s WHERE s.operation_id = ANY(%(ids)s) AND s.stage = ANY(%(stages)s)
GROUP BY s.operation_id, s.stage"""

_UNITS = """
SELECT stage, unit, state, receipt ->> 'reason', last_error, attempts FROM operation_steps
WHERE operation_id = %(id)s AND stage = ANY(%(stages)s) AND state IN ('failed', 'dead', 'cancelled')
ORDER BY id LIMIT %(limit)s"""


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage of a run.

    Args: units: steps it has; done, failed, running: of these; attempts: of all of them; seconds: from the beginning of
        the first to the end of the last; found: counts of its receipts, added up; spent: on models, also after the steps
        themselves were cleared away.
    """

    stage: str
    units: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    attempts: int = 0
    seconds: float = 0.0
    found: dict[str, int] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True, slots=True)
class Run:
    """One run over a session, or one tending of a bank. Args: budget: of its own, None for the one of the settings."""

    id: UUID
    kind: str
    state: str
    tenant: str | None
    agent: str
    session: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    budget: Budget | None = None
    stages: tuple[StageRow, ...] = ()

    @property
    def spent(self) -> Spent:
        """On models, in all stages."""
        return sum((one.spent for one in self.stages), Spent())


@dataclass(frozen=True, slots=True)
class FailedUnit:
    """A unit of a run that ended without what it was for. Args: reason: a constant name, where one is known."""

    stage: str
    unit: str
    state: str
    reason: str | None
    error: str | None
    attempts: int


def listed(conn: Connection, *, tenant: str | None = None, agent: str | None = None, limit: int = 20) -> list[Run]:
    """The newest runs, newest first. Args: agent: only its; the tenant counts only with one."""
    return _read(conn, {"id": None, "agent": agent, "tenant": tenant, "limit": limit})


def one(conn: Connection, operation_id: UUID) -> Run:
    """Raises: RejectedError when there is no such run."""
    found = _read(conn, {"id": operation_id, "agent": None, "tenant": None, "limit": 1})
    if not found:
        raise RejectedError(f"no run {operation_id}")
    return found[0]


def failed_units(conn: Connection, operation_id: UUID) -> list[FailedUnit]:
    """What of a run failed, in the order in which it was written, at most 200."""
    values = {"id": operation_id, "stages": list(STAGES), "limit": _UNITS_MAX}
    return [FailedUnit(*row) for row in conn.execute(_UNITS, values).fetchall()]


def _read(conn: Connection, values: dict[str, Any]) -> list[Run]:
    rows = conn.execute(_RUNS, {**values, "kinds": list(KINDS)}).fetchall()
    ids = [row[0] for row in rows]
    stages = _stages(conn, ids)
    return [_run(row, stages.get(row[0], {})) for row in rows]


def _run(row: Sequence[Any], stages: dict[str, StageRow]) -> Run:
    *named, tokens, money = row
    budget = None if tokens is None and money is None else Budget(tokens, money)
    return replace(Run(*named), budget=budget, stages=tuple(stages[name] for name in STAGES if name in stages))


def _stages(conn: Connection, ids: Sequence[UUID]) -> dict[UUID, dict[str, StageRow]]:
    spent = interest_usage.by_stage(conn, ids)
    found: dict[UUID, dict[str, StageRow]] = {}
    for run, stage, *counts, receipts in conn.execute(_PROGRESS, {"ids": list(ids), "stages": list(STAGES)}).fetchall():
        row = replace(StageRow(stage, *counts), found=_summed(receipts), spent=spent.pop((run, stage), Spent()))
        found.setdefault(run, {})[stage] = row
    for (run, stage), cost in spent.items():
        found.setdefault(run, {})[stage] = StageRow(stage, spent=cost)
    return found


def _summed(receipts: Sequence[dict[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, n in ((name, n) for receipt in receipts for name, n in receipt.items()):
        if isinstance(n, int) and not isinstance(n, bool):
            total[name] = total.get(name, 0) + n
    return total
