"""What objects are called: kept up with their titles, and looked up by the words of texts and questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from isotherm.pipeline.brain import mentions
from isotherm.storage.postgres.pool import Connection

# Locked, so that a writer of edges either sees names as they were and is seen, or sees them as they are.
_OBJECTS = """
SELECT key, id, title, properties, deleted_at IS NOT NULL FROM brain_objects
WHERE namespace_id = %(ns)s AND id = ANY(%(ids)s) AND parent_id IS NULL ORDER BY id FOR NO KEY UPDATE"""

_NAMES = "SELECT object_key, name FROM brain_names WHERE object_key = ANY(%(keys)s)"
_DROP = """
DELETE FROM brain_names AS n USING unnest(%(keys)s::bigint[], %(names)s::text[]) AS g (object_key, name)
WHERE n.namespace_id = %(ns)s AND n.object_key = g.object_key AND n.name = g.name COLLATE "C" """
# An object that lost a name is looked for again under those that it still has.
_UNLINK = "UPDATE brain_names SET linked = false WHERE object_key = ANY(%(keys)s)"
_ADD = """
INSERT INTO brain_names (namespace_id, name, object_key, object_id, anchor, terms)
SELECT %(ns)s, g.name, g.object_key, g.object_id, g.terms[1], g.terms
FROM json_to_recordset(%(rows)s) AS g (name text, object_key bigint, object_id uuid, terms bigint[]) ORDER BY g.name, g.object_key"""
_LINKED = "UPDATE brain_names SET linked = true WHERE object_key = ANY(%(keys)s) AND NOT linked"

_TAKE_UNNAMED = """
WITH taken AS (
    DELETE FROM brain_unnamed WHERE object_key IN (
        SELECT object_key FROM brain_unnamed ORDER BY object_key LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    RETURNING object_key
)
SELECT r.bank_id, r.namespace_id, r.id FROM taken AS t JOIN brain_objects AS r ON r.key = t.object_key
WHERE r.deleted_at IS NULL ORDER BY r.bank_id, r.namespace_id, r.id"""

_BY_WORDS = """
SELECT n.name, n.object_key, n.object_id FROM brain_names AS n
WHERE n.namespace_id = %(ns)s AND n.anchor = ANY(%(terms)s::bigint[])
ORDER BY n.name, n.object_key"""

# Who is called just so; names of one line each.
BY_NAME = """
SELECT n.name, n.object_id FROM brain_names AS n
WHERE n.namespace_id = %(ns)s AND n.name = ANY(string_to_array(%(names)s, E'\n'))
ORDER BY n.name, n.object_key LIMIT %(limit)s"""

_STILL = """
SELECT n.name, n.object_key FROM unnest(%(names)s::text[], %(keys)s::bigint[]) AS g (name, object_key)
JOIN brain_names AS n ON n.object_key = g.object_key AND n.name = g.name COLLATE "C" WHERE n.namespace_id = %(ns)s"""


@dataclass(frozen=True, slots=True)
class Named:
    """An object by row key and id, and whether it is there; one that is gone has no names."""

    key: int
    id: UUID
    live: bool


@dataclass(frozen=True, slots=True)
class Bearer:
    """An object that bears a name."""

    key: int
    id: UUID


def keep(conn: Connection, namespace_id: int, ids: Sequence[UUID]) -> list[Named]:
    """Have the names of whole objects say what the objects say now; ids of what never was are left out."""
    rows = conn.execute(_OBJECTS, {"ns": namespace_id, "ids": list(ids)}).fetchall()
    wanted = {(key, name) for key, _, title, said, gone in rows if not gone for name in mentions.names_of(title, said)}
    known = {(int(k), n) for k, n in conn.execute(_NAMES, {"keys": [row[0] for row in rows]})}
    lost, fresh = sorted(known - wanted), sorted(wanted - known)
    if lost:
        keys = [key for key, _ in lost]
        conn.execute(_DROP, {"ns": namespace_id, "keys": keys, "names": [name for _, name in lost]})
        conn.execute(_UNLINK, {"keys": keys})
    _add(conn, namespace_id, fresh, {int(row[0]): row[1] for row in rows})
    return [Named(int(key), object_id, not gone) for key, object_id, _, _, gone in rows]


def settled(conn: Connection, keys: Sequence[int]) -> None:
    """Note that the names of these objects were looked for in all texts."""
    conn.execute(_LINKED, {"keys": sorted(keys)})


def take_unnamed(conn: Connection, limit: int) -> dict[tuple[int, int], list[UUID]]:
    """Take objects that nobody looked at for names off the list; ids by bank and namespace."""
    found: dict[tuple[int, int], list[UUID]] = {}
    for bank, namespace, object_id in conn.execute(_TAKE_UNNAMED, {"limit": limit}):
        found.setdefault((int(bank), int(namespace)), []).append(object_id)
    return found


def by_words(conn: Connection, namespace_id: int, terms: Sequence[int]) -> dict[str, list[Bearer]]:
    """Names that may stand in texts with these terms, and who bears them; those that too many bear are left out."""
    found: dict[str, list[Bearer]] = {}
    for name, key, object_id in conn.execute(_BY_WORDS, {"ns": namespace_id, "terms": list(terms)}).fetchall():
        found.setdefault(name, []).append(Bearer(int(key), object_id))
    return {name: bearers for name, bearers in found.items() if len(bearers) <= mentions.BEARERS}


def still(conn: Connection, namespace_id: int, pairs: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Those of the pairs of name and row key that hold now."""
    asked = sorted(set(pairs))
    values = {"ns": namespace_id, "names": [name for name, _ in asked], "keys": [key for _, key in asked]}
    return {(name, int(key)) for name, key in conn.execute(_STILL, values)} if asked else set()


def _add(conn: Connection, namespace_id: int, fresh: Sequence[tuple[int, str]], ids: Mapping[int, UUID]) -> None:
    rows: list[Mapping[str, object]] = [
        {"name": name, "object_key": key, "object_id": str(ids[key]), "terms": terms}
        for key, name in fresh
        if (terms := mentions.terms_of(name))
    ]
    if rows:
        conn.execute(_ADD, {"ns": namespace_id, "rows": json.dumps(rows)})
