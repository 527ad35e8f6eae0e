"""Records that a pass could not move: set aside for a time that doubles, so that one of them never holds up the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres.pool import Connection

# A stored body that is gone or damaged does not heal by waiting: passes leave its record alone until it is restored.
MISSING_BODY = "the stored body is missing"
DAMAGED_BODY = "the stored body does not match its hash"
QUARANTINED = frozenset({MISSING_BODY, DAMAGED_BODY})

# What a pass reads of a namespace leaves these out; whatever changes a record sets it free.
IS_FREE = """NOT EXISTS (
    SELECT 1 FROM tier_set_aside AS h WHERE h.record_key = r.key AND h.version = r.version AND h.held_until > {now})"""

_HOLD = """
INSERT INTO tier_set_aside AS h (record_key, namespace_id, version, reason, held_until)
SELECT r.key, r.namespace_id, r.version, g.reason,
       CASE WHEN g.reason = ANY(%(quarantined)s) THEN 'infinity' ELSE now() + %(base)s END
FROM unnest(%(keys)s::bigint[], %(reasons)s::text[]) AS g (key, reason) JOIN tier_records AS r ON r.key = g.key
ORDER BY r.namespace_id, r.id
ON CONFLICT (record_key) DO UPDATE SET version = excluded.version, reason = excluded.reason,
    attempts = CASE WHEN h.version = excluded.version THEN h.attempts + 1 ELSE 1 END,
    since = CASE WHEN h.version = excluded.version THEN h.since ELSE now() END,
    held_until = CASE WHEN excluded.reason = ANY(%(quarantined)s) THEN 'infinity'
        ELSE now() + least(%(base)s * power(2, CASE WHEN h.version = excluded.version THEN least(h.attempts, 20) ELSE 0 END),
                           %(cap)s) END"""

_FREE = "DELETE FROM tier_set_aside WHERE record_key = ANY(%s)"

_LISTED = """
SELECT n.tenant, n.scope, n.agent, n.session, n.run, r.id, r.tier, h.reason, h.attempts, h.since,
       CASE WHEN isfinite(h.held_until) THEN h.held_until END
FROM tier_set_aside AS h CROSS JOIN LATERAL (
    SELECT * FROM tier_records AS r WHERE r.key = h.record_key AND r.version = h.version LIMIT 1) AS r
JOIN namespaces AS n ON n.id = r.namespace_id
WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND (%(agent)s::text IS NULL OR n.agent = %(agent)s)
ORDER BY h.since, r.key LIMIT %(limit)s"""


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


def hold(conn: Connection, reasons: Mapping[int, str], patience: Patience) -> None:
    """Set records aside.

    Args: reasons: by record key.
    """
    if reasons:
        values = {"keys": list(reasons), "reasons": list(reasons.values()), "quarantined": sorted(QUARANTINED)}
        conn.execute(_HOLD, {**values, "base": patience.base, "cap": patience.cap})


def free(conn: Connection, keys: Iterable[int]) -> None:
    """Forget that records were set aside: they moved."""
    conn.execute(_FREE, (list(keys),))


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
