"""Steps whose work was done in one go are ended in one go, each in its own operation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from isotherm.storage.postgres import arrays, steps
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.steps import DERIVED, ClaimedStep

# In one order, so that two who end steps of the same operations wait for each other instead of deadlocking.
_LOCK = "SELECT 1 FROM operations WHERE id = ANY(%(operations)s) ORDER BY id FOR NO KEY UPDATE"

_END = f"""
WITH given AS (
    SELECT id, token, receipt::jsonb, is_result
    FROM unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(receipts)s::text[], %(results)s::boolean[])
        AS g (id, token, receipt, is_result)
), ended AS (
    UPDATE operation_steps AS s
    SET state = 'done', receipt = g.receipt, lease_until = NULL, finished_at = now()
    FROM given AS g WHERE s.id = g.id AND s.state = 'running' AND s.token = g.token
    RETURNING s.id, s.operation_id, CASE WHEN g.is_result THEN g.receipt END AS result
), states AS (
    SELECT s.operation_id, array_agg(DISTINCT CASE WHEN e.id IS NULL THEN s.state ELSE 'done' END) AS found,
           (array_agg(e.result) FILTER (WHERE e.result IS NOT NULL))[1] AS result
    FROM operation_steps AS s LEFT JOIN ended AS e ON e.id = s.id
    WHERE s.operation_id IN (SELECT operation_id FROM ended) GROUP BY s.operation_id
), derived AS (
    SELECT operation_id, result, {DERIVED} AS state FROM states
), closed AS (
    UPDATE operations AS o
    SET state = d.state, finished_at = CASE WHEN d.state = 'running' THEN NULL ELSE now() END,
        started_at = coalesce(o.started_at, now()),
        result = coalesce(d.result, o.result)
    FROM derived AS d WHERE o.id = d.operation_id
)
SELECT e.id, d.state FROM ended AS e JOIN derived AS d ON d.operation_id = e.operation_id"""


class Done(NamedTuple):
    """How a step ends. Args: receipt: ids and counts; is_result: it is the result of its operation too."""

    step: ClaimedStep
    receipt: dict[str, Any]
    is_result: bool


def settle(conn: Connection, done: Sequence[Done]) -> list[ClaimedStep]:
    """End steps in the transaction of their common effect.

    Returns: those that somebody else took meanwhile; they are theirs to end.
    """
    conn.execute(_LOCK, {"operations": [each.step.operation_id for each in done]})
    values = {
        "ids": [each.step.id for each in done],
        "tokens": [each.step.token for each in done],
        "receipts": arrays.texts(json.dumps(each.receipt) for each in done),
        "results": [each.is_result for each in done],
    }
    states = {int(step_id): state for step_id, state in conn.execute(_END, values)}
    for step, receipt, _ in done:
        if step.id in states:
            step.operation_state, step.receipt = states[step.id], receipt
            steps.wake(conn, step)
        else:
            step.receipt = {"state": "lost"}
    return [each.step for each in done if each.step.id not in states]
