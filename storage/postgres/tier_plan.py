"""What a migration pass needs to see of a namespace, read from indexes in one statement, and when it is due again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.plan import Snapshot, State
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import namespaces, tier_held, tier_index, tier_passes
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_held import Patience

# What a pass reads of a row of `tier_records AS r`.
COLUMNS = """r.key, r.id, r.tier, r.version, r.pinned, r.heat_log, r.value_log, r.importance, r.created_at,
              r.last_access_at, r.moved_at, r.moved_from"""
# Records that are set aside do not move, but count; those that are moving already are as good as gone.
_NOT_MOVING = "r.key NOT IN (SELECT key FROM moving)"
_FREE = f"{tier_held.IS_FREE.format(now='%(now)s')} AND {_NOT_MOVING}"
_AGAIN = Patience().base
# Durations reach 2.7 million years, the database's calendar a tenth of that.
_CALENDARS = 20
# Spare victims beyond the overflow, for exchanges and for records that are cooling down.
_SPARE = 50

# Sizes come from what writers noted: a count of the rows would cost the more the larger a tier is.
_SNAPSHOT = f"""
WITH moving AS MATERIALIZED ({tier_passes.MOVING}), sizes AS (
    SELECT t.tier, t.capacity, (
        SELECT coalesce(sum(d.records), 0)::bigint FROM tier_depth AS d
        WHERE d.namespace_id = %(namespace)s AND d.tier = t.tier
    ) - (SELECT count(*) FROM moving WHERE source = t.tier) AS n
    FROM (VALUES (3::smallint, %(hot_capacity)s::bigint), (2, %(warm_capacity)s), (1, %(cold_capacity)s)) AS t (tier, capacity)
    WHERE t.capacity IS NOT NULL
)
SELECT 'count' AS leg, n AS key, NULL AS id, tier, 0::bigint AS version, false AS pinned, NULL::float8 AS heat_log,
       0::float8 AS value_log, 0::float8 AS importance, now() AS created_at, now() AS last_access_at,
       NULL::timestamptz AS moved_at, NULL::smallint AS moved_from
FROM sizes
UNION ALL
SELECT 'arriving', count(*), NULL, target, 0, false, NULL, 0, 0, now(), now(), NULL, NULL FROM moving GROUP BY target"""
_LEGS = (
    f"""(SELECT 'weakest', w.* FROM sizes AS s CROSS JOIN LATERAL (
    SELECT {COLUMNS} FROM tier_records AS r
    WHERE namespace_id = %(namespace)s AND tier = s.tier AND NOT pinned AND {_FREE}
    ORDER BY value_log, last_access_at, created_at, id
    LIMIT least(greatest(s.n - s.capacity, 0), %(most)s) + {_SPARE}) AS w)""",
    f"""(SELECT 'sunken', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 1 AND pinned AND {_FREE} LIMIT %(most)s)""",
)
# By the value that a policy must have for them.
_LEGS_OF = {
    "hot_before": f"""(SELECT 'expired', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 3 AND NOT pinned AND {_FREE} AND last_access_at < %(hot_before)s
 ORDER BY last_access_at, created_at, id LIMIT %(most)s + 1)""",
    "warm_before": f"""(SELECT 'expired', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 2 AND NOT pinned AND {_FREE} AND last_access_at < %(warm_before)s
 ORDER BY last_access_at, created_at, id LIMIT %(most)s + 1)""",
    "warm_heat": f"""(SELECT 'hottest', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 2 AND NOT pinned AND {_FREE} AND heat_log IS NOT NULL AND heat_log >= %(warm_heat)s
 ORDER BY heat_log DESC, id LIMIT %(most)s)""",
    "cold_heat": f"""(SELECT 'hottest', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 1 AND NOT pinned AND {_FREE} AND heat_log IS NOT NULL AND heat_log >= %(cold_heat)s
 ORDER BY heat_log DESC, id LIMIT %(most)s)""",
    "cold_before": f"""(SELECT 'evictable', {COLUMNS} FROM tier_records AS r
 WHERE namespace_id = %(namespace)s AND tier = 1 AND NOT pinned AND {_FREE}
   AND greatest(last_access_at, moved_at) < %(cold_before)s
 ORDER BY greatest(last_access_at, moved_at), created_at, id LIMIT %(most)s + 1)""",
}

_LOOK_AGAIN = f"UPDATE namespaces SET due_at = now() + {tier_held.WAIT.format(times=0)} WHERE id = ANY(%(namespaces)s)"
_DUE_NOW = "UPDATE namespaces SET due_at = now() WHERE id = ANY(%s)"
_NAMESPACES_OF = "SELECT DISTINCT namespace_id FROM tier_records WHERE key = ANY(%s) ORDER BY namespace_id"

# Two folds at once do not harm: each takes the rows that it deletes.
_FOLD = """
WITH crowded AS (
    SELECT namespace_id FROM tier_depth WHERE namespace_id = ANY(%(namespaces)s)
    GROUP BY namespace_id HAVING count(*) > %(most)s
), folded AS (
    DELETE FROM tier_depth WHERE namespace_id = ANY(ARRAY(SELECT namespace_id FROM crowded))
    RETURNING namespace_id, tier, records, bytes
)
INSERT INTO tier_depth SELECT namespace_id, tier, sum(records), sum(bytes) FROM folded GROUP BY namespace_id, tier"""
_UNFOLDED = 50

_FREE_NOW = f"{tier_held.IS_FREE.format(now='now()')} AND {_NOT_MOVING}"
# The oldest free record of each tier by its index, when the first that is set aside may be looked at again, and a while
# from now where another pass is at work, which may never come to its end. What became due meanwhile stays so.
_NEXT_DUE = f"""
WITH moving AS MATERIALIZED ({tier_passes.MOVING})
UPDATE namespaces SET due_at = CASE WHEN due_at <= now() THEN due_at ELSE (
    SELECT min(moment) FROM (
        (SELECT r.last_access_at + %(hot_ttl)s::interval AS moment FROM tier_records AS r
         WHERE r.namespace_id = %(namespace)s AND r.tier = 3 AND NOT r.pinned AND {_FREE_NOW}
         ORDER BY r.last_access_at LIMIT 1)
        UNION ALL
        (SELECT r.last_access_at + %(warm_age)s::interval FROM tier_records AS r
         WHERE r.namespace_id = %(namespace)s AND r.tier = 2 AND NOT r.pinned AND {_FREE_NOW}
         ORDER BY r.last_access_at LIMIT 1)
        UNION ALL
        (SELECT greatest(r.last_access_at, r.moved_at) + %(cold_ttl)s::interval FROM tier_records AS r
         WHERE r.namespace_id = %(namespace)s AND r.tier = 1 AND NOT r.pinned AND {_FREE_NOW}
         ORDER BY greatest(r.last_access_at, r.moved_at) LIMIT 1)
        UNION ALL
        SELECT min(held_until) FROM tier_set_aside
        WHERE namespace_id = %(namespace)s AND held_until > now() AND held_until < 'infinity'
        UNION ALL
        SELECT %(held_until)s::timestamptz
        UNION ALL
        SELECT now() + {tier_held.WAIT.format(times=0)} WHERE EXISTS (SELECT FROM moving)
    ) AS moments WHERE moment < '9999-12-31') END
WHERE id = %(namespace)s"""

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


def begin_passes(conn: Connection, namespace_ids: Sequence[int], again: timedelta = _AGAIN) -> None:
    """Hold namespaces until their plans are written: what becomes due meanwhile waits, and so is not overlooked.

    Args: again: when they are due all the same, should their passes never come to an end.
    """
    if not namespace_ids:
        return
    namespaces.hold(conn, namespace_ids)
    given = {"namespaces": list(namespace_ids)}
    conn.execute(_LOOK_AGAIN, {**given, "base": again, "cap": again})
    conn.execute(_FOLD, {**given, "most": _UNFOLDED})


@lru_cache
def _snapshot_sql(legs: tuple[str, ...]) -> str:
    """On one line, so that it is mostly short enough for the driver to keep what it made of it."""
    parts = [_SNAPSHOT, *_LEGS, *(_LEGS_OF[leg] for leg in legs)]
    return " ".join(" UNION ALL ".join(parts).split())


def snapshot(conn: Connection, namespace_id: int, policy: Policy, now: datetime) -> Snapshot:
    """The bounded part of a namespace that a pass under this policy needs.

    Args: now: aware; what ages are measured against.
    """
    values = _values(namespace_id, policy, now)
    rows = conn.execute(_snapshot_sql(tuple(leg for leg in _LEGS_OF if values[leg] is not None)), values).fetchall()
    legs: dict[str, list[State]] = {"expired": [], "weakest": [], "hottest": [], "evictable": [], "sunken": []}
    counts: dict[str, dict[Tier, int]] = {"count": {}, "arriving": {}}
    for leg, *columns in rows:
        if leg in counts:
            if columns[2] > 0:
                counts[leg][Tier.from_rank(columns[2])] = int(columns[0])
        else:
            legs[leg].append(state_of(columns))
    weakest: dict[Tier, list[State]] = {}
    for state in legs["weakest"]:
        weakest.setdefault(state.tier, []).append(state)
    truncated = any(len(legs[leg]) > policy.max_moves for leg in ("expired", "evictable"))
    return Snapshot(
        counts=counts["count"],
        arriving=counts["arriving"],
        expired=legs["expired"],
        weakest=weakest,
        hottest=legs["hottest"],
        evictable=legs["evictable"],
        sunken=legs["sunken"],
        truncated=truncated,
    )


def finish_pass(
    conn: Connection,
    namespace_id: int,
    policy: Policy,
    *,
    moved: int,
    held_until: datetime | None = None,
    again: timedelta = _AGAIN,
) -> None:
    """Note when the namespace is due again: at once after moves, which may push others, else when the next one is old.

    Args: held_until: when a move that a cool-down held back may be made; again: as for `begin_passes`, for other passes that
    are under way.
    """
    if moved:
        due_at_once(conn, [namespace_id])
        return
    values = {
        "hot_ttl": _within_reach(policy.hot_ttl),
        "warm_age": _within_reach(policy.warm_age),
        "cold_ttl": _within_reach(policy.cold_ttl),
        "held_until": held_until,
        "base": again,
        "cap": again,
    }
    conn.execute(_NEXT_DUE, {"namespace": namespace_id, **values})


def due_at_once(conn: Connection, namespace_ids: Sequence[int]) -> None:
    """Have namespaces whose passes moved something be due again. The caller holds them where they are several."""
    conn.execute(_DUE_NOW, (list(namespace_ids),))


def mark_due_of(conn: Connection, keys: Iterable[int]) -> None:
    """Ask for a pass over the namespaces of records that a pass of none of them has moved."""
    rows = conn.execute(_NAMESPACES_OF, (list(keys),)).fetchall()
    tier_index.mark_due(conn, [int(row[0]) for row in rows])


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


def _within_reach(age: timedelta | None) -> timedelta | None:
    """An age that the calendar has room for beside any moment that a record may have; nothing grows older than others."""
    return age if age is not None and age < timedelta.max / _CALENDARS else None


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
