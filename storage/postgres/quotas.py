"""What tenants have, and the least valuable records of one, over all its namespaces."""

from __future__ import annotations

from datetime import datetime

from isotherm.pipeline.tier.quotas import Amount, Sized
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import tier_held, tier_plan
from isotherm.storage.postgres.pool import Connection

_TENANTS = "SELECT DISTINCT tenant FROM banks ORDER BY tenant"

_USAGE = """
SELECT d.tier, sum(d.records), sum(d.bytes) FROM namespaces AS n JOIN tier_depth AS d ON d.namespace_id = n.id
WHERE n.tenant IS NOT DISTINCT FROM %s::text GROUP BY d.tier HAVING sum(d.records) > 0"""

# Of each namespace as many as could be wanted if all of them were in it, by its index.
_WEAKEST_OF = f"""
(SELECT {tier_plan.COLUMNS}, r.size_bytes
FROM namespaces AS n CROSS JOIN (VALUES {{ranks}}) AS t (tier) CROSS JOIN LATERAL (
    SELECT * FROM tier_records AS r
    WHERE r.namespace_id = n.id AND r.tier = t.tier AND NOT r.pinned AND {tier_held.IS_FREE.format(now="%(now)s")}
    ORDER BY r.value_log LIMIT %(most)s) AS r
WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text ORDER BY r.value_log LIMIT %(most)s)"""
_WEAKEST = _WEAKEST_OF.format(ranks="(3::smallint), (2)")
_WEAKEST_COLD_TOO = f"{_WEAKEST} UNION ALL {_WEAKEST_OF.format(ranks='(1::smallint)')}"


def tenants(conn: Connection) -> list[str | None]:
    """Every tenant that has a bank; None are those without a tenant."""
    return [row[0] for row in conn.execute(_TENANTS).fetchall()]


def usage(conn: Connection, tenant: str | None) -> dict[Tier, Amount]:
    """Records of a tenant and the bytes of their texts, by tier."""
    rows = conn.execute(_USAGE, (tenant,)).fetchall()
    return {Tier.from_rank(rank): Amount(int(n), int(size)) for rank, n, size in rows}


def weakest(conn: Connection, tenant: str | None, *, most: int, cold: bool, now: datetime) -> list[Sized]:
    """The least valuable records of a tenant that are neither pinned nor set aside.

    Args: most: how many may be moved; cold: whether cold ones are looked for too; now: aware.
    """
    values = {"tenant": tenant, "most": most, "now": now}
    rows = conn.execute(_WEAKEST_COLD_TOO if cold else _WEAKEST, values).fetchall()
    return [Sized(tier_plan.state_of(columns), int(size)) for *columns, size in rows]
