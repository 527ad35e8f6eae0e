"""What tells which of the objects that a search found are current: edges between them, when each was so, how alike they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.renewing import LOOKED_CHARS, EdgeFound, Said
from isotherm.pipeline.tier.newest import Pair
from isotherm.storage.postgres.brain_filters import allowed
from isotherm.storage.postgres.pool import Connection

# As in the indexes of migration 22.
_LABELS = (
    "lower(e.label) IN ('supersedes', 'replaces', 'updates', 'superseded_by', 'replaced_by', 'sequel', 'contradicts')"
)
_OF_ONE = """(SELECT e.source, e.target, e.label FROM brain_edges AS e
 WHERE e.namespace_id = %(ns)s AND e.deleted_at IS NULL AND {labels} AND e.{end} = ANY(%(ids)s) LIMIT %(most)s)"""
EDGES = f"{_OF_ONE.format(labels=_LABELS, end='source')} UNION {_OF_ONE.format(labels=_LABELS, end='target')}"

# Whether no object of a namespace says when it was so and no edge which of two is newer: then there is nothing to look at.
TIMELESS = f"""NOT EXISTS (SELECT 1 FROM brain_objects AS d
    WHERE d.namespace_id = %(ns)s AND d.source_time IS NOT NULL AND d.deleted_at IS NULL)
AND NOT EXISTS (SELECT 1 FROM brain_edges AS e WHERE e.namespace_id = %(ns)s AND e.deleted_at IS NULL AND {_LABELS})"""

# A part says what it says at the time of its object. Without a time nothing is read of a text.
SAID = """
SELECT coalesce(o.id, r.id), coalesce(r.source_time, o.source_time), coalesce(r.source_time, o.source_time, r.updated_at),
       coalesce(o.kind, r.kind),
       CASE WHEN coalesce(r.source_time, o.source_time) IS NULL THEN ''
            ELSE left(coalesce(nullif(r.content, ''), r.summary), %(chars)s) END
FROM unnest(%(rows)s::uuid[]) WITH ORDINALITY AS k (id, place)
CROSS JOIN LATERAL (SELECT * FROM brain_objects AS r
                    WHERE r.namespace_id = %(ns)s AND r.id = k.id AND r.deleted_at IS NULL LIMIT 1) AS r
LEFT JOIN brain_objects AS o ON o.namespace_id = %(ns)s AND o.id = r.parent_id AND o.deleted_at IS NULL
ORDER BY k.place"""

_ALLOWED = """
SELECT r.id, r.updated_at, coalesce(r.source_time, r.updated_at) FROM brain_objects AS r
WHERE {allowed} AND r.parent_id IS NULL AND r.id = ANY(%(ids)s::uuid[])"""

_COSINES = """
SELECT p.place, 1 - (a.vector <=> b.vector) FROM unnest(%(older)s::uuid[], %(newer)s::uuid[]) WITH ORDINALITY AS p (older, newer, place)
JOIN brain_objects AS a ON a.namespace_id = %(ns)s AND a.id = p.older
JOIN brain_objects AS b ON b.namespace_id = %(ns)s AND b.id = p.newer
WHERE a.vector_state = 'done' AND b.vector_state = 'done' AND a.vector_model = b.vector_model AND a.vector_dim = b.vector_dim
ORDER BY 1"""

# Edges that are looked at in either direction.
MOST_EDGES = 200


def asked(namespace_id: int, ids: Sequence[UUID], rows: Sequence[UUID]) -> list[tuple[str, dict[str, Any]]]:
    """Two statements that go along with another read. Args: ids: of objects; rows: of the best hit of each."""
    return [
        (EDGES, {"ns": namespace_id, "ids": list(ids), "most": MOST_EDGES}),
        (SAID, {"ns": namespace_id, "rows": list(rows), "chars": LOOKED_CHARS}),
    ]


def edges(rows: Iterable[Sequence[Any]]) -> list[EdgeFound]:
    """What the first statement answered."""
    return [EdgeFound(*row) for row in rows]


def said(rows: Iterable[Sequence[Any]]) -> list[Said]:
    """What the second statement answered."""
    return [Said(*row) for row in rows]


def current(
    conn: Connection, namespace_id: int, filters: Filters, ids: Sequence[UUID]
) -> dict[UUID, tuple[datetime, datetime]]:
    """Those of the objects that a search with these filters may answer: when each was last changed, and was so."""
    within, values = allowed(namespace_id, filters)
    rows = conn.execute(_ALLOWED.format(allowed=within), {**values, "ids": list(ids)}).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}


def cosines(conn: Connection, namespace_id: int, rows: Sequence[UUID], pairs: Sequence[Pair]) -> dict[Pair, float]:
    """How alike the vectors of rows are, by pairs of their places, as far as both have one of the same model."""
    values = {"ns": namespace_id, "older": [rows[a] for a, _ in pairs], "newer": [rows[b] for _, b in pairs]}
    return {pairs[int(place) - 1]: float(cosine) for place, cosine in conn.execute(_COSINES, values).fetchall()}
