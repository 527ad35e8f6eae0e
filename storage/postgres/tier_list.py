"""Records and namespaces read page by page, each page from where the one before ended; and what moved a record so far."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.storage.postgres import tier_recall
from isotherm.storage.postgres.namespaces import Scope, behind, in_order, predicate, within_namespaces
from isotherm.storage.postgres.pool import Connection

# A tier of so many records is sorted for each page, by its index; of a larger one, all tiers are passed through in order.
_SORTED = 2_000
_SIZE = "SELECT coalesce(sum(d.records), 0) FROM tier_depth AS d WHERE {depth} AND d.tier = %(tier)s"
_IN_TIER, _PASSED = "r.tier = %(tier)s", "r.tier + 0 = %(tier)s"  # what is computed has no index

# A name is never blank, so a blank stands for an absent one and keeps the order total.
_NAME = """coalesce(n.tenant, '') COLLATE "C", n.agent COLLATE "C", coalesce(n.session, '') COLLATE "C",
           n.scope COLLATE "C", coalesce(n.run, '') COLLATE "C\""""
_NAMESPACES = f"""
SELECT n.tenant, n.scope, n.agent, n.session, n.run FROM namespaces AS n
WHERE n.forgotten_at IS NULL AND n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND (%(agent)s::text IS NULL OR n.agent = %(agent)s)
  AND (%(session)s::text IS NULL OR n.session = %(session)s)
  AND (%(after)s::text[] IS NULL OR ROW({_NAME}) > ROW((%(after)s)[1], (%(after)s)[2], (%(after)s)[3], (%(after)s)[4], (%(after)s)[5]))
ORDER BY {_NAME} LIMIT %(limit)s"""

_MOVES = """
SELECT m.moved_at, m.source, m.target, m.reason, m.operation_id FROM tier_moves AS m
JOIN tier_records AS r ON r.key = m.record_key AND r.namespace_id = m.namespace_id
WHERE {scope} AND r.id = %(id)s ORDER BY m.id DESC LIMIT %(limit)s"""

# Counted up to a bound: who has ten thousand before it need not know more.
_WEAKER = """
SELECT r.key, (SELECT reason FROM tier_set_aside AS h WHERE h.record_key = r.key AND h.version = r.version), (SELECT count(*) FROM (
    SELECT 1 FROM tier_records AS w
    WHERE w.namespace_id = r.namespace_id AND w.tier = r.tier AND NOT w.pinned AND w.value_log < r.value_log
    LIMIT 10000) AS bounded)
FROM tier_records AS r WHERE {scope} AND r.id = %(id)s"""


_DEPTH = """
SELECT n.scope, d.tier, sum(d.records), sum(d.bytes) FROM tier_depth AS d JOIN namespaces AS n ON n.id = d.namespace_id
GROUP BY n.scope, d.tier"""


@dataclass(frozen=True, slots=True)
class Page:
    """Records in order of (created_at, id). `next` is what to ask the next page with, None after the last one."""

    records: tuple[Record, ...] = ()
    next: str | None = None


@dataclass(frozen=True, slots=True)
class PastMove:
    """A move that was made. `at` is UTC."""

    at: datetime
    source: Tier
    target: Tier
    reason: str
    operation_id: UUID


@dataclass(frozen=True, slots=True)
class Standing:
    """A record among those of its tier: its row key, how many are worth less, and why passes leave it alone, if they do."""

    key: int
    weaker: int
    set_aside: str | None


def page(conn: Connection, scope: Scope, now: datetime, *, tier: Tier | None, after: str | None, limit: int) -> Page:
    """The next records of a scope. Raises: RejectedError when `after` did not come from a page."""
    # Ascending, so that what comes meanwhile is behind the reader and no page is read twice.
    tests, position = behind(_read_cursor(after))
    values = {**predicate(scope)[1], **position, "limit": limit + 1}
    if tier is not None:
        values["tier"] = tier.rank
        tests.append(_tier_test(conn, scope, values))
    sql = in_order(scope, "r.key, r.created_at, r.id", tests, limit="%(limit)s", newest_first=False)
    found = conn.execute(sql, values).fetchall()
    kept = found[:limit]
    records = tier_recall.records(conn, [int(row[0]) for row in kept], scope, now)
    more = len(found) > limit
    return Page(
        tuple(records[int(row[0])] for row in kept if int(row[0]) in records),
        _cursor(kept[-1][1], kept[-1][2]) if more else None,
    )


def namespaces(
    conn: Connection,
    *,
    tenant: str | None,
    agent: str | None = None,
    session: str | None = None,
    after: Namespace | None = None,
    limit: int = 1_000,
) -> list[Namespace]:
    """The next namespaces of a tenant, or of one of its agents or sessions, in order of their names.

    Args: after: the last one of the page before.
    """
    names = (
        None if after is None else [after.tenant or "", after.agent, after.session or "", after.scope, after.run or ""]
    )
    values = {"tenant": tenant, "agent": agent, "session": session, "after": names, "limit": limit}
    rows = conn.execute(_NAMESPACES, values).fetchall()
    return [Namespace(tenant=t, scope=scope, agent=a, session=s, run=run) for t, scope, a, s, run in rows]


def moves(conn: Connection, scope: Scope, record_id: str, limit: int = 20) -> list[PastMove]:
    """The last moves of a record, newest first."""
    within, params = predicate(scope)
    rows = conn.execute(_MOVES.format(scope=within), {**params, "id": record_id, "limit": limit}).fetchall()
    return [PastMove(at, Tier.from_rank(s), Tier.from_rank(t), reason, op) for at, s, t, reason, op in rows]


def standing(conn: Connection, scope: Scope, record_id: str) -> Standing | None:
    """How a record stands in its tier, None when the scope has no such record."""
    within, params = predicate(scope)
    row = conn.execute(_WEAKER.format(scope=within), {**params, "id": record_id}).fetchone()
    if row is None:
        return None
    key, reason, weaker = row
    return Standing(int(key), int(weaker), reason)


def depth_by_scope(conn: Connection) -> list[tuple[str, Tier, int, int]]:
    """Records and bytes of their texts by scope of their namespaces and by tier."""
    rows = conn.execute(_DEPTH).fetchall()
    return [(str(scope), Tier.from_rank(rank), int(n), int(size)) for scope, rank, n, size in rows]


def _tier_test(conn: Connection, scope: Scope, values: dict[str, Any]) -> str:
    """What keeps records of a tier: by the index of tiers where they are few. A whole bank has none."""
    if scope.namespace is None and scope.sessions is None:
        return _PASSED
    row = conn.execute(_SIZE.format(depth=within_namespaces(scope, "d")), values).fetchone()
    return _IN_TIER if row and row[0] <= _SORTED else _PASSED


def _cursor(at: datetime, record_id: str) -> str:
    return f"{at.isoformat()}/{record_id}"


def _read_cursor(after: str | None) -> tuple[datetime, str] | None:
    if after is None:
        return None
    moment, _, record_id = after.partition("/")
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None or not record_id:
        raise RejectedError("after: not the `next` of a page")
    return at, record_id
