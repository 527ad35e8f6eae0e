"""Candidates of a recall, from indexes over all tiers, each with a quota, and the records that were selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from isotherm.pipeline import text
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.ranking import Candidate, Lexical, rarity_match
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.storage.postgres import tier_vectors
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.namespaces import Scope, in_bank_of, predicate
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_index import SEARCHABLE, found_by
from isotherm.storage.postgres.tier_vectors import Near

# Most postings read for one word, newest first. A word that is more frequent than this tells little about a record.
PER_WORD = 1_000
# Records whose words are not in the index yet are read and split at the time of asking; more than this is a backlog.
UNINDEXED = 100
_UNINDEXED_CHARS = 4_096
# Records counted at most, to tell rare words from frequent ones.
COUNTED = 2_000
# A namespace up to this size is compared whole: exact, and cheaper than reading postings of its whole bank.
EXACT = COUNTED - 1

_COUNT = "SELECT count(*) AS n FROM (SELECT 1 FROM tier_records AS r WHERE {scope} LIMIT %(counted)s) AS bounded"

_LEG_RECENT = """
    SELECT key, 'recent' AS leg FROM (
        SELECT r.key FROM tier_records AS r WHERE {scope} AND r.tier = ANY(%(tiers)s)
        ORDER BY r.created_at DESC, r.id DESC LIMIT %(recent)s) AS newest"""

# Each word of the query with the records that have it: from postings the newest of each word, in a small scope all.
_HITS_POSTINGS = """
    SELECT q.term, p.record_key AS key FROM unnest(%(terms)s::bigint[]) AS q (term)
    CROSS JOIN LATERAL (
        SELECT p.record_key FROM tier_postings AS p WHERE {postings} AND p.term = q.term
        ORDER BY p.record_key DESC LIMIT %(per_word)s) AS p {on_tiers}"""

# With a tier switched off its records must not use up the quota; with all of them on the look at each row is spared.
_ON_TIERS = "JOIN tier_records AS t ON t.key = p.record_key AND t.tier = ANY(%(tiers)s)"

_HITS_EXACT = """
    SELECT q.term, p.record_key AS key FROM unnest(%(terms)s::bigint[]) AS q (term)
    CROSS JOIN LATERAL (
        SELECT p.record_key FROM tier_postings AS p
        WHERE {postings} AND p.term = q.term AND p.record_key = ANY(ARRAY(
            SELECT r.key FROM tier_records AS r WHERE {scope} AND r.tier = ANY(%(tiers)s)))) AS p"""

# A word weighs the more the fewer records have it, as in BM25; beyond the bounds of both counts it hardly changes.
_WORDS = """
WITH size AS MATERIALIZED (
    {size}
), hits AS MATERIALIZED ({hits}
), words AS MATERIALIZED (
    SELECT q.term, ln(1 + (greatest(size.n, coalesce(h.n, 0)) - coalesce(h.n, 0) + 0.5) / (coalesce(h.n, 0) + 0.5))::float8 AS weight
    FROM unnest(%(terms)s::bigint[]) AS q (term) CROSS JOIN size
    LEFT JOIN (SELECT term, count(*) AS n FROM hits GROUP BY term) AS h ON h.term = q.term
), """

_LEG_LEXICAL = """
    SELECT key, 'lexical' FROM (
        SELECT h.key FROM hits AS h JOIN words AS w ON w.term = h.term
        GROUP BY h.key ORDER BY sum(w.weight) DESC, h.key DESC LIMIT %(lexical)s) AS found"""

_LEG_UNINDEXED = """
    SELECT key, 'unindexed' FROM (
        SELECT r.key FROM tier_records AS r WHERE {in_bank} AND r.tier = ANY(%(tiers)s) AND NOT r.indexed
        ORDER BY r.created_at DESC LIMIT %(unindexed)s) AS pending"""

_CANDIDATES = """
{words}legs AS ({legs}), keys AS (SELECT key, array_agg(leg) AS legs FROM legs GROUP BY key)
SELECT r.key, r.id, r.tier, r.created_at, r.importance, keys.legs, cardinality(r.terms), {weights}, {cosine},
       CASE WHEN 'unindexed' = ANY(keys.legs) THEN left({searchable}, %(chars)s) END,
       CASE WHEN 'unindexed' = ANY(keys.legs) THEN left(coalesce(r.content, r.summary), %(chars)s) END
FROM keys JOIN tier_records AS r ON r.key = keys.key {vectors}
WHERE {scope} AND r.tier = ANY(%(tiers)s)"""

_RECORDS = """
SELECT r.key, r.id, n.tenant, n.scope, n.agent, n.session, n.run, r.content, r.summary, r.tier, r.pinned, r.version,
       r.importance, r.access_count, r.heat_log, r.created_at, r.last_access_at, r.moved_at, r.size_bytes, r.metadata,
       r.categories, r.content_sha256
FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id
WHERE {where}"""

_TAIL = """
SELECT r.id, r.key, r.role, r.created_at, r.content, r.metadata, r.summary, b.body, b.raw_bytes, r.content_sha256, o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE {scope} ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s"""


_LARGEST_COLD = """
SELECT n.tenant, n.scope, n.agent, n.session, n.run, r.id, coalesce(octet_length(b.body), o.stored_bytes)
FROM cold_bodies AS b JOIN tier_records AS r ON r.key = b.record_key JOIN namespaces AS n ON n.id = r.namespace_id
LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND r.tier = 1 ORDER BY r.size_bytes DESC, r.id LIMIT 1"""


# The weights of the query's words, in the order of its terms, and the places of those that the record has.
_WEIGHTS = """(SELECT array_agg(w.weight ORDER BY w.term) FROM words AS w),
       (SELECT array_agg(w.weight) FROM words AS w WHERE w.term = ANY(r.terms))"""
_NO_WEIGHTS = "NULL::float8[], NULL::float8[]"


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many candidates each leg may bring."""

    recent: int
    lexical: int
    vector: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """Candidates and whether a leg stopped at a limit that may have hidden something."""

    candidates: list[Candidate]
    truncated: bool


def candidates(
    conn: Connection,
    scope: Scope,
    query: str,
    tiers: Sequence[Tier],
    quotas: Quotas,
    lexical: Lexical = Lexical.RARITY,
    near: Near | None = None,
) -> Found:
    """Records of a scope that some index proposes for a query.

    Args: query: text, may be blank (then only the newest come); tiers: where to look; quotas: per leg;
    lexical: how words are compared; near: the query as a vector, compared with every candidate that has one.
    """
    within, params = predicate(scope)
    terms = text.terms(query)
    size = _size(conn, scope, within, params, near) if terms else None
    values: dict[str, Any] = {
        **params,
        **(near.values if near else {}),
        "tiers": [tier.rank for tier in tiers],
        "terms": terms,
        "size": size,
        "recent": quotas.recent,
        "lexical": quotas.lexical,
        "vector": quotas.vector,
        "unindexed": UNINDEXED,
        "chars": _UNINDEXED_CHARS,
        "per_word": PER_WORD,
        "counted": COUNTED,
    }
    if near is not None and _is_searched(near, size):
        values["searched"] = tier_vectors.search(conn, near, predicate(scope, "v")[0], values)
    sql = _statement(scope, within, tiers, size, near, has_words=bool(terms))
    rows = [_read(row, terms) for row in conn.execute(sql, values).fetchall()]
    pending = sum("unindexed" in row.legs for row in rows)
    hidden = near is not None and _may_hide(near, size, sum("vector" in row.legs for row in rows), quotas.vector)
    return Found(_scored(rows, lexical), truncated=pending >= UNINDEXED or hidden)


def _statement(
    scope: Scope, within: str, tiers: Sequence[Tier], size: int | None, near: Near | None, *, has_words: bool
) -> str:
    """The query for candidates: its legs depend on the size of the scope and on what there is to compare."""
    parts = {
        "scope": within,
        "in_bank": _in_bank(scope, "r"),
        "postings": _in_bank(scope, "p"),
        "on_tiers": _ON_TIERS if len(tiers) < len(Tier) else "",
    }
    legs = [_LEG_RECENT, _LEG_UNINDEXED]
    words, weights = "WITH ", _NO_WEIGHTS
    if has_words:
        legs.append(_LEG_LEXICAL)
        is_small = size is not None and size <= EXACT and not _is_whole_bank(scope)
        hits = (_HITS_EXACT if is_small else _HITS_POSTINGS).format(**parts)
        counted = _COUNT.format(scope=within) if size is None else "SELECT %(size)s::bigint AS n"
        words, weights = _WORDS.format(size=counted, hits=hits), _WEIGHTS
    if near is not None:
        legs.append(near.leg(searched=_is_searched(near, size)))
    return _CANDIDATES.format(
        words=words,
        legs="\n    UNION ALL".join(legs).format(**parts),
        weights=weights,
        cosine=near.cosine if near else "NULL::float8",
        vectors=near.join if near else "",
        scope=within,
        searchable=SEARCHABLE,
    )


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


@dataclass(frozen=True, slots=True)
class Newest:
    """A record as it is replayed: `content` is None while it is cold, and `stored` says where its text is."""

    id: str
    key: int
    role: str | None
    created_at: datetime
    content: str | None
    metadata: dict[str, Any]
    stored: StoredBody


def newest(conn: Connection, namespace: Namespace, limit: int) -> list[Newest]:
    """The newest records of a namespace, oldest first."""
    within, params = predicate(Scope(namespace=namespace))
    rows = conn.execute(_TAIL.format(scope=within), {**params, "limit": limit}).fetchall()
    return [Newest(row[0], row[1], row[2], row[3], row[4], row[5], StoredBody(*row[6:])) for row in reversed(rows)]


_STORED = """
SELECT r.content, r.summary, b.body, b.raw_bytes, r.content_sha256, o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE {scope} AND r.id = %(id)s"""


def stored(conn: Connection, namespace: Namespace, record_id: str) -> tuple[str | None, StoredBody] | None:
    """The content of a record, None while it is cold, and where its text is; None when there is no such record."""
    within, params = predicate(Scope(namespace=namespace))
    row = conn.execute(_STORED.format(scope=within), {**params, "id": record_id}).fetchone()
    return None if row is None else (row[0], StoredBody(*row[1:]))


def _in_bank(scope: Scope, alias: str) -> str:
    """The predicate of the scope, which names its bank as well."""
    within = predicate(scope, alias)[0]
    return within if scope.bank is not None else f"{in_bank_of(scope, alias)} AND {within}"


def _is_whole_bank(scope: Scope) -> bool:
    return scope.namespace is None and scope.sessions is None


def _size(conn: Connection, scope: Scope, within: str, params: dict[str, Any], near: Near | None) -> int | None:
    """How many records a scope has, counted up to a bound; None for a whole bank when only words are compared."""
    if near is None and _is_whole_bank(scope):
        return None
    bound = COUNTED if near is None or near.is_indexed else tier_vectors.COMPARED + 1
    row = conn.execute(_COUNT.format(scope=within), {**params, "counted": bound}).fetchone()
    return int(row[0]) if row else 0


def _is_searched(near: Near, size: int | None) -> bool:
    """Whether vectors are found by their index; a small scope is compared whole."""
    return near.is_indexed and (size is None or size > EXACT)


def _may_hide(near: Near, size: int | None, found: int, quota: int) -> bool:
    """Whether vectors were left out: by a search that stopped before it had enough, or as more than are compared."""
    if _is_searched(near, size):
        return found < min(quota, size or 0)
    return size is not None and size > tier_vectors.COMPARED


@dataclass(frozen=True, slots=True)
class _Row:
    """A candidate as read; `size` counts its words, the weights are of the query's words."""

    key: int
    id: str
    tier: int
    created_at: datetime
    importance: float
    legs: Sequence[str]
    size: int
    weights: Sequence[float]
    shared: Sequence[float]
    cosine: float | None


def _read(row: Sequence[Any], terms: Sequence[int]) -> _Row:
    key, record_id, tier, created_at, importance, legs, size, weights, shared, cosine, given, pending = row
    if pending is not None:
        own = frozenset(text.terms(found_by(given, pending)))
        size = len(own)
        shared = [weight for term, weight in zip(terms, weights or (), strict=True) if term in own]
    return _Row(key, record_id, tier, created_at, importance, legs, size, weights or (), shared or (), cosine)


def _scored(rows: Sequence[_Row], lexical: Lexical) -> list[Candidate]:
    sizes = [row.size for row in rows if row.shared]
    typical = sum(sizes) / len(sizes) if sizes else 1.0
    return [
        Candidate(
            key=int(row.key),
            id=row.id,
            tier=Tier.from_rank(row.tier),
            created_at=row.created_at,
            importance=row.importance,
            overlap=_match(row, typical, lexical),
            cosine=row.cosine,
            legs=frozenset(row.legs),
        )
        for row in rows
    ]


def _match(row: _Row, typical: float, lexical: Lexical) -> float:
    if lexical is Lexical.RARITY:
        return rarity_match(sum(row.shared), sum(row.weights), row.size, typical)
    most = max(row.size, len(row.weights))
    return len(row.shared) / most if most else 0.0


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


@dataclass(frozen=True, slots=True)
class ColdBody:
    """A cold record with a body of its own, and the bytes that body takes."""

    namespace: Namespace
    id: str
    stored_bytes: int


def largest_cold(conn: Connection, *, tenant: str | None) -> ColdBody | None:
    """The longest text of a tenant that is cold, None when no cold record has a body of its own."""
    row = conn.execute(_LARGEST_COLD, {"tenant": tenant}).fetchone()
    if row is None:
        return None
    name_tenant, scope, agent, session, run, record_id, stored = row
    return ColdBody(
        Namespace(tenant=name_tenant, scope=scope, agent=agent, session=session, run=run), record_id, stored
    )
