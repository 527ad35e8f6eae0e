"""Edges between interests: what is alike is related, whoever wrote it and whenever its vector changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from isotherm.pipeline.interest.candidates import Vector
from isotherm.pipeline.interest.v1_3 import RELATE_SIM, Edge
from isotherm.storage.postgres import interest_near
from isotherm.storage.postgres.pool import Connection

RELATED_MAX = 20

# Whichever end is gone or belongs to another bank, there is no edge.
_ADD = """
INSERT INTO interest_edges AS e (bank_id, source_id, target_id, kind, weight)
SELECT %(bank)s, u.source, u.target, u.kind, u.weight
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(kinds)s::text[], %(weights)s::float8[])
  AS u (source, target, kind, weight)
JOIN interest_points AS s ON s.id = u.source AND s.bank_id = %(bank)s
JOIN interest_points AS t ON t.id = u.target AND t.bank_id = %(bank)s
ON CONFLICT (source_id, kind, target_id) DO UPDATE SET weight = excluded.weight WHERE e.weight <> excluded.weight
RETURNING source_id, target_id, kind, weight"""

_DROP = """
DELETE FROM interest_edges WHERE kind = 'related' AND bank_id = %(bank)s AND (source_id = ANY(%(ids)s) OR target_id = ANY(%(ids)s))
RETURNING source_id, target_id, kind, weight"""


def add(conn: Connection, bank_id: int, edges: Sequence[Edge]) -> list[Edge]:
    """Write edges; returns those that are new or weigh differently now."""
    each = {(e.source, e.kind, e.target): e for e in edges}
    values = {
        "bank": bank_id,
        "sources": [e.source for e in each.values()],
        "targets": [e.target for e in each.values()],
        "kinds": [e.kind for e in each.values()],
        "weights": [e.weight for e in each.values()],
    }
    return [Edge(*row) for row in conn.execute(_ADD, values).fetchall()]


def drop(conn: Connection, bank_id: int, ids: Sequence[UUID]) -> list[Edge]:
    """Take the likenesses of points away, as when their vectors are no more what they were; returns them."""
    return [Edge(*row) for row in conn.execute(_DROP, {"bank": bank_id, "ids": list(ids)}).fetchall()]


def alike(conn: Connection, bank_id: int, vectors: Mapping[UUID, Vector], model: str) -> list[Edge]:
    """Edges from points to the nearest of their bank, as far as those are alike; at most 20 from each point."""
    found: dict[tuple[UUID, UUID], Edge] = {}
    nearest = interest_near.nearest(conn, bank_id, list(vectors.values()), model, RELATED_MAX + 1)
    for one, neighbors in zip(vectors, nearest, strict=True):
        for other, cosine in neighbors:
            if other != one and round(cosine, 4) >= RELATE_SIM:
                pair = (min(one, other), max(one, other))
                found[pair] = Edge(*pair, "related", round(cosine, 4))
    return list(found.values())
