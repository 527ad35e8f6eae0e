"""Edges from texts to what they mention: which texts to read, what they say, and the edges that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from isotherm.pipeline.brain.mentions import LABEL
from isotherm.storage.postgres.pool import Connection

# Edges to one object; what more texts mention is in everybody's mouth.
MENTIONED_BY = 256

# Texts that have all words of a name that was not looked for yet, and texts that mention an object whose names changed.
_TO_READ = """
WITH changed AS (
    SELECT r.key, r.id FROM brain_objects AS r WHERE r.namespace_id = %(ns)s AND r.id = ANY(%(ids)s)
), fresh AS MATERIALIZED (
    SELECT c.key, c.id, n.anchor, n.terms FROM changed AS c JOIN brain_names AS n ON n.object_key = c.key
    WHERE n.namespace_id = %(ns)s AND NOT n.linked
), words AS (
    SELECT said.source FROM fresh AS f CROSS JOIN LATERAL (
        SELECT coalesce(r.parent_id, r.id) AS source FROM brain_postings AS p JOIN brain_objects AS r ON r.key = p.object_key
        WHERE p.namespace_id = %(ns)s AND p.term = f.anchor AND r.id <> f.id AND r.parent_id IS DISTINCT FROM f.id
          AND NOT EXISTS (
            SELECT 1 FROM unnest(f.terms) AS t (term) WHERE NOT EXISTS (
                SELECT 1 FROM brain_postings AS q
                WHERE q.namespace_id = %(ns)s AND q.term = t.term AND q.object_key = p.object_key))
        ORDER BY p.object_key LIMIT %(most)s) AS said
), edges AS (
    SELECT e.source FROM brain_edges AS e JOIN changed AS c ON c.id = e.target
    WHERE e.namespace_id = %(ns)s AND e.deleted_at IS NULL AND e.mentions > 0
      AND (NOT EXISTS (SELECT 1 FROM brain_names AS n WHERE n.object_key = c.key)
           OR EXISTS (SELECT 1 FROM fresh AS f WHERE f.key = c.key))
)
SELECT source FROM words UNION SELECT source FROM edges"""

# An object's own title is its name and no mention; those of its parts are headings of its text.
_TEXTS = """
SELECT coalesce(r.parent_id, r.id), r.key, r.revision, CASE WHEN r.parent_id IS NULL THEN r.summary ELSE r.title END,
       r.content, r.terms
FROM brain_objects AS r
WHERE r.namespace_id = %(ns)s AND r.deleted_at IS NULL AND (r.id = ANY(%(ids)s) OR r.parent_id = ANY(%(ids)s))
ORDER BY 1, 2"""

# In the order in which writers of objects lock them. Whoever changes a part locks its object, too.
_LOCK = """
SELECT id FROM brain_objects
WHERE namespace_id = %(ns)s AND id = ANY(%(ids)s) AND parent_id IS NULL AND deleted_at IS NULL ORDER BY id FOR SHARE"""
_VERSIONS = """
SELECT coalesce(parent_id, id), key, revision FROM brain_objects
WHERE namespace_id = %(ns)s AND deleted_at IS NULL AND (id = ANY(%(ids)s) OR parent_id = ANY(%(ids)s)) ORDER BY 1, 2"""

_MENTIONED = """
SELECT g.id, (SELECT count(*) FROM (
    SELECT 1 FROM brain_edges AS e WHERE e.namespace_id = %(ns)s AND e.target = g.id AND e.deleted_at IS NULL
    LIMIT %(most)s) AS bounded)
FROM unnest(%(ids)s::uuid[]) AS g (id)"""

_EDGES = """
SELECT source, target, mentions FROM brain_edges
WHERE namespace_id = %(ns)s AND source = ANY(%(ids)s) AND deleted_at IS NULL AND mentions > 0"""

# An edge that somebody made says what they said, and one that somebody took out stays out.
_WRITE = """
INSERT INTO brain_edges AS e (namespace_id, source, target, label, note, status, role, mentions)
SELECT %(ns)s, g.source, g.target, %(label)s, '', '', '', g.mentions
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(counts)s::integer[]) AS g (source, target, mentions)
ORDER BY g.source, g.target
ON CONFLICT (namespace_id, source, target, label) DO UPDATE
SET mentions = excluded.mentions, revision = e.revision + 1, updated_at = now(), deleted_at = NULL
WHERE e.mentions = 0 OR (e.mentions <> excluded.mentions AND e.deleted_at IS NULL)
RETURNING e.key"""

_DROP = """
UPDATE brain_edges AS e SET mentions = 0, revision = e.revision + 1, updated_at = now(), deleted_at = now()
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[]) AS g (source, target)
WHERE e.namespace_id = %(ns)s AND e.source = g.source AND e.target = g.target AND e.label = %(label)s
  AND e.deleted_at IS NULL AND e.mentions > 0
RETURNING e.key"""

Pair = tuple[UUID, UUID]


@dataclass(slots=True)
class Text:
    """An object's text with that of its parts, as it was read.

    Args: version: row key and revision of each piece; terms: of all pieces.
    """

    version: list[tuple[int, int]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    terms: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Changed:
    """Row keys of the edges that a reading wrote or took out, and how many of each."""

    keys: tuple[int, ...] = ()
    linked: int = 0
    unlinked: int = 0


def to_read(conn: Connection, namespace_id: int, ids: Sequence[UUID]) -> set[UUID]:
    """Objects whose texts may mention others than before, since these objects have other names than before."""
    values = {"ns": namespace_id, "ids": list(ids), "most": MENTIONED_BY}
    return {row[0] for row in conn.execute(_TO_READ, values)}


def texts(conn: Connection, namespace_id: int, ids: Sequence[UUID]) -> dict[UUID, Text]:
    """The texts of live objects with their parts."""
    found: dict[UUID, Text] = {}
    for object_id, key, revision, head, content, terms in conn.execute(_TEXTS, {"ns": namespace_id, "ids": list(ids)}):
        text = found.setdefault(object_id, Text())
        text.version.append((int(key), int(revision)))
        text.pieces += [head, content]
        text.terms.update(terms)
    return found


def locked(conn: Connection, namespace_id: int, ids: Iterable[UUID]) -> set[UUID]:
    """Those of the objects that are there, which stay as they are until the transaction ends."""
    return {row[0] for row in conn.execute(_LOCK, {"ns": namespace_id, "ids": sorted(set(ids))})}


def versions(conn: Connection, namespace_id: int, ids: Sequence[UUID]) -> dict[UUID, list[tuple[int, int]]]:
    """What `Text.version` would be now."""
    found: dict[UUID, list[tuple[int, int]]] = {}
    for object_id, key, revision in conn.execute(_VERSIONS, {"ns": namespace_id, "ids": list(ids)}):
        found.setdefault(object_id, []).append((int(key), int(revision)))
    return found


def replace(conn: Connection, namespace_id: int, sources: Sequence[UUID], wanted: Mapping[Pair, int]) -> Changed:
    """Have the mentions of some sources be exactly these; to what is mentioned everywhere no edge is added.

    Args: sources: objects whose texts were read, or that are gone; wanted: how often, by source and target.
    """
    values = {"ns": namespace_id, "ids": list(sources)}
    known = {(source, target): int(n) for source, target, n in conn.execute(_EDGES, values)}
    stale = sorted(known.keys() - wanted.keys())
    fresh = _with_room(conn, namespace_id, sorted(wanted.keys() - known.keys()))
    fresh += [pair for pair, count in known.items() if pair in wanted and wanted[pair] != count]
    written = _write(conn, namespace_id, sorted(fresh), wanted)
    ends = {"sources": [source for source, _ in stale], "targets": [target for _, target in stale]}
    dropped = [int(r[0]) for r in conn.execute(_DROP, {**ends, "ns": namespace_id, "label": LABEL})] if stale else []
    return Changed((*written, *dropped), len(written), len(dropped))


def _with_room(conn: Connection, namespace_id: int, pairs: Sequence[Pair]) -> list[Pair]:
    targets = sorted({target for _, target in pairs})
    values = {"ns": namespace_id, "ids": targets, "most": MENTIONED_BY}
    room = {target: MENTIONED_BY - int(count) for target, count in conn.execute(_MENTIONED, values)} if targets else {}
    kept = []
    for source, target in pairs:
        if room[target] > 0:
            room[target] -= 1
            kept.append((source, target))
    return kept


def _write(conn: Connection, namespace_id: int, pairs: Sequence[Pair], counts: Mapping[Pair, int]) -> list[int]:
    if not pairs:
        return []
    values = {
        "ns": namespace_id,
        "label": LABEL,
        "sources": [source for source, _ in pairs],
        "targets": [target for _, target in pairs],
        "counts": [counts[pair] for pair in pairs],
    }
    return [int(row[0]) for row in conn.execute(_WRITE, values)]
