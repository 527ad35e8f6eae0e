"""Namespaces filled by SQL, with rows as remembering, indexing and passes leave them."""

from __future__ import annotations

from collections.abc import Sequence

from floors import Bare

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.heat import DECAY_PER_SECOND, EPOCH_SECONDS
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.namespaces import Place

# Finished rows, as remembering and indexing leave them, a hundredth of a second apart, so that none is due by its age; the
# newest ones are in the upper tiers.
_FILL = f"""
INSERT INTO tier_records (namespace_id, bank_id, id, content, summary, content_sha256, role, importance, tier, value_log,
                          created_at, last_access_at, size_bytes, indexed)
SELECT p.namespace_id, p.bank_id, 'r' || p.n, CASE WHEN p.tier > 1 THEN p.said END, CASE WHEN p.tier = 1 THEN p.said END,
       sha256(p.said::bytea), 'user', 0.7, p.tier,
       {DECAY_PER_SECOND!r}::float8 * (extract(epoch FROM p.at)::float8 - {EPOCH_SECONDS}) + ln(0.7), p.at, p.at, length(p.said), true
FROM (
    SELECT g.n, (%(namespaces)s::bigint[])[1 + g.n %% %(count)s] AS namespace_id, %(bank)s::bigint AS bank_id,
           now() - g.n * interval '10 milliseconds' AS at,
           CASE WHEN g.n / %(count)s < %(hot)s THEN 3 WHEN g.n / %(count)s < %(warm)s THEN 2 ELSE 1 END AS tier,
           'Caroline: I went to the harbor on day ' || g.n || ' and saw ' || g.n %% 97 || ' boats come in, then we talked about it' AS said
    FROM generate_series(%(start)s::bigint, %(stop)s::bigint - 1) AS g (n)) AS p"""  # noqa: S608 - joined from constants


def made(name: str, count: int) -> list[Place]:
    """So many namespaces of one agent."""
    return [namespaces.resolve(Namespace.of(f"bench-{name}", f"s{n}")) for n in range(count)]


def fill(conn: Bare, places: Sequence[Place], size: int, *, hot: int, warm: int, chunk: int = 100_000) -> None:
    """Finished rows in turns over the namespaces. Args: hot, warm: how many of the newest rows of each are above warm, cold."""
    values = {"namespaces": [p.namespace_id for p in places], "count": len(places), "bank": places[0].bank_id}
    for start in range(0, size, chunk):
        span = {"start": start, "stop": min(size, start + chunk)}
        conn.execute(_FILL, {**values, **span, "hot": hot, "warm": warm})
