"""The points of a bank that have to do with a query, with the records of a scope that they stand on."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.interest.ranking import LEAST_SIMILARITY
from isotherm.pipeline.tier.learned import LearnedPoint, chosen
from isotherm.storage.postgres import interest_read
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.tier_vectors import Near

_QUOTA = 20
# Records of each point, the newest first.
_RECORDS = 12

_STANDS_ON = """
SELECT p.id, s.record_key, s.record_id FROM unnest(%(points)s::uuid[]) AS p (id) CROSS JOIN LATERAL (
    SELECT e.record_key, e.record_id, max(e.event_time) AS said_at FROM interest_evidence AS e
    WHERE e.point_id = p.id AND {scope} GROUP BY e.record_key, e.record_id
    ORDER BY said_at DESC, e.record_key DESC LIMIT %(records)s) AS s
ORDER BY p.id, s.said_at DESC, s.record_key DESC"""


def asked(scope: Scope, query: str, near: Near | None) -> tuple[tuple[LearnedPoint, ...], tuple[str, ...]]:
    """Points that match, and what the answer must say when interests are out of reach: records still answer."""
    try:
        with connection() as conn:
            return points(conn, scope, query, near), ()
    except TransientError:
        return (), ("interests",)


def points(conn: Connection, scope: Scope, query: str, near: Near | None) -> tuple[LearnedPoint, ...]:
    """Points that match a query, most like it first; those that nothing in the scope was said for are left out.

    One statement where the bank has no such point, else three.
    """
    bank = scope.bank or (scope.namespace.bank if scope.namespace else None)
    assert bank is not None  # noqa: S101 - a scope has one of the two
    terms = text.terms(query)
    vec, model = (None, None) if near is None else (near.vector, near.model)
    hits = interest_read.candidates(conn, bank, terms=terms, vec=vec, model=model, quota=_QUOTA)
    like = {hit.id: max(hit.cosine or 0.0, hit.words / len(terms) if terms else 0.0) for hit in hits}
    wanted = sorted(i for i, likeness in like.items() if likeness >= LEAST_SIMILARITY)
    if not wanted:
        return ()
    known, said = interest_read.by_id(conn, bank, wanted), _stands_on(conn, scope, wanted)
    found = [
        LearnedPoint(
            i, p.name, p.summary, like[i], p.last_seen_at, tuple(k for k, _ in said[i]), tuple(r for _, r in said[i])
        )
        for i, p in known.items()
        if i in said and not p.contested
    ]
    return chosen(found, LEAST_SIMILARITY)


def _stands_on(conn: Connection, scope: Scope, wanted: Sequence[UUID]) -> dict[UUID, list[tuple[int, str]]]:
    within, params = predicate(scope, "e")
    sql = _STANDS_ON.format(scope=within)
    found: dict[UUID, list[tuple[int, str]]] = {}
    for point, key, record in conn.execute(sql, {**params, "points": list(wanted), "records": _RECORDS}).fetchall():
        found.setdefault(point, []).append((int(key), record))
    return found
