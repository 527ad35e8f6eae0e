"""What a migration pass needs to see of a namespace, read from indexes in one statement, and when it is due again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.plan import Snapshot, State
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import tier_held
from isotherm.storage.postgres.pool import Connection

# What a pass reads of a row of `tier_records AS r`.
COLUMNS = """r.key, r.id, r.tier, r.version, r.pinned, r.heat_log, r.value_log, r.importance, r.created_at,
              r.last_access_at, r.moved_at, r.moved_from"""
# Records that are set aside do not move, but count.
_FREE = tier_held.IS_FREE.format(now="%(now)s")
# Spare victims beyond the overflow, for exchanges and for records that are cooling down.
_SPARE = 50

# Sizes come from what writers noted: a count of the rows would cost the more the larger a tier is.
_SNAPSHOT = f"""
WITH sizes AS (
    SELECT t.tier, t.capacity, (
        SELECT coalesce(sum(d.records), 0)::bigint FROM tier_depth AS d
        WHERE d.namespace_id = %(namespace)s AND d.tier = t.tier) AS n
    FROM (VALUES (3::smallint, %(hot_capacity)s::bigint), (2, %(warm_capacity)s), (1, %(cold_capacity)s)) AS t (tier, capacity)
    WHERE t.capacity IS NOT NULL
)
SELECT 'count' AS leg, n AS key, NULL AS id, tier, 0::bigint AS version, false AS pinned, NULL::float8 AS heat_log,
       0::float8 AS value_log, 0::float8 AS importance, now() AS created_at, now() AS last_access_at,
       NULL::timestamptz AS moved_at, NULL::smallint AS moved_from
FROM sizes
UNION ALL
(SELECT 'expired', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 3 AND NOT pinned AND {_FREE} AND last_access_at < %(hot_before)s
 ORDER BY last_access_at, created_at, id LIMIT %(most)s + 1)
UNION ALL
(SELECT 'expired', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 2 AND NOT pinned AND {_FREE} AND last_access_at < %(warm_before)s
 ORDER BY last_access_at, created_at, id LIMIT %(most)s + 1)
UNION ALL
(SELECT 'weakest', w.* FROM sizes AS s CROSS JOIN LATERAL (
    SELECT {COLUMNS} FROM tier_records AS r
    WHERE namespace_id = %(namespace)s AND tier = s.tier AND NOT pinned AND {_FREE}
    ORDER BY value_log, last_access_at, created_at, id
    LIMIT least(greatest(s.n - s.capacity, 0), %(most)s) + {_SPARE}) AS w)
UNION ALL
(SELECT 'hottest', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 2 AND NOT pinned AND {_FREE} AND heat_log IS NOT NULL AND heat_log >= %(warm_heat)s
 ORDER BY heat_log DESC, id LIMIT %(most)s)
UNION ALL
(SELECT 'hottest', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 1 AND NOT pinned AND {_FREE} AND heat_log IS NOT NULL AND heat_log >= %(cold_heat)s
 ORDER BY heat_log DESC, id LIMIT %(most)s)
UNION ALL
(SELECT 'evictable', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 1 AND NOT pinned AND {_FREE}
   AND greatest(last_access_at, moved_at) < %(cold_before)s
 ORDER BY greatest(last_access_at, moved_at), created_at, id LIMIT %(most)s + 1)
UNION ALL
(SELECT 'sunken', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 1 AND pinned AND {_FREE} LIMIT %(most)s)"""

_LOCK = "SELECT 1 FROM namespaces WHERE id = %s FOR NO KEY UPDATE"
_NOT_DUE = "UPDATE namespaces SET due_at = NULL WHERE id = %s"

# Two folds at once do not harm: each takes the rows that it deletes.
_FOLD = """
WITH folded AS (
    DELETE FROM tier_depth WHERE namespace_id = %(namespace)s
    AND (SELECT count(*) FROM tier_depth WHERE namespace_id = %(namespace)s) > %(most)s RETURNING tier, records, bytes
)
INSERT INTO tier_depth SELECT %(namespace)s, tier, sum(records), sum(bytes) FROM folded GROUP BY tier"""
_UNFOLDED = 50

# The oldest free record of each tier by its index, and when the first that is set aside may be looked at again.
_NEXT_DUE = f"""
UPDATE namespaces SET due_at = least(due_at, (
    SELECT min(moment) FROM (
        (SELECT r.last_access_at + %(hot_ttl)s::interval AS moment FROM tier_records AS r
         WHERE r.namespace_id = %(namespace)s AND r.tier = 3 AND NOT r.pinned AND {tier_held.IS_FREE.format(now="now()")}
         ORDER BY r.last_access_at LIMIT 1)
        UNION ALL
        (SELECT r.last_access_at + %(warm_age)s::interval FROM tier_records AS r
         WHERE r.namespace_id = %(namespace)s AND r.tier = 2 AND NOT r.pinned AND {tier_held.IS_FREE.format(now="now()")}
         ORDER BY r.last_access_at LIMIT 1)
        UNION ALL
        (SELECT greatest(r.last_access_at, r.moved_at) + %(cold_ttl)s::interval FROM tier_records AS r
         WHERE r.namespace_id = %(namespace)s AND r.tier = 1 AND NOT r.pinned AND {tier_held.IS_FREE.format(now="now()")}
         ORDER BY greatest(r.last_access_at, r.moved_at) LIMIT 1)
        UNION ALL
        SELECT min(held_until) FROM tier_set_aside
        WHERE namespace_id = %(namespace)s AND held_until > now() AND held_until < 'infinity'
        UNION ALL
        SELECT %(held_until)s::timestamptz
    ) AS moments))
WHERE id = %(namespace)s"""

_DUE = "SELECT id FROM namespaces WHERE due_at <= now() ORDER BY due_at LIMIT %s"

# Asked again and again by who watches: no record is counted, and of those that are not pinned the oldest comes first.
_DEPTH = """
SELECT d.namespace_id, d.tier, d.records, d.bytes, least((
        SELECT r.last_access_at FROM tier_records AS r
        WHERE r.namespace_id = d.namespace_id AND r.tier = d.tier AND NOT r.pinned ORDER BY r.last_access_at LIMIT 1
    ), (
        SELECT min(r.last_access_at) FROM tier_records AS r
        WHERE r.namespace_id = d.namespace_id AND r.tier = d.tier AND r.pinned))
FROM (
    SELECT d.namespace_id, d.tier, sum(d.records)::bigint AS records, sum(d.bytes)::bigint AS bytes
    FROM tier_depth AS d JOIN namespaces AS n ON n.id = d.namespace_id
    WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND (%(agent)s::text IS NULL OR n.agent = %(agent)s)
    GROUP BY d.namespace_id, d.tier HAVING sum(d.records) > 0) AS d"""


def begin_pass(conn: Connection, namespace_id: int) -> None:
    """Hold the namespace until the plan is written: what becomes due meanwhile waits, and so is not overlooked."""
    conn.execute(_LOCK, (namespace_id,))
    conn.execute(_NOT_DUE, (namespace_id,))
    conn.execute(_FOLD, {"namespace": namespace_id, "most": _UNFOLDED})


def snapshot(conn: Connection, namespace_id: int, policy: Policy, now: datetime) -> Snapshot:
    """The bounded part of a namespace that a pass under this policy needs.

    Args: now: aware; what ages are measured against.
    """
    rows = conn.execute(_SNAPSHOT, _values(namespace_id, policy, now)).fetchall()
    legs: dict[str, list[State]] = {"expired": [], "weakest": [], "hottest": [], "evictable": [], "sunken": []}
    counts: dict[Tier, int] = {}
    for leg, *columns in rows:
        if leg == "count":
            counts[Tier.from_rank(columns[2])] = int(columns[0])
        else:
            legs[leg].append(state_of(columns))
    weakest: dict[Tier, list[State]] = {}
    for state in legs["weakest"]:
        weakest.setdefault(state.tier, []).append(state)
    truncated = any(len(legs[leg]) > policy.max_moves for leg in ("expired", "evictable"))
    return Snapshot(
        counts=counts,
        expired=legs["expired"],
        weakest=weakest,
        hottest=legs["hottest"],
        evictable=legs["evictable"],
        sunken=legs["sunken"],
        truncated=truncated,
    )


def finish_pass(
    conn: Connection, namespace_id: int, policy: Policy, *, moved: int, held_until: datetime | None = None
) -> None:
    """Note when the namespace is due again: at once after moves, which may push others, else when the next one is old.

    Args: held_until: when a move that a cool-down held back may be made.
    """
    if moved:
        conn.execute("UPDATE namespaces SET due_at = now() WHERE id = %s", (namespace_id,))
        return
    ages = {"hot_ttl": policy.hot_ttl, "warm_age": policy.warm_age, "cold_ttl": policy.cold_ttl}
    conn.execute(_NEXT_DUE, {"namespace": namespace_id, "held_until": held_until, **ages})


def due(conn: Connection, limit: int = 100) -> list[int]:
    """Namespaces whose next pass is due, the longest waiting first."""
    return [int(row[0]) for row in conn.execute(_DUE, (limit,)).fetchall()]


def depth(conn: Connection, *, tenant: str | None, agent: str | None) -> list[tuple[int, Tier, int, int, datetime]]:
    """Per namespace and tier: (namespace id, tier, records, bytes of content, oldest last access)."""
    rows = conn.execute(_DEPTH, {"tenant": tenant, "agent": agent}).fetchall()
    return [(int(ns), Tier.from_rank(tier), int(n), int(size), oldest) for ns, tier, n, size, oldest in rows]


def _values(namespace_id: int, policy: Policy, now: datetime) -> dict[str, Any]:
    return {
        "namespace": namespace_id,
        "now": now,
        "most": policy.max_moves,
        "hot_capacity": policy.hot_capacity,
        "warm_capacity": policy.warm_capacity,
        "cold_capacity": policy.cold_capacity,
        "hot_before": _before(now, policy.hot_ttl),
        "warm_before": _before(now, policy.warm_age),
        "cold_before": _before(now, policy.cold_ttl),
        "warm_heat": _heat(policy.promotion_heat(Tier.WARM), now),
        "cold_heat": _heat(policy.promotion_heat(Tier.COLD), now),
    }


def _before(now: datetime, age: timedelta | None) -> datetime | None:
    try:
        return None if age is None else now - age
    except OverflowError:
        return None  # older than the calendar: nothing is


def _heat(needed: int | None, now: datetime) -> float | None:
    return None if needed is None else heat.threshold_log(needed, now)


def state_of(columns: Iterable[Any]) -> State:
    """A record as a pass sees it, from `COLUMNS`."""
    key, record_id, tier, version, pinned, heat_log, value_log, importance, created, accessed, moved_at, source = (
        columns
    )
    return State(
        key=int(key),
        id=record_id,
        tier=Tier.from_rank(tier),
        version=int(version),
        pinned=pinned,
        heat_log=heat_log,
        value_log=value_log,
        importance=importance,
        created_at=created,
        last_access_at=accessed,
        moved_at=moved_at,
        moved_from=None if source is None else Tier.from_rank(source),
    )
