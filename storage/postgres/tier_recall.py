"""Candidates of a recall, from indexes over all tiers, each with a quota, and the records that were selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from isotherm.pipeline import text
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.ranking import Candidate, lexical_overlap
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_move import original

# Most postings read for one word, newest first. A word that is more frequent than this tells little about a record.
PER_WORD = 1_000
# Records whose words are not in the index yet are read and split at the time of asking; more than this is a backlog.
UNINDEXED = 100
_UNINDEXED_CHARS = 4_096
# A namespace up to this size is compared whole: exact, and cheaper than reading postings of its whole bank.
EXACT = 2_000

_SIZE = "SELECT count(*) FROM (SELECT 1 FROM tier_records AS r WHERE {scope} LIMIT %(exact)s + 1) AS bounded"

_LEG_RECENT = """
    SELECT key, 'recent' AS leg FROM (
        SELECT r.key FROM tier_records AS r WHERE {scope} AND r.tier = ANY(%(tiers)s)
        ORDER BY r.created_at DESC, r.id DESC LIMIT %(recent)s) AS newest"""

# Every word brings its newest records; a record is worth more the rarer the words it shares are.
_LEG_POSTINGS = """
    SELECT record_key, 'lexical' FROM (
        SELECT p.record_key, sum(1 / ln(2 + p.n)) AS worth
        FROM unnest(%(terms)s::bigint[]) AS q (term)
        CROSS JOIN LATERAL (
            SELECT x.record_key, count(*) OVER () AS n FROM (
                SELECT p.record_key FROM tier_postings AS p WHERE {postings} AND p.term = q.term
                ORDER BY p.record_key DESC LIMIT %(per_word)s) AS x
        ) AS p
        GROUP BY p.record_key ORDER BY worth DESC, p.record_key DESC LIMIT %(lexical)s) AS found"""

_LEG_EXACT = """
    SELECT key, 'lexical' FROM (
        SELECT r.key, (SELECT count(*) FROM unnest(r.terms) AS t WHERE t = ANY(%(terms)s::bigint[]))::float8
               / greatest(cardinality(r.terms), cardinality(%(terms)s::bigint[])) AS overlap
        FROM tier_records AS r
        WHERE {scope} AND r.tier = ANY(%(tiers)s) AND r.terms && %(terms)s::bigint[]
        ORDER BY overlap DESC, r.key DESC LIMIT %(lexical)s) AS found"""

_LEG_UNINDEXED = """
    SELECT key, 'unindexed' FROM (
        SELECT r.key FROM tier_records AS r WHERE {scope} AND r.tier = ANY(%(tiers)s) AND NOT r.indexed
        ORDER BY r.created_at DESC LIMIT %(unindexed)s) AS pending"""

_CANDIDATES = """
WITH legs AS ({legs}), keys AS (SELECT key, array_agg(leg) AS legs FROM legs GROUP BY key)
SELECT r.key, r.id, r.tier, r.created_at, r.importance, keys.legs, cardinality(r.terms),
       (SELECT count(*) FROM unnest(r.terms) AS t WHERE t = ANY(%(terms)s::bigint[])),
       CASE WHEN 'unindexed' = ANY(keys.legs)
            THEN coalesce(r.metadata ->> 'searchable', left(coalesce(r.content, r.summary), %(chars)s)) END
FROM keys JOIN tier_records AS r ON r.key = keys.key
WHERE {scope} AND r.tier = ANY(%(tiers)s)"""

_RECORDS = """
SELECT r.key, r.id, n.tenant, n.scope, n.agent, n.session, n.run, r.content, r.summary, r.tier, r.pinned, r.version,
       r.importance, r.access_count, r.heat_log, r.created_at, r.last_access_at, r.moved_at, r.size_bytes, r.metadata,
       r.categories, r.content_sha256
FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id
WHERE {where}"""

_TAIL = """
SELECT r.id, r.key, r.role, r.created_at, r.content, r.metadata, r.summary, b.body, b.raw_bytes, r.content_sha256
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key
WHERE {scope} ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s"""


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many candidates each leg may bring."""

    recent: int
    lexical: int


@dataclass(frozen=True, slots=True)
class Found:
    """Candidates and whether a leg stopped at a limit that may have hidden something."""

    candidates: list[Candidate]
    truncated: bool


def candidates(conn: Connection, scope: Scope, query: str, tiers: Sequence[Tier], quotas: Quotas) -> Found:
    """Records of a scope that some index proposes for a query.

    Args: query: text, may be blank (then only the newest come); tiers: where to look; quotas: per leg.
    """
    within, params = predicate(scope)
    terms = text.terms(query)
    legs = [_LEG_RECENT, _LEG_UNINDEXED]
    values: dict[str, Any] = {
        **params,
        "tiers": [tier.rank for tier in tiers],
        "terms": terms,
        "recent": quotas.recent,
        "lexical": quotas.lexical,
        "unindexed": UNINDEXED,
        "chars": _UNINDEXED_CHARS,
        "per_word": PER_WORD,
    }
    if terms:
        legs.append(_LEG_EXACT if _is_small(conn, scope, within, params) else _LEG_POSTINGS)
    joined = "\n    UNION ALL".join(legs)
    sql = _CANDIDATES.format(legs=joined.format(scope=within, postings=_postings(scope)), scope=within)
    rows = conn.execute(sql, values).fetchall()
    pending = sum("unindexed" in row[5] for row in rows)
    return Found([_candidate(row, terms) for row in rows], truncated=pending >= UNINDEXED)


def records(conn: Connection, keys: Sequence[int], scope: Scope, now: datetime) -> dict[int, Record]:
    """Records by row key, read under the scope; heat as of `now`."""
    within, params = predicate(scope)
    sql = _RECORDS.format(where=f"r.key = ANY(%(keys)s) AND {within}")
    rows = conn.execute(sql, {**params, "keys": list(keys)}).fetchall()
    return {int(row[0]): _record(row, now) for row in rows}


def by_id(conn: Connection, namespace: Namespace, ids: Sequence[str], now: datetime) -> dict[str, tuple[int, Record]]:
    """Row key and record by id, within one namespace."""
    within, params = predicate(Scope(namespace=namespace))
    sql = _RECORDS.format(where=f"r.id = ANY(%(ids)s) AND {within}")
    rows = conn.execute(sql, {**params, "ids": list(ids)}).fetchall()
    return {row[1]: (int(row[0]), _record(row, now)) for row in rows}


def newest(conn: Connection, namespace: Namespace, limit: int) -> list[tuple[Any, ...]]:
    """The newest records of a namespace with their original text, oldest first.

    Returns: rows (id, key, role, created_at, content, metadata); content is None when a stored body is damaged.
    """
    within, params = predicate(Scope(namespace=namespace))
    rows = conn.execute(_TAIL.format(scope=within), {**params, "limit": limit}).fetchall()
    return [
        (*row[:4], row[4] if row[4] is not None else original(row[6], row[7], row[8], row[9]), row[5])
        for row in reversed(rows)
    ]


def _postings(scope: Scope) -> str:
    return predicate(scope, alias="p")[0] if scope.namespace is None else _namespace_postings(scope)


def _namespace_postings(scope: Scope) -> str:
    # The index leads with the bank, so a namespace names its bank too.
    assert scope.namespace is not None  # noqa: S101 - the caller looked
    within = predicate(scope, alias="p")[0]
    tenant = "IS NULL" if scope.namespace.tenant is None else "= %(scope_tenant)s"
    return f"""p.bank_id = (SELECT b.id FROM banks AS b WHERE b.agent = %(scope_agent)s AND b.tenant {tenant})
               AND {within}"""


def _is_small(conn: Connection, scope: Scope, within: str, params: dict[str, Any]) -> bool:
    if scope.namespace is None and scope.sessions is None:
        return False
    row = conn.execute(_SIZE.format(scope=within), {**params, "exact": EXACT}).fetchone()
    return row is not None and int(row[0]) <= EXACT


def _candidate(row: Sequence[Any], terms: Sequence[int]) -> Candidate:
    key, record_id, tier, created_at, importance, legs, size, shared, pending = row
    if pending is not None:
        overlap = lexical_overlap(terms, text.terms(pending))
    else:
        overlap = shared / max(size, len(terms)) if size and terms else 0.0
    return Candidate(
        key=int(key),
        id=record_id,
        tier=Tier.from_rank(tier),
        created_at=created_at,
        importance=importance,
        overlap=overlap,
        legs=frozenset(legs),
    )


def _record(row: Sequence[Any], now: datetime) -> Record:
    (_, record_id, tenant, scope, agent, session, run, content, summary, tier, pinned, version, importance, accesses,
     heat_log, created, accessed, moved, size, metadata, categories, sha) = row  # fmt: skip
    return Record(
        id=record_id,
        namespace=Namespace(tenant=tenant, scope=scope, agent=agent, session=session, run=run),
        content=content,
        summary=summary,
        tier=Tier.from_rank(tier),
        pinned=pinned,
        version=int(version),
        importance=importance,
        access_count=int(accesses),
        heat=heat.heat(heat_log, now),
        created_at=created,
        last_access_at=accessed,
        moved_at=moved,
        size_bytes=int(size),
        metadata=metadata,
        categories=tuple(categories),
        content_sha256=bytes(sha).hex(),
    )
