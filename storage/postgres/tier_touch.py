"""Accesses counted into rows, a batch at a time, each batch once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from isotherm.pipeline.tier import heat
from isotherm.storage.postgres import tier_index
from isotherm.storage.postgres.pool import Connection

_ONCE = "INSERT INTO touch_batches (id) VALUES (%s) ON CONFLICT DO NOTHING"

# The formula of isotherm.pipeline.tier.heat, with the deposit of each record's accesses given.
_TOUCH = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(counts)s::bigint[], %(deposits)s::float8[]) AS g (key, n, deposit)
), mine AS (
    SELECT r.key, g.n, g.deposit FROM tier_records AS r JOIN given AS g ON g.key = r.key
    ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r
)
UPDATE tier_records AS r SET
    access_count = r.access_count + m.n,
    last_access_at = greatest(r.last_access_at, %(at)s),
    heat_log = CASE WHEN r.heat_log IS NULL THEN m.deposit
        ELSE greatest(r.heat_log, m.deposit) + ln(1 + exp(-least(abs(r.heat_log - m.deposit), 700))) END,
    value_log = greatest(r.value_log, m.deposit) + ln(1 + exp(-least(abs(r.value_log - m.deposit), 700)))
FROM mine AS m WHERE r.key = m.key
RETURNING r.namespace_id, r.tier, r.heat_log"""


def apply(
    conn: Connection, batch_id: str, counts: Mapping[int, int], at: datetime, *, promote_access: int | None
) -> int:
    """Count accesses of records; returns how many rows changed, 0 when the batch was applied before.

    Args: counts: accesses by row key; at: when they count as made (aware); promote_access: heat from which a record may
    be lifted, so that its namespace is looked at.
    """
    if conn.execute(_ONCE, (batch_id,)).rowcount == 0:
        return 0
    keys = sorted(key for key, n in counts.items() if n > 0)
    values = {
        "keys": keys,
        "counts": [counts[key] for key in keys],
        "deposits": [heat.add(None, at, counts[key]) for key in keys],
        "at": at,
    }
    rows = conn.execute(_TOUCH, values).fetchall()
    if promote_access is not None:
        enough = heat.threshold_log(promote_access, at)
        tier_index.mark_due(conn, sorted({int(ns) for ns, tier, h in rows if tier < 3 and h >= enough}))  # noqa: PLR2004 - 3 is hot
    return len(rows)
