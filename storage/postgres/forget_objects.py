"""Forgetting single objects of the knowledge base: rows, parts, words, edges, and what work and calls keep of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from isotherm.pipeline.stages import BRAIN_EMBED, BRAIN_MENTION, BRAIN_MIRROR
from isotherm.storage.postgres import brain_write
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import Connection

_STAGES = (BRAIN_EMBED, BRAIN_MENTION, BRAIN_MIRROR)

_EDGES = """
SELECT key, source::text, target::text, label FROM brain_edges
WHERE namespace_id = %(ns)s AND (source = ANY(%(ids)s) OR target = ANY(%(ids)s)) ORDER BY key"""
_ROWS = "DELETE FROM brain_objects WHERE namespace_id = %(ns)s AND key = ANY(%(keys)s)"
# Files that were accepted and are none of the objects yet.
_WAITING = "DELETE FROM brain_imports WHERE namespace_id = %(ns)s AND object_id = ANY(%(ids)s)"

_NAMED = """(s.input -> 'ids' ?| %(names)s
    OR EXISTS (SELECT 1 FROM jsonb_path_query(s.input, 'lax $.keys[*]') AS k WHERE k::text::bigint = ANY(%(keys)s))
    OR EXISTS (SELECT 1 FROM jsonb_path_query(s.input, 'lax $.edges[*]') AS k WHERE k::text::bigint = ANY(%(edges)s)))"""
_OF_PLACE = "o.namespace_id = %(ns)s AND s.stage = ANY(%(stages)s)"
# Operations before steps, as whoever ends a step locks them.
_LOCK = f"""
SELECT o.id FROM operations AS o WHERE o.id IN (
    SELECT s.operation_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
    WHERE {_OF_PLACE} AND {_NAMED})
ORDER BY o.id FOR NO KEY UPDATE"""
_WITHOUT = """CASE WHEN s.input ? '{name}' THEN jsonb_build_object('{name}', (
        SELECT coalesce(jsonb_agg(k), '[]') FROM jsonb_array_elements(s.input -> '{name}') AS k
        WHERE {kept})) ELSE '{{}}' END"""
_SCRUB = f"""
UPDATE operation_steps AS s SET input_hash = sha256(s.id::text::bytea), input = s.input
    || {_WITHOUT.format(name="ids", kept="k #>> '{}' <> ALL(%(names)s)")}
    || {_WITHOUT.format(name="keys", kept="k::text::bigint <> ALL(%(keys)s)")}
    || {_WITHOUT.format(name="edges", kept="k::text::bigint <> ALL(%(edges)s)")}
FROM operations AS o
WHERE o.id = s.operation_id AND o.id = ANY(%(operations)s) AND {_OF_PLACE} AND {_NAMED}"""
# A call that is made again with its key is a new one: its hash was made from what is gone.
_UNKEY = (
    "UPDATE operations SET key_hash = NULL, fingerprint = NULL "
    "WHERE namespace_id = %(ns)s AND id = ANY(%(operations)s) AND key_hash IS NOT NULL"
)

_ALIVE = "SELECT id FROM brain_objects WHERE namespace_id = ANY(%(ns)s) AND id = ANY(%(ids)s) AND parent_id IS NULL ORDER BY id"
_ALIVE_EDGES = """
SELECT key FROM brain_edges
WHERE namespace_id = ANY(%(ns)s) AND deleted_at IS NULL AND (source = ANY(%(ids)s) OR target = ANY(%(ids)s)) ORDER BY key"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was erased.

    Args: ids: of objects and parts; keys: their rows; edges: what identifies them in the graph; counts: by kind; interests:
        ids, where these were asked for.
    """

    ids: list[UUID] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    edges: list[list[str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    interests: list[UUID] = field(default_factory=list)


def erase(conn: Connection, place: Place, ids: Sequence[UUID]) -> Taken:
    """Erase objects with their parts, those included that were taken out of searches before; the graph follows later."""
    rows = brain_write.take_out(conn, place, ids)
    values: dict[str, Any] = {"ns": place.namespace_id, "ids": sorted({*ids, *(row.id for row in rows)})}
    found = conn.execute(_EDGES, values).fetchall()
    values |= {
        "keys": [row.key for row in rows],
        "edges": [int(row[0]) for row in found],
        "names": [str(one) for one in values["ids"]],
        "stages": list(_STAGES),
    }
    conn.execute(_ROWS, values)
    counts = {"objects": len(rows), "edges": len(found), "files": conn.execute(_WAITING, values).rowcount}
    values["operations"] = [row[0] for row in conn.execute(_LOCK, values).fetchall()]
    counts["steps"] = conn.execute(_SCRUB, values).rowcount
    conn.execute(_UNKEY, values)
    return Taken(
        values["ids"], values["keys"], [list(row[1:]) for row in found], {k: n for k, n in counts.items() if n}
    )


def alive(conn: Connection, namespace_ids: Sequence[int], ids: Sequence[UUID]) -> tuple[list[UUID], list[int]]:
    """Whole objects that were put again under ids that were erased, and row keys of the edges they have now."""
    values = {"ns": list(namespace_ids), "ids": list(ids)}
    found = [row[0] for row in conn.execute(_ALIVE, values).fetchall()]
    edges = [int(row[0]) for row in conn.execute(_ALIVE_EDGES, values).fetchall()] if found else []
    return found, edges
