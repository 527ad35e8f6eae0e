"""Records that a pass could not move: set aside for a time that doubles, so that one of them never holds up the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import arrays
from isotherm.storage.postgres.pool import Connection

# A stored body that is gone or damaged does not heal by waiting: passes leave its record alone until it is restored.
MISSING_BODY = "the stored body is missing"
DAMAGED_BODY = "the stored body does not match its hash"
QUARANTINED = frozenset({MISSING_BODY, DAMAGED_BODY})

# What a pass reads of a namespace leaves these out; whatever changes a record sets it free.
IS_FREE = """NOT EXISTS (
    SELECT 1 FROM tier_set_aside AS h WHERE h.record_key = r.key AND h.version = r.version AND h.held_until > {now})"""

# How long after so many earlier failures; never more than a century, since a moment must be one.
WAIT = """make_interval(secs => least(extract(epoch FROM %(base)s::interval) * power(2, least({times}, 20)),
                                  extract(epoch FROM %(cap)s::interval), 3e9)::float8)"""

_HOLD = f"""
INSERT INTO tier_set_aside AS h (record_key, namespace_id, version, reason, held_until)
SELECT r.key, r.namespace_id, r.version, g.reason,
       CASE WHEN g.reason = ANY(%(quarantined)s) THEN 'infinity' ELSE now() + {WAIT.format(times=0)} END
FROM unnest(%(keys)s::bigint[], %(reasons)s::text[], %(versions)s::bigint[]) AS g (key, reason, version)
JOIN tier_records AS r ON r.key = g.key AND r.version = coalesce(g.version, r.version)
ORDER BY r.namespace_id, r.id
ON CONFLICT (record_key) DO UPDATE SET version = excluded.version, reason = excluded.reason,
    attempts = CASE WHEN h.version = excluded.version THEN h.attempts + 1 ELSE 1 END,
    since = CASE WHEN h.version = excluded.version THEN h.since ELSE now() END,
    held_until = CASE WHEN excluded.reason = ANY(%(quarantined)s) THEN 'infinity'
        ELSE now() + {WAIT.format(times="CASE WHEN h.version = excluded.version THEN h.attempts ELSE 0 END")} END"""

_FREE = "DELETE FROM tier_set_aside WHERE record_key = ANY(%s)"

_KNOWN = """
SELECT r.key FROM tier_set_aside AS h JOIN tier_records AS r ON r.key = h.record_key AND r.version = h.version
WHERE h.record_key = ANY(%s)"""

_LISTED = """
SELECT n.tenant, n.scope, n.agent, n.session, n.run, r.id, r.tier, h.reason, h.attempts, h.since,
       CASE WHEN isfinite(h.held_until) THEN h.held_until END
FROM tier_set_aside AS h CROSS JOIN LATERAL (
    SELECT * FROM tier_records AS r WHERE r.key = h.record_key AND r.version = h.version LIMIT 1) AS r
JOIN namespaces AS n ON n.id = r.namespace_id
WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND (%(agent)s::text IS NULL OR n.agent = %(agent)s)
ORDER BY h.since, r.key LIMIT %(limit)s"""

# What is quarantined is left: trying it again changes nothing.
_RELEASE = """
UPDATE tier_set_aside SET held_until = now() WHERE record_key IN (
    SELECT h.record_key
    FROM tier_set_aside AS h JOIN tier_records AS r ON r.key = h.record_key AND r.version = h.version
    JOIN namespaces AS n ON n.id = r.namespace_id
    WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND (%(agent)s::text IS NULL OR n.agent = %(agent)s)
      AND isfinite(h.held_until)
    ORDER BY r.namespace_id, r.id FOR UPDATE OF h)
RETURNING namespace_id"""

_COUNTED = """
SELECT n.tenant, count(*), count(*) FILTER (WHERE NOT isfinite(h.held_until))
FROM tier_set_aside AS h JOIN tier_records AS r ON r.key = h.record_key AND r.version = h.version
JOIN namespaces AS n ON n.id = r.namespace_id GROUP BY n.tenant ORDER BY 2 DESC, 1"""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a record is left alone after its first failure, and at most; it doubles with each further one."""

    base: timedelta = timedelta(minutes=10)
    cap: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that passes leave alone for now.

    Args: reason: holds no stored text; attempts: how often it failed; held_until: None means until somebody restores it.
    """

    namespace: Namespace
    id: str
    tier: Tier
    reason: str
    attempts: int
    since: datetime
    held_until: datetime | None

    @property
    def quarantined(self) -> bool:
        """Whether its text is lost or damaged, as far as is known."""
        return self.held_until is None


def hold(
    conn: Connection, reasons: Mapping[int, str], patience: Patience, *, versions: Mapping[int, int] | None = None
) -> int:
    """Set records aside; returns how many.

    Args: reasons: by record key; versions: where it is given, those that have another one by now are left out.
    """
    if not reasons:
        return 0
    known = versions or {}
    values = {
        "keys": list(reasons),
        "reasons": list(reasons.values()),
        "versions": [known.get(key) for key in reasons],
        "quarantined": sorted(QUARANTINED),
    }
    return conn.execute(_HOLD, {**values, "base": patience.base, "cap": patience.cap}).rowcount


def known(conn: Connection, keys: Iterable[int]) -> frozenset[int]:
    """Those of the records that were set aside as they are now, whether or not their time is over."""
    return frozenset(int(row[0]) for row in conn.execute(_KNOWN, (arrays.bigints(list(keys)),)).fetchall())


def free(conn: Connection, keys: Iterable[int]) -> None:
    """Forget that records were set aside: they moved."""
    conn.execute(_FREE, (list(keys),))


def release(conn: Connection, *, tenant: str | None, agent: str | None = None) -> list[int]:
    """Let passes try the records of a tenant again now, but for those whose body is lost; returns the namespace of each."""
    return [int(row[0]) for row in conn.execute(_RELEASE, {"tenant": tenant, "agent": agent}).fetchall()]


def counted(conn: Connection) -> list[tuple[str | None, int, int]]:
    """Per tenant: (tenant, records that are set aside, those of them whose body is lost or damaged)."""
    return [(tenant, int(n), int(lost)) for tenant, n, lost in conn.execute(_COUNTED).fetchall()]


def listed(conn: Connection, *, tenant: str | None, agent: str | None = None, limit: int = 100) -> list[SetAside]:
    """Records of a tenant that are set aside, the longest waiting first."""
    rows = conn.execute(_LISTED, {"tenant": tenant, "agent": agent, "limit": limit}).fetchall()
    return [
        SetAside(
            Namespace(tenant=t, scope=scope, agent=a, session=session, run=run),
            record_id,
            Tier.from_rank(rank),
            reason,
            int(attempts),
            since,
            until,
        )
        for t, scope, a, session, run, record_id, rank, reason, attempts, since, until in rows
    ]
