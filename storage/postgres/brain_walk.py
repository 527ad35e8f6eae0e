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
SELECT s.place::integer - 1, e.peer::text, e.mentions, e.incoming
FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS s (id, place) CROSS JOIN LATERAL (
    (SELECT target AS peer, coalesce(mentions, 1) AS mentions, false AS incoming FROM brain_edges
     WHERE namespace_id = %(ns)s AND source = s.id AND deleted_at IS NULL LIMIT %(going)s)
    UNION ALL
    (SELECT source, coalesce(mentions, 1), true FROM brain_edges
     WHERE namespace_id = %(ns)s AND target = s.id AND deleted_at IS NULL LIMIT %(coming)s)) AS e"""

_ALLOWED = """
SELECT r.id, r.updated_at FROM brain_objects AS r
WHERE {allowed} AND r.parent_id IS NULL AND r.id = ANY(%(ids)s::uuid[])"""

Ends = list[tuple[str, int]]


def around(conn: Connection, namespace_id: int, ids: Sequence[str]) -> list[tuple[Ends, Ends]]:
    """For each object, the other ends of the live edges that come to it and go from it, and their mentions.

    One more than `graph_rank.HUB` come, and than `graph_rank.OUTGOING` go, where there are more.
    """
    values = {
        "ns": namespace_id,
        "ids": list(ids),
        "going": graph_rank.OUTGOING + 1,
        "coming": graph_rank.HUB + 1,
    }
    found: list[tuple[Ends, Ends]] = [([], []) for _ in ids]
    for place, peer, mentions, incoming in conn.execute(_AROUND, values).fetchall():
        found[place][0 if incoming else 1].append((peer, mentions))
    return found


def allowed(conn: Connection, namespace_id: int, filters: Filters, ids: Sequence[str]) -> dict[UUID, datetime]:
    """Those of the objects that are there and satisfy the filters, with when they were last changed."""
    within, values = _allowed(namespace_id, filters)
    return dict(conn.execute(_ALLOWED.format(allowed=within), {**values, "ids": list(ids)}).fetchall())
