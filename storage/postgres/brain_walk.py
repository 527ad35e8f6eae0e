"""The edges around objects, for ranking: one statement for all of them, each within its own limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from isotherm.pipeline.brain import graph_rank
from isotherm.pipeline.brain.filters import Filters
from isotherm.storage.postgres.brain_filters import allowed as _allowed
from isotherm.storage.postgres.pool import Connection

# Ids as text: thousands of them are compared and none is shown, and UUIDs are slow to make and to hash.
_AROUND = """
SELECT 2 * s.place::integer - 1 - e.going, e.peer::text, e.mentions
FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS s (id, place) CROSS JOIN LATERAL (
    (SELECT target AS peer, coalesce(mentions, 1) AS mentions, 1 AS going FROM brain_edges
     WHERE namespace_id = %(ns)s AND source = s.id AND deleted_at IS NULL LIMIT %(going)s)
    UNION ALL
    (SELECT source, coalesce(mentions, 1), 0 FROM brain_edges
     WHERE namespace_id = %(ns)s AND target = s.id AND deleted_at IS NULL LIMIT %(coming)s)) AS e"""

_ALLOWED = """
SELECT r.id::text, r.id, r.updated_at FROM brain_objects AS r
WHERE {allowed} AND r.parent_id IS NULL AND r.id = ANY(%(ids)s::uuid[])"""

Ends = list[tuple[str, int]]
# An object by its id as text and as it is, and when it was last changed.
Met = tuple[str, UUID, datetime]


def around(conn: Connection, namespace_id: int, ids: Sequence[str]) -> list[tuple[Ends, Ends]]:
    """For each object, the other ends of the live edges that come to it and go from it, and their mentions.

    One more than `graph_rank.HUB` come, and than `graph_rank.OUTGOING` go, where there are more.
    """
    values = {
        "ns": namespace_id,
        "ids": _array(ids),
        "going": graph_rank.OUTGOING + 1,
        "coming": graph_rank.HUB + 1,
    }
    going: list[Ends] = [[] for _ in ids]
    coming: list[Ends] = [[] for _ in ids]
    ends = [each for pair in zip(going, coming, strict=True) for each in pair]
    for place, peer, mentions in conn.execute(_AROUND, values).fetchall():
        ends[place].append((peer, mentions))
    return list(zip(coming, going, strict=True))


def allowed(conn: Connection, namespace_id: int, filters: Filters, ids: Sequence[str]) -> list[Met]:
    """Those of the objects that are there and satisfy the filters."""
    within, values = _allowed(namespace_id, filters)
    return conn.execute(_ALLOWED.format(allowed=within), {**values, "ids": _array(ids)}).fetchall()


def _array(ids: Sequence[str]) -> str:
    """Ids as one parameter; the driver would look at each of them."""
    return f"{{{','.join(ids)}}}"
