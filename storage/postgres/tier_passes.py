"""What other passes are to the next one: moves under way, summaries that were not used, and passes that failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.stages import PLAN, STAGES, SUMMARIZE
from isotherm.storage.postgres import steps, tier_held
from isotherm.storage.postgres.outbox import STEP, Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_held import Patience

# A pass is never further back than this when its answers are of use, and so many failures are as good as more.
_ANSWERS_OF, _FAILURES = 200, 20

# Records that an open step moves, while they are as it was planned for them: not planned again, since a model may be at work
# on them. A target of 0 is eviction.
_MOVING = """
SELECT DISTINCT ON (r.key) r.key, r.tier AS source, (m.move ->> 3)::smallint AS target
FROM operations AS o JOIN operation_steps AS s ON s.operation_id = o.id
CROSS JOIN LATERAL jsonb_array_elements(s.input -> 'moves') AS m (move)
JOIN tier_records AS r ON r.key = (m.move ->> 0)::bigint AND r.version = (m.move ->> 1)::bigint
WHERE o.finished_at IS NULL AND o.kind IN ('tier.reconcile', 'tier.quota', 'tier.restore')
  AND s.stage IN ('tier.migrate', 'tier.restore', 'cold.archive') AND s.state IN ('pending', 'running') AND {which}
ORDER BY r.key"""
# Passes for a quota are of no namespace.
MOVING = _MOVING.format(
    which="(o.namespace_id = %(namespace)s OR o.namespace_id IS NULL) AND r.namespace_id = %(namespace)s"
)
_MOVING_OF = _MOVING.format(which="r.key = ANY(%(keys)s)")

# Answers of passes that came to their end were used. A summary is of the version that its move was planned for.
_LEFT = f"""
SELECT s.answer -> 'summaries', s.input -> 'moves' FROM (
    SELECT id, state FROM operations WHERE namespace_id = %(namespace)s AND kind = 'tier.reconcile'
    ORDER BY id DESC LIMIT {_ANSWERS_OF}
) AS o JOIN operation_steps AS s ON s.operation_id = o.id
WHERE o.state <> 'done' AND o.id <> %(operation)s AND s.stage = %(stage)s AND s.answer IS NOT NULL
  AND s.answer -> 'summaries' ?| %(names)s
ORDER BY s.id"""

# A pass that waits was asked for by a tick, or under a policy of its caller's.
_ADOPT = """
UPDATE operation_steps SET input = %(input)s, input_hash = %(hash)s
WHERE operation_id = %(operation)s AND stage = 'tier.plan' AND state = 'pending'
  AND (NOT input ? 'asked' OR input -> 'policy' = %(input)s::jsonb -> 'policy')"""
_WAITS = """
SELECT 1 FROM operation_steps WHERE operation_id = %s AND stage = 'tier.plan' AND state = 'pending'"""

# Counted are the failures since the last pass that did not fail as a whole. One that is still to be planned will do.
_DUE = f"""
SELECT n.id FROM namespaces AS n CROSS JOIN LATERAL (
    SELECT count(*) AS times, max(p.finished_at) AS last FROM (
        SELECT o.finished_at, bool_and(o.state IN ('failed', 'dead')) OVER (ORDER BY o.id DESC) AS failed FROM (
            SELECT id, state, finished_at FROM operations WHERE namespace_id = n.id AND kind = 'tier.reconcile'
            ORDER BY id DESC LIMIT {_FAILURES}
        ) AS o
    ) AS p WHERE p.failed
) AS f
WHERE n.due_at <= now() AND NOT EXISTS (
    SELECT FROM operations AS o JOIN operation_steps AS s ON s.operation_id = o.id
    WHERE o.namespace_id = n.id AND o.kind = 'tier.reconcile' AND o.finished_at IS NULL
      AND s.stage = 'tier.plan' AND s.state IN ('pending', 'running')
) AND (f.times = 0 OR f.last + {tier_held.WAIT.format(times="f.times - 1")} <= now())
ORDER BY n.due_at LIMIT %(limit)s"""

# As operations.create, steps.add and outbox.announce write it, for many namespaces at once.
_ASK = """
WITH given AS (
    SELECT id, trace, input::jsonb, hash
    FROM unnest(%(ids)s::uuid[], %(traces)s::uuid[], %(inputs)s::text[], %(hashes)s::bytea[])
        AS g (id, trace, input, hash)
), op AS (
    INSERT INTO operations (id, kind, bank_id, namespace_id, trace_id)
    SELECT g.id, 'tier.reconcile', n.bank_id, n.id, g.trace
    FROM given AS g JOIN namespaces AS n ON n.id = (g.input ->> 'namespace_id')::bigint ORDER BY n.id
    ON CONFLICT DO NOTHING RETURNING id, trace_id
), step AS (
    INSERT INTO operation_steps (operation_id, stage, queue, input, input_hash, retry_until, nudge_at)
    SELECT op.id, %(stage)s, %(queue)s, g.input, g.hash, now() + %(retry_for)s, now() + %(nudge)s
    FROM op JOIN given AS g ON g.id = op.id ORDER BY op.id
    RETURNING id, operation_id
)
INSERT INTO outbox (operation_id, step_id, builder, payload, not_before)
SELECT op.id, step.id, 'step',
       jsonb_build_object('stage', %(stage)s::text, 'job', jsonb_build_object(
           'step_id', step.id, 'operation_id', op.id, 'trace_id', op.trace_id)),
       now() + %(grace)s
FROM step JOIN op ON op.id = step.operation_id ORDER BY step.id
RETURNING id, payload"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A pass to be. Args: plan: the input of its first step, which names the namespace."""

    operation_id: UUID
    trace_id: UUID
    plan: dict[str, Any]


def ask(
    conn: Connection, asked: Sequence[Asked], *, retry_for: timedelta, nudge_after: timedelta, grace: timedelta
) -> list[Message]:
    """Write passes with their messages, which the caller publishes after the commit.

    Left out are namespaces that are gone, and those that have a pass which waits. Args: as for `steps.add`; grace: how long
    the relay leaves the messages to the caller.
    """
    values = {
        "ids": [each.operation_id for each in asked],
        "traces": [each.trace_id for each in asked],
        **steps.input_columns([each.plan for each in asked]),
        "stage": PLAN,
        "queue": STAGES[PLAN].value,
        "retry_for": retry_for,
        "nudge": nudge_after,
        "grace": grace,
    }
    return [Message(int(i), STEP, payload) for i, payload in conn.execute(_ASK, values).fetchall()]


def adopt(conn: Connection, operation_id: UUID, plan: dict[str, Any]) -> bool:
    """Have a pass that waits go by the policy of another caller; False when it has begun meanwhile.

    Args: plan: the input of its first step, which says that the policy was asked for.
    Raises: TransientError when it waits under another policy that somebody asked for.
    """
    values = {"operation": operation_id, "input": Jsonb(plan), "hash": steps.input_hash(plan)}
    if conn.execute(_ADOPT, values).rowcount:
        return True
    if conn.execute(_WAITS, (operation_id,)).fetchone():
        raise TransientError(
            f"a pass under another policy waits, operation {operation_id}: ask again once it has begun"
        )
    return False


def due(conn: Connection, limit: int = 100, patience: Patience = Patience()) -> list[int]:  # noqa: B008 - frozen
    """Namespaces whose next pass is due, the longest waiting first.

    Args: patience: how long one is left alone whose last pass failed before it moved anything.
    """
    values = {"limit": limit, "base": patience.base, "cap": patience.cap}
    return [int(row[0]) for row in conn.execute(_DUE, values).fetchall()]


def moving(conn: Connection, keys: Iterable[int]) -> frozenset[int]:
    """Those of the records that an open step is to move."""
    return frozenset(int(row[0]) for row in conn.execute(_MOVING_OF, {"keys": list(keys)}).fetchall())


def moving_in(conn: Connection, namespace_id: int) -> frozenset[int]:
    """Records of a namespace that an open step is to move."""
    return frozenset(int(row[0]) for row in conn.execute(MOVING, {"namespace": namespace_id}).fetchall())


def summaries_left(
    conn: Connection, namespace_id: int, operation_id: UUID, versions: Mapping[int, int]
) -> dict[str, str]:
    """Summaries that earlier passes over a namespace were given and did not use, by record key as text.

    Args: operation_id: the pass that asks; versions: the records wanted, as they are now.
    """
    wanted = {str(key): version for key, version in versions.items()}
    values = {"namespace": namespace_id, "operation": operation_id, "stage": SUMMARIZE, "names": list(wanted)}
    found: dict[str, str] = {}
    for summaries, moves in conn.execute(_LEFT, values).fetchall():
        same = {str(key) for key, version, *_ in moves if wanted.get(str(key)) == version}
        found |= {name: summary for name, summary in summaries.items() if name in same}
    return found
