"""Nodes of PostgreSQL's graph from the rows beside it: no text leaves the server, and none is split into words again."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from isotherm.storage.postgres.pool import Connection

# Rows come in one order, so that two writers wait for each other instead of deadlocking. A tombstone says nothing else.
_TAKE = """
INSERT INTO graph_nodes AS n (
    namespace, id, revision, kind, title, terms, counts, length, vector, vector_model, deleted)
SELECT %(name)s, r.id, r.projected, CASE WHEN l.lives THEN r.kind ELSE '' END, CASE WHEN l.lives THEN r.title ELSE '' END,
       CASE WHEN l.lives THEN r.terms ELSE '{}' END, CASE WHEN l.lives THEN r.counts::integer[] ELSE '{}' END,
       CASE WHEN l.lives THEN r.length ELSE 0 END, CASE WHEN l.lives THEN r.vector END,
       CASE WHEN l.lives THEN r.vector_model END, NOT l.lives
FROM brain_objects AS r CROSS JOIN LATERAL (VALUES (r.deleted_at IS NULL)) AS l (lives)
WHERE r.namespace_id = %(ns)s AND r.id = ANY(%(ids)s) AND r.parent_id IS NULL AND (r.counts IS NOT NULL OR NOT l.lives)
ORDER BY r.id
ON CONFLICT (namespace, id) DO UPDATE
SET revision = excluded.revision, kind = excluded.kind, title = excluded.title, terms = excluded.terms,
    counts = excluded.counts, length = excluded.length, vector = excluded.vector, vector_model = excluded.vector_model,
    deleted = excluded.deleted
WHERE n.revision < excluded.revision"""

_LEFT = """
SELECT id FROM brain_objects
WHERE namespace_id = %(ns)s AND id = ANY(%(ids)s) AND parent_id IS NULL AND counts IS NULL AND deleted_at IS NULL"""


def take(conn: Connection, name: UUID, namespace_id: int, ids: Sequence[UUID]) -> tuple[int, list[UUID]]:
    """Write the nodes of objects at their newest revision.

    Returns: how many were newer than what was there, and the objects whose rows do not say the words of their nodes.
    """
    values = {"name": name, "ns": namespace_id, "ids": list(ids)}
    written = conn.execute(_TAKE, values).rowcount
    return written, [row[0] for row in conn.execute(_LEFT, values).fetchall()]
