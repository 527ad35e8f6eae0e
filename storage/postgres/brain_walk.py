"""The edges around objects, for ranking: one statement for all of them, each within its own limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_rank import HUB, OUTGOING, Link
from isotherm.storage.postgres.brain_filters import allowed as _allowed
from isotherm.storage.postgres.pool import Connection

_AROUND = """
SELECT s.id, e.peer, e.mentions, e.incoming FROM unnest(%(ids)s::uuid[]) AS s (id) CROSS JOIN LATERAL (
    (SELECT target AS peer, mentions, false AS incoming FROM brain_edges
     WHERE namespace_id = %(ns)s AND source = s.id AND deleted_at IS NULL LIMIT %(outgoing)s)
    UNION ALL
    (SELECT source, mentions, true FROM brain_edges
     WHERE namespace_id = %(ns)s AND target = s.id AND deleted_at IS NULL LIMIT %(incoming)s)) AS e"""

_ALLOWED = """
SELECT r.id, r.updated_at FROM brain_objects AS r WHERE {allowed} AND r.parent_id IS NULL AND r.id = ANY(%(ids)s)"""


@dataclass(frozen=True, slots=True)
class Around:
    """Edges of some objects.

    Args: into: how many edges lead to each of them; hubs: those to which more lead than are read, with none of them;
        truncated: whether one of them has more outgoing edges than are read.
    """

    links: tuple[Link, ...]
    into: dict[UUID, int]
    hubs: frozenset[UUID]
    truncated: bool


def around(conn: Connection, namespace_id: int, ids: Sequence[UUID]) -> Around:
    """The live edges of objects in both directions."""
    values = {"ns": namespace_id, "ids": list(ids), "outgoing": OUTGOING + 1, "incoming": HUB + 1}
    coming: dict[UUID, list[Link]] = {i: [] for i in ids}
    going: dict[UUID, list[Link]] = {i: [] for i in ids}
    for own, peer, mentions, incoming in conn.execute(_AROUND, values):
        count = 1 if mentions is None else int(mentions)
        (coming if incoming else going)[own].append(Link(peer, own, count) if incoming else Link(own, peer, count))
    hubs = frozenset(i for i, links in coming.items() if len(links) > HUB)
    found = [link for i, links in coming.items() if i not in hubs for link in links]
    found += [link for links in going.values() for link in links[:OUTGOING]]
    return Around(
        tuple(found),
        {i: len(links) for i, links in coming.items()},
        hubs,
        truncated=any(len(links) > OUTGOING for links in going.values()),
    )


def allowed(conn: Connection, namespace_id: int, filters: Filters, ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Those of the objects that are there and satisfy the filters, with when they were last changed."""
    within, values = _allowed(namespace_id, filters)
    return dict(conn.execute(_ALLOWED.format(allowed=within), {**values, "ids": list(ids)}).fetchall())
