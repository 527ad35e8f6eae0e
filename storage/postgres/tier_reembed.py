"""Records that want a vector of the present model: theirs is of another one, or there was none when they came."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from isotherm.pipeline.stages import TIER_EMBED
from isotherm.storage.postgres import operations, outbox, steps
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.postgres.tier_write import Patience

# Records of one step: a model reads them in a second or a few.
_TOGETHER = 64
# Records looked through at a time for those without a vector, and how soon all are looked through once more: a program
# without a model may have written some meanwhile.
_LOOKED = 5_000
_REST = timedelta(days=1)

# Two probes of an index. The vector goes at once: nothing may compare it, and whatever happens to its record meanwhile,
# the next look does not meet it again.
_TAKE_STALE = """
WITH stale AS (
    (SELECT record_key FROM tier_vectors WHERE model < %(model)s ORDER BY model LIMIT %(limit)s)
    UNION ALL
    (SELECT record_key FROM tier_vectors WHERE model > %(model)s ORDER BY model LIMIT %(limit)s)
    LIMIT %(limit)s
), taken AS (
    SELECT r.key FROM tier_records AS r JOIN stale AS s ON s.record_key = r.key
    ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r SKIP LOCKED
), gone AS (
    DELETE FROM tier_vectors AS v USING taken AS t WHERE v.record_key = t.key AND v.model <> %(model)s
)
UPDATE tier_records AS r SET vector_state = 'pending' FROM taken AS t
WHERE r.key = t.key AND r.vector_state IN ('done', 'again') RETURNING r.bank_id, r.namespace_id, r.key"""

_BEGIN = "INSERT INTO tier_embedding (model) VALUES (%(model)s) ON CONFLICT DO NOTHING"
_FORGET_OTHERS = "DELETE FROM tier_embedding WHERE model <> %(model)s"
_RESTART = "UPDATE tier_embedding SET looked_to = 0, finished_at = NULL WHERE model = %(model)s AND finished_at < now() - %(rest)s"
_PLACE = """
SELECT looked_to FROM tier_embedding WHERE model = %(model)s AND finished_at IS NULL FOR UPDATE SKIP LOCKED"""
_PAGE = """
SELECT key, vector_state = 'none' FROM tier_records WHERE key > %(after)s ORDER BY key LIMIT %(looked)s"""
_TAKE_BARE = """
WITH taken AS (
    SELECT r.key FROM tier_records AS r WHERE r.key = ANY(%(keys)s) AND r.vector_state = 'none'
    ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE tier_records AS r SET vector_state = 'pending' FROM taken AS t
WHERE r.key = t.key RETURNING r.bank_id, r.namespace_id, r.key"""
_LOOKED_TO = """
UPDATE tier_embedding SET looked_to = %(to)s, finished_at = CASE WHEN %(over)s THEN now() END WHERE model = %(model)s"""

Taken = dict[tuple[int, int], list[int]]


def take(conn: Connection, model: str, limit: int) -> Taken:
    """Have records wait for a vector of this model, at most so many whose vector is of another one or that never got one.

    Returns: record keys by bank and namespace.
    """
    rows = conn.execute(_TAKE_STALE, {"model": model, "limit": limit}).fetchall()
    if len(rows) < limit:
        rows += _take_bare(conn, model, limit - len(rows))
    found: Taken = {}
    for bank, namespace, key in rows:
        found.setdefault((int(bank), int(namespace)), []).append(int(key))
    return {place: sorted(keys) for place, keys in sorted(found.items())}


def _take_bare(conn: Connection, model: str, limit: int) -> list[tuple[int, int, int]]:
    """The next records without a vector, in the order of their keys; nothing is read while all were looked through."""
    values = {"model": model, "rest": _REST}
    conn.execute(_BEGIN, values)
    conn.execute(_FORGET_OTHERS, values)
    conn.execute(_RESTART, values)
    place = conn.execute(_PLACE, values).fetchone()
    if place is None:
        return []
    page = conn.execute(_PAGE, {"after": place[0], "looked": _LOOKED}).fetchall()
    bare = [int(key) for key, is_bare in page if is_bare]
    to = bare[limit - 1] if len(bare) >= limit else page[-1][0] if page else place[0]
    over = len(page) < _LOOKED and len(bare) < limit
    conn.execute(_LOOKED_TO, {"model": model, "to": to, "over": over})
    return conn.execute(_TAKE_BARE, {"keys": bare[:limit]}).fetchall()


def begin(conn: Connection, new: NewOperation, keys: Sequence[int], patience: Patience) -> list[Message]:
    """Write an operation that gives records of a namespace their vectors, and its messages."""
    operations.create(conn, new)
    parts = [list(keys[at : at + _TOGETHER]) for at in range(0, len(keys), _TOGETHER)]
    wanted = [NewStep(TIER_EMBED, {"keys": part}, str(number)) for number, part in enumerate(parts)]
    ids = steps.add(conn, new.id, wanted, retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    return [
        outbox.announce(conn, TIER_EMBED, step_id, operation_id=new.id, trace_id=new.trace_id, delay=patience.grace)
        for step_id in ids
    ]
