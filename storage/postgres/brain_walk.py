"""The edges around objects, for ranking: one statement for all of them, each within its own limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from isotherm.pipeline.brain import graph_rank
from isotherm.pipeline.brain.filters import Filters
from isotherm.storage.postgres.brain_filters import allowed as _allowed
from isotherm.storage.postgres.brain_names import BY_NAME
from isotherm.storage.postgres.pool import Connection

# Ids as text: thousands of them are compared and none is shown, and UUIDs are slow to make and to hash. One row for each
# object, for the same reason: what is read of an edge is a few bytes, and a row of its own costs more than they do.
_ENDS = """
SELECT array_agg(t.peer) AS peers, array_agg(t.mentions) AS mentions FROM (
    SELECT e.{peer} AS peer, coalesce(e.mentions, 1) AS mentions FROM brain_edges AS e
    WHERE e.namespace_id = %(ns)s AND e.{own} = s.id AND e.deleted_at IS NULL LIMIT %({most})s) AS t"""
# Of what so many edges lead to that none of them is followed, none is told.
_AROUND = f"""
SELECT s.id::text, s.names, i.is_hub, CASE WHEN NOT i.is_hub THEN array_to_string(i.peers, ',') END,
       CASE WHEN NOT i.is_hub THEN array_to_string(i.mentions, ',') END,
       array_to_string(o.peers, ','), array_to_string(o.mentions, ',')
FROM {{begun}} AS s
CROSS JOIN LATERAL (SELECT e.peers, e.mentions, coalesce(cardinality(e.peers) = %(coming)s, false) AS is_hub
                    FROM ({_ENDS.format(peer="source", own="target", most="coming")}) AS e) AS i
CROSS JOIN LATERAL ({_ENDS.format(peer="target", own="source", most="going")}) AS o"""
_OF_IDS = _AROUND.format(begun="(SELECT k.id, NULL AS names FROM unnest(%(ids)s::uuid[]) AS k (id))")
_OF_NAMED = _AROUND.format(
    begun=f"""(
    SELECT b.id, string_agg(b.name, E'\n') AS names FROM (
        SELECT k.id, NULL AS name FROM unnest(%(ids)s::uuid[]) AS k (id)
        UNION ALL
        SELECT n.object_id, n.name FROM ({BY_NAME}) AS n) AS b GROUP BY b.id)"""
)

_ALLOWED = """
SELECT r.id::text, r.id, r.updated_at FROM brain_objects AS r
WHERE {allowed} AND r.parent_id IS NULL AND r.id = ANY(%(ids)s::uuid[])"""

Ends = list[tuple[str, int]]
# An object by its id as text and as it is, and when it was last changed.
Met = tuple[str, UUID, datetime]


class Around(NamedTuple):
    """The other ends of the live edges that come to an object and go from it, with their mentions.

    Args: coming: None where there are more than `graph_rank.HUB`; going: one more than `graph_rank.OUTGOING` where there
        are more; names: of those asked for, which the object bears.
    """

    coming: Ends | None
    going: Ends
    names: Sequence[str] = ()


def around(
    conn: Connection, namespace_id: int, ids: Sequence[str], *, names: Sequence[str] = (), most: int = 0
) -> dict[str, Around]:
    """What is around objects, by id. Args: names: whose bearers are looked at besides, of one line each; most: of these."""
    values = {
        "ns": namespace_id,
        "ids": _array(ids),
        "going": graph_rank.OUTGOING + 1,
        "coming": graph_rank.HUB + 1,
    }
    sql = _OF_IDS
    if names:
        sql, values = _OF_NAMED, {**values, "names": "\n".join(names), "limit": most}
    rows = conn.execute(sql, values).fetchall()
    return {
        i: Around(None if is_hub else _ends(came, heard), _ends(went, said), _split(named, "\n"))
        for i, named, is_hub, came, heard, went, said in rows
    }


def allowed(conn: Connection, namespace_id: int, filters: Filters, ids: Sequence[str]) -> list[Met]:
    """Those of the objects that are there and satisfy the filters."""
    within, values = _allowed(namespace_id, filters)
    return conn.execute(_ALLOWED.format(allowed=within), {**values, "ids": _array(ids)}).fetchall()


def _ends(peers: str | None, mentions: str | None) -> Ends:
    return list(zip(_split(peers), map(int, _split(mentions)), strict=True))


def _split(joined: str | None, by: str = ",") -> list[str]:
    return joined.split(by) if joined else []


def _array(ids: Sequence[str]) -> str:
    """Ids as one parameter; the driver would look at each of them."""
    return f"{{{','.join(ids)}}}"
