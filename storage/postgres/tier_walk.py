"""What a walk over records reads: names that stand in them, who bears these, what was learned from them.

Nothing is kept for it: that a record names an object follows from the words of both as they are now, so titles and records
may come and go in any order. Names are those that the agent's knowledge has, in all namespaces of its bank; records are those
of the scope, each read within its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from isotherm.pipeline.brain import graph_rank
from isotherm.storage.postgres import arrays, cold_words
from isotherm.storage.postgres.namespaces import Scope, bank_id, in_bank_of, predicate
from isotherm.storage.postgres.pool import Connection

# Names looked at for the words of one query and its best hits, and postings of a name's longest word that are looked through.
_NAMES = 500
_POSTINGS = 1_000

# One look at an index for each namespace of the bank and each thing that is asked about: the planner takes a namespace for one
# of average size, and would sooner read all of it.
_IN_BANK = "(SELECT s.id FROM namespaces AS s WHERE s.bank_id = {bank}) AS s (id)"

_BY_WORDS = """
SELECT n.name, n.object_id::text
FROM {bank} CROSS JOIN unnest(%(terms)s::bigint[]) AS q (term) CROSS JOIN LATERAL (
    SELECT * FROM brain_names AS n WHERE n.namespace_id = s.id AND n.anchor = q.term LIMIT %(names)s) AS n
ORDER BY length(n.name) DESC, n.name, n.object_key LIMIT %(names)s"""

# Both directions of the edges between objects, and nothing of objects outside the bank.
_AROUND = """
SELECT k.id::text, e.peer::text, e.mentions, e.incoming
FROM {bank} CROSS JOIN unnest(%(ids)s::uuid[]) AS k (id) CROSS JOIN LATERAL (
    SELECT * FROM brain_objects AS o WHERE o.namespace_id = s.id AND o.id = k.id AND o.deleted_at IS NULL LIMIT 1) AS o
CROSS JOIN LATERAL (
    (SELECT g.target AS peer, coalesce(g.mentions, 1) AS mentions, false AS incoming FROM brain_edges AS g
     WHERE g.namespace_id = o.namespace_id AND g.source = o.id AND g.deleted_at IS NULL LIMIT %(going)s)
    UNION ALL
    (SELECT g.source, coalesce(g.mentions, 1), true FROM brain_edges AS g
     WHERE g.namespace_id = o.namespace_id AND g.target = o.id AND g.deleted_at IS NULL LIMIT %(coming)s)) AS e"""

# Records that have all words of a name, the longest one looked up first.
_NAMING = """
SELECT n.object_id::text, n.name, f.record_key
FROM {bank} CROSS JOIN unnest(%(ids)s::uuid[]) AS k (id) CROSS JOIN LATERAL (
    SELECT o.key FROM brain_objects AS o WHERE o.namespace_id = s.id AND o.id = k.id LIMIT 1) AS o
CROSS JOIN LATERAL (SELECT * FROM brain_names AS n WHERE n.object_key = o.key LIMIT %(names)s) AS n CROSS JOIN LATERAL (
    SELECT w.record_key FROM (
        (SELECT p.record_key FROM tier_postings AS p WHERE {postings} AND p.term = n.anchor
         ORDER BY p.namespace_id DESC, p.record_key DESC LIMIT %(postings)s)
        UNION ALL
        (SELECT c.record_key FROM cold_words AS c WHERE {cold} LIMIT %(postings)s)) AS w
    WHERE cardinality(n.terms) = 1 OR EXISTS (
        SELECT 1 FROM tier_records AS r LEFT JOIN cold_words AS c ON c.record_key = r.key
        WHERE r.key = w.record_key AND NOT EXISTS (
            SELECT 1 FROM unnest(n.terms) AS t (term) WHERE CASE WHEN c.words IS NULL
                THEN t.term <> ALL (r.terms) ELSE NOT c.words @> ARRAY[{word}] END))
    LIMIT %(coming)s) AS f
ORDER BY n.object_key, n.name"""

_LEARNED = """
SELECT p.point_id::text, o.record_key FROM (
    SELECT DISTINCT e.point_id FROM interest_evidence AS e
    WHERE {bank} AND e.record_key = ANY(%(keys)s::bigint[])) AS p
CROSS JOIN LATERAL (
    SELECT DISTINCT e.record_key FROM interest_evidence AS e WHERE e.point_id = p.point_id AND {scope}
    LIMIT %(coming)s) AS o
ORDER BY 1, 2"""


class Edge(NamedTuple):
    """An edge between two objects, by id, as seen from one of them."""

    own: str
    peer: str
    mentions: int
    is_incoming: bool


class Naming(NamedTuple):
    """A record that has the words of an object's name."""

    object_id: str
    name: str
    key: int


def names(conn: Connection, scope: Scope, terms: Sequence[int]) -> dict[str, list[str]]:
    """Names of the bank's knowledge that may stand in texts with these terms, and the ids of who bears each."""
    sql = _BY_WORDS.format(bank=_in_bank(scope))
    found: dict[str, list[str]] = {}
    for name, object_id in conn.execute(sql, _values(scope, terms=arrays.bigints(terms), names=_NAMES)).fetchall():
        found.setdefault(name, []).append(object_id)
    return found


def around(conn: Connection, scope: Scope, ids: Sequence[str]) -> list[Edge]:
    """Live edges of objects of the bank, within the limits of a walk."""
    sql = _AROUND.format(bank=_in_bank(scope))
    limits = {"going": graph_rank.OUTGOING, "coming": graph_rank.HUB + 1}
    return list(map(Edge._make, conn.execute(sql, _values(scope, ids=list(ids), **limits)).fetchall()))


def naming(conn: Connection, scope: Scope, ids: Sequence[str]) -> list[Naming]:
    """Records of the scope that have all words of a name of these objects, in any order, one more than is no hub."""
    sql = _NAMING.format(
        bank=_in_bank(scope),
        postings=f"{in_bank_of(scope, 'p')} AND {predicate(scope, 'p')[0]}",
        cold=cold_words.having(scope, "n.anchor"),
        word=cold_words.word(bank_id(scope), "t.term"),
    )
    values = _values(scope, ids=list(ids), postings=_POSTINGS, names=_NAMES, coming=graph_rank.HUB + 1)
    return list(map(Naming._make, conn.execute(sql, values).fetchall()))


def learned(conn: Connection, scope: Scope, keys: Sequence[int]) -> dict[str, list[int]]:
    """Points that were learned from these records, each with all records of the scope that it stands on."""
    sql = _LEARNED.format(bank=in_bank_of(scope, "e"), scope=predicate(scope, "e")[0])
    values = _values(scope, keys=arrays.bigints(keys), coming=graph_rank.HUB + 1)
    found: dict[str, list[int]] = {}
    for point, key in conn.execute(sql, values).fetchall():
        found.setdefault(point, []).append(int(key))
    return found


def _in_bank(scope: Scope) -> str:
    return _IN_BANK.format(bank=bank_id(scope))


def _values(scope: Scope, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - parameters of a statement
    return {**predicate(scope)[1], **more}
