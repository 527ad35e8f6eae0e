"""Candidates of a recall, from indexes over all tiers, each with a quota.

Two statements: the first asks the indexes for row keys, all of them as of one moment, since a record leaves the unindexed
as its words arrive; the second reads what the score needs of those that were proposed. Sums over postings are made in
between, where they cost a fraction of what they cost in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline import text
from isotherm.pipeline.fusion import telling
from isotherm.pipeline.tier.learned import LEARNED
from isotherm.pipeline.tier.likeness import REACH, TELLING, Columns, Floats
from isotherm.pipeline.tier.ranking import Candidate, Candidates, Lexical, rarity_match, rarity_weight
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.spans import Span
from isotherm.storage.postgres import arrays, cold_words, namespaces, tier_vectors
from isotherm.storage.postgres.namespaces import Scope, in_bank_of, in_order, predicate, within_namespaces
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
# Hits by words whose neighbors are looked at.
AROUND = 20
# A scope up to this size has its vectors compared whole: exact, and cheaper than a search that its index must repeat.
EXACT = COUNTED - 1

_COUNT = "SELECT count(*) FROM (SELECT 1 FROM tier_records AS r WHERE {scope} LIMIT %(counted)s) AS bounded"

# Writers noted it, so that nothing is counted.
_SUM = "SELECT least(coalesce(sum(d.records), 0), %(counted)s)::bigint FROM tier_depth AS d WHERE {depth}"

_NEWEST = """
SELECT 'recent' AS leg, 0::bigint AS term, array_send(ARRAY({newest})) AS keys"""

# The newest of the time that is asked about.
_OF_TIME = """
SELECT 'time', 0, array_send(ARRAY({of_time}))"""
_IN_TIERS = "r.tier = ANY(%(tiers)s)"
_IN_SPAN = "r.created_at >= %(from)s AND r.created_at < %(until)s"

_UNSPLIT = """
SELECT 'unindexed', 0, array_send(ARRAY(
    SELECT r.key FROM tier_records AS r WHERE {in_bank} AND r.tier = ANY(%(tiers)s) AND NOT r.indexed
    ORDER BY r.created_at DESC LIMIT %(unindexed)s))"""

_SIZE_OF_BANK = f"""
SELECT 'size', 0, array_send(ARRAY({_COUNT}))"""
_SIZE_OF_NAMESPACES = """
SELECT 'size', 0, array_send(ARRAY({sum}))"""

# Each word of the query with the newest records that have it, and with cold ones as far as these are fewer than the quota.
_WORDS = """
SELECT 'word', q.term, array_send(ARRAY(SELECT p.record_key FROM (
    SELECT f.record_key FROM ({forms}) AS f LIMIT %(per_word)s) AS p {on_tiers}))
FROM unnest(%(terms)s::bigint[]) AS q (term)"""
_POSTINGS = """(
    SELECT p.record_key FROM tier_postings AS p WHERE {postings} AND p.term = q.term
    ORDER BY p.namespace_id DESC, p.record_key DESC LIMIT %(per_word)s)"""
_COLD = """(
    SELECT c.record_key FROM cold_words AS c WHERE {cold})"""

# With a tier switched off its records must not use up the quota; with all of them on the look at each row is spared.
_ON_TIERS = "JOIN tier_records AS t ON t.key = p.record_key AND t.tier = ANY(%(tiers)s)"

_NEAR = """
SELECT 'vector', 0, array_send(ARRAY(SELECT key FROM ({leg}) AS leg))"""

# The turns next to those that were found by their words, within their session: what answers often stands beside the hit.
_AROUND = """
WITH around AS MATERIALIZED (
    SELECT h.key AS hit, n.key, n.step FROM unnest(%(hits)s::bigint[]) AS k (key) CROSS JOIN LATERAL (
        SELECT * FROM tier_records AS r WHERE r.key = k.key AND {scope} AND r.role IS NOT NULL LIMIT 1) AS h
    CROSS JOIN LATERAL (({before}) UNION ALL ({after})) AS n WHERE n.role IS NOT NULL
)"""
_NEXT = """SELECT n.key, n.role, row_number() OVER (ORDER BY n.created_at {order}, n.id {order}) AS step FROM tier_records AS n
        WHERE n.namespace_id = h.namespace_id AND (n.created_at, n.id) {beyond} (h.created_at, h.id)
        ORDER BY n.created_at {order}, n.id {order} LIMIT %(reach)s"""
_BEFORE, _AFTER = _NEXT.format(order="DESC", beyond="<"), _NEXT.format(order="ASC", beyond=">")

_READ = """{around}
SELECT r.key, r.id, r.tier, r.created_at, r.importance, coalesce(cardinality(c.words) - 1, cardinality(r.terms)),
       ARRAY(SELECT q.term FROM unnest(%(terms)s::bigint[]) AS q (term) WHERE CASE WHEN c.words IS NULL
           THEN q.term = ANY(r.terms) ELSE {word} = ANY(c.words) END), {cosine}, {pending}, {turn}
FROM ({wanted}) AS k CROSS JOIN LATERAL (
    SELECT * FROM tier_records AS r WHERE r.key = k.key AND {scope} AND r.tier = ANY(%(tiers)s) LIMIT 1) AS r
LEFT JOIN LATERAL (
    SELECT c.words FROM cold_words AS c WHERE c.record_key = r.key AND (r.tier = 1 OR NOT r.indexed) LIMIT 1) AS c
    ON true {vectors}"""
# Grouped before anything is read: as a join, the planner would group it again for every row.
_WANTED = """SELECT w.key, array_agg(w.hit) FILTER (WHERE w.hit IS NOT NULL) AS hits,
           array_agg(w.step) FILTER (WHERE w.hit IS NOT NULL) AS steps
    FROM (SELECT unnest(%(keys)s::bigint[]) AS key, NULL::bigint AS hit, NULL::bigint AS step
          UNION ALL SELECT a.key, a.hit, a.step FROM around AS a) AS w GROUP BY w.key"""
_TURN = """CASE WHEN r.role IS NOT NULL THEN r.namespace_id END,
       CASE WHEN r.role IS NULL AND 'summary' = ANY(r.categories) THEN r.namespace_id END, k.hits, k.steps"""
_PENDING = """CASE WHEN r.key = ANY(%(pending)s) THEN left({searchable}, %(chars)s) END,
       CASE WHEN r.key = ANY(%(pending)s) THEN left(coalesce(r.content, r.summary), %(chars)s) END"""
_NONE_PENDING = "NULL::text, NULL::text"


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many candidates each leg may bring."""

    recent: int
    lexical: int
    vector: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """Candidates, whether a leg stopped at a limit that may have hidden something, and the weights of the query's words."""

    candidates: Candidates
    truncated: bool
    weights: Mapping[int, float] = field(default_factory=dict)


def candidates(
    conn: Connection,
    scope: Scope,
    query: str,
    tiers: Sequence[Tier],
    quotas: Quotas,
    lexical: Lexical = Lexical.RARITY,
    near: Near | None = None,
    span: Span | None = None,
    learned: Mapping[int, float] = MappingProxyType({}),
) -> Found:
    """Records of a scope that some index proposes for a query.

    Args: query: text, may be blank (then only the newest come); tiers: where to look; quotas: per leg;
    lexical: how words are compared; near: the query as a vector, compared with every candidate that has one;
    span: the time that is asked about; learned: row keys that points of interests stand on, with how much these match.
    """
    within, params = predicate(scope)
    values: dict[str, Any] = {
        **params,
        **(near.values if near else {}),
        "tiers": [tier.rank for tier in tiers],
        "terms": text.terms(query),
        "recent": quotas.recent,
        "vector": quotas.vector,
        "unindexed": UNINDEXED,
        "chars": _UNINDEXED_CHARS,
        "per_word": PER_WORD,
        "counted": COUNTED,
    }
    if span is not None:
        values |= {"from": span.start, "until": span.end}
    size = None if near is None else _size(conn, scope, values, near)
    is_searched = near is not None and near.is_indexed and (size is None or size > EXACT)
    proposed = _proposed(conn, scope, within, values, None if is_searched else near)
    if near is not None and is_searched:
        with conn.transaction():  # its settings end with it
            proposed.legs["vector"] = tier_vectors.search(conn, near, predicate(scope, "v")[0], values)
    hidden = near is not None and _may_hide(size, len(proposed.legs["vector"]), quotas.vector, is_searched=is_searched)
    if learned:
        proposed.legs[LEARNED] = list(learned)
    rows = _read(conn, within, values, near, proposed, quotas.lexical)
    is_backlog = len(proposed.legs["unindexed"]) >= UNINDEXED
    return Found(_rated(rows, proposed, lexical, span, learned), is_backlog or hidden, proposed.weights)


@dataclass(slots=True)
class _Proposed:
    """Row keys by the index that proposed them; postings: the same by word; weights: of each word of the query."""

    legs: dict[str, Sequence[int]] = field(default_factory=dict)
    postings: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)

    def legs_of(self, key: int, *, at_all: bool) -> frozenset[str]:
        """What proposed a key. Args: at_all: whether it stands next to a hit."""
        found = [leg for leg, keys in self.legs.items() if key in keys]
        return frozenset([*found, "around"] if at_all else found)


def _proposed(conn: Connection, scope: Scope, within: str, values: dict[str, Any], near: Near | None) -> _Proposed:
    """Ask the indexes, all in one statement. Args: near: compared here, None when there is none or an index finds it."""
    parts = {"scope": within, "in_bank": _in_bank(scope, "r"), "postings": _in_bank(scope, "p")}
    tests = [_IN_TIERS] * (len(values["tiers"]) < len(Tier))
    parts["newest"] = in_order(scope, "r.key", tests, limit="%(recent)s", newest_first=True)
    parts["sum"] = "" if _is_whole_bank(scope) else _SUM.format(depth=within_namespaces(scope, "d"))
    parts["on_tiers"] = _ON_TIERS if len(values["tiers"]) < len(Tier) else ""
    forms = [_POSTINGS] * (values["tiers"] != [Tier.COLD.rank]) + [_COLD] * (Tier.COLD.rank in values["tiers"])
    parts |= {"cold": cold_words.having(scope, "q.term")}
    parts["forms"] = "\n    UNION ALL".join(forms).format(**parts)
    branches = [_NEWEST, _UNSPLIT]
    if "from" in values:
        parts["of_time"] = in_order(scope, "r.key", [*tests, _IN_SPAN], limit="%(recent)s", newest_first=True)
        branches.append(_OF_TIME)
    bank = scope.bank if _is_whole_bank(scope) else None
    is_large = bank is not None and namespaces.is_large(bank)
    if values["terms"]:
        if not is_large:
            branches.append(_SIZE_OF_NAMESPACES if bank is None else _SIZE_OF_BANK)
        branches.append(_WORDS)
    if near is not None:
        parts["compared"] = in_order(scope, "r.key, r.vector_state", tests, limit="%(compared)s", newest_first=True)
        branches.append(_NEAR.format(leg=near.leg(searched=False)))
    sql = "\nUNION ALL".join(branches).format(**parts)
    found = _Proposed(legs={"recent": [], "unindexed": [], "vector": [], "lexical": []})
    size = COUNTED if is_large else 0
    asked = {**values, "terms": arrays.bigints(values["terms"])}
    for leg, term, data in conn.execute(sql, asked, binary=True).fetchall():
        keys = arrays.numbers(data)
        if leg == "word":
            found.postings[term] = keys
        elif leg == "size":
            size = int(keys[0])
        else:
            found.legs[leg] = keys.tolist()
    if bank is not None and size >= COUNTED:
        namespaces.keep_large(bank)
    found.weights = {term: rarity_weight(len(keys), size) for term, keys in found.postings.items()}
    return found


def _read(
    conn: Connection, within: str, values: dict[str, Any], near: Near | None, proposed: _Proposed, quota: int
) -> _Rows:
    """What the score needs of every record that was proposed, read under the scope."""
    proposed.legs["lexical"] = _heaviest(proposed, quota)
    pending = list(proposed.legs["unindexed"])
    sql = _READ.format(
        cosine=near.cosine if near else "NULL::float8",
        vectors=near.join if near else "",
        pending=_PENDING.format(searchable=SEARCHABLE) if pending else _NONE_PENDING,
        scope=within,
        word=cold_words.word("r.bank_id", "q.term"),
        around=_AROUND.format(scope=within, before=_BEFORE, after=_AFTER),
        wanted=_WANTED,
        turn=_TURN,
    )
    asked = {
        "keys": list({key for leg in proposed.legs.values() for key in leg}),
        "pending": pending,
        "terms": values["terms"],
        "hits": proposed.legs["lexical"][:AROUND],
    }
    columns = {name: arrays.bigints(numbers) for name, numbers in asked.items()}
    rows = conn.execute(sql, {**values, **columns, "reach": REACH}, binary=True).fetchall()
    return _Rows._make(zip(*rows, strict=True)) if rows else _Rows()


def _heaviest(proposed: _Proposed, quota: int) -> list[int]:
    """Keys of the records whose words weigh most together, newer rows first among equals."""
    lists = list(proposed.postings.values())
    if not any(map(len, lists)):
        return []
    weights = np.repeat([proposed.weights[term] for term in proposed.postings], [len(keys) for keys in lists])
    keys = np.concatenate(lists)
    order = np.argsort(keys, kind="stable")
    keys, weights = keys[order], weights[order]
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    sums = np.bincount(np.repeat(np.arange(len(starts)), np.diff(starts, append=len(keys))), weights)
    order = np.argsort(-sums[::-1], kind="stable")[:quota]
    found: list[int] = keys[starts][::-1][order].tolist()
    return found


def _in_bank(scope: Scope, alias: str) -> str:
    """The predicate of the scope, which names its bank as well."""
    within = predicate(scope, alias)[0]
    return within if scope.bank is not None else f"{in_bank_of(scope, alias)} AND {within}"


def _is_whole_bank(scope: Scope) -> bool:
    return scope.namespace is None and scope.sessions is None


def _size(conn: Connection, scope: Scope, values: Mapping[str, Any], near: Near) -> int:
    """How many records a scope has, up to where it does not matter how its vectors are found."""
    bound = COUNTED if near.is_indexed else tier_vectors.COMPARED + 1
    if _is_whole_bank(scope):
        sql = _COUNT.format(scope=predicate(scope)[0])
    else:
        sql = _SUM.format(depth=within_namespaces(scope, "d"))
    row = conn.execute(sql, {**values, "counted": bound}).fetchone()
    return int(row[0]) if row else 0


def _may_hide(size: int | None, found: int, quota: int, *, is_searched: bool) -> bool:
    """Whether vectors were left out: by a search that stopped before it had enough, or as more than are compared."""
    if is_searched:
        return found < min(quota, size or 0)
    return size is not None and size > tier_vectors.COMPARED


class _Rows(NamedTuple):
    """Candidates as read, by column; `sizes` count their words, `shared` are those of the query that they have."""

    keys: Sequence[int] = ()
    ids: Sequence[str] = ()
    tiers: Sequence[int] = ()
    created_at: Sequence[datetime] = ()
    importance: Sequence[float] = ()
    sizes: Sequence[int] = ()
    shared: Sequence[Sequence[int]] = ()
    cosines: Sequence[float | None] = ()
    given: Sequence[str | None] = ()
    pending: Sequence[str | None] = ()
    turn_of: Sequence[int | None] = ()
    sums: Sequence[int | None] = ()
    hits: Sequence[Sequence[int] | None] = ()
    steps: Sequence[Sequence[int] | None] = ()


def _rated(
    rows: _Rows, proposed: _Proposed, lexical: Lexical, span: Span | None, learned: Mapping[int, float]
) -> Candidates:
    """What was read, as candidates with their likeness by words."""
    cosine = np.clip(np.array(rows.cosines, np.float64), -1.0, 1.0)  # None is NaN
    timely = [span is not None and span.start <= moment < span.end for moment in rows.created_at]
    weights = proposed.weights
    overlap = _overlap(rows, weights, lexical)
    columns = Columns(
        rows.keys,
        overlap,
        cosine,
        rows.turn_of,
        _around(rows),
        timely,
        told=telling(overlap.max(initial=0.0) * sum(weights.values()), len(weights), TELLING),
        learned=np.array([learned.get(key, 0.0) for key in rows.keys]) if learned else None,
        sums=rows.sums if any(rows.sums) else None,
    )

    def made(at: int) -> Candidate:
        hits = rows.hits[at] or ()
        return Candidate(
            rows.keys[at],
            rows.ids[at],
            Tier.from_rank(rows.tiers[at]),
            rows.created_at[at],
            rows.importance[at],
            float(overlap[at]),
            None if np.isnan(cosine[at]) else float(cosine[at]),
            proposed.legs_of(rows.keys[at], at_all=bool(hits)),
            rows.turn_of[at],
            tuple(zip(hits, rows.steps[at] or (), strict=True)),
            timely[at],
        )

    return Candidates(columns, rows.ids, rows.created_at, rows.importance, made)


def _around(rows: _Rows) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Place of a candidate, key and distance of a turn beside it, of all such turns."""
    places = [at for at, hits in enumerate(rows.hits) if hits for _ in hits]
    return places, [hit for hits in rows.hits for hit in hits or ()], [n for steps in rows.steps for n in steps or ()]


def _overlap(rows: _Rows, weights: Mapping[int, float], lexical: Lexical) -> Floats:
    """How like the query each record is by its words, from 0 to 1."""
    sizes, shared = _words_of(rows, weights)
    counts, held = np.array(sizes, np.int64), np.array(list(map(len, shared)), np.int64)
    if lexical is Lexical.OVERLAP:
        return held / np.maximum(counts, max(len(weights), 1))
    each = [weights[term] for own in shared for term in own]
    sums = np.bincount(np.repeat(np.arange(len(held)), held), each, len(held)).astype(np.float64)
    typical = float(counts[held > 0].mean()) if each else 1.0
    return rarity_match(sums, sum(weights.values()), counts, typical)


def _words_of(rows: _Rows, weights: Mapping[int, float]) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
    """How many words each record has, and which of the query's; those of unindexed records are split here."""
    if rows.pending.count(None) == len(rows.pending):
        return rows.sizes, rows.shared
    sizes, shared = list(rows.sizes), list(rows.shared)
    for at, (given, pending) in enumerate(zip(rows.given, rows.pending, strict=True)):
        if pending is not None:
            own = frozenset(text.terms(found_by(given, pending)))
            sizes[at], shared[at] = len(own), sorted(own & weights.keys())
    return sizes, shared
