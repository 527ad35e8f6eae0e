"""Edges: the truth about relations between objects; the graph is a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from isotherm.pipeline.brain.links import Edge, EdgeKey, EdgeMeta, NewLink
from isotherm.pipeline.errors import RejectedError
from isotherm.storage.postgres.pool import Connection

_ENDS = """
SELECT id, parent_id IS NOT NULL FROM brain_objects
WHERE namespace_id = %(ns)s AND id = ANY(%(ids)s) AND deleted_at IS NULL"""

_LINK = """
INSERT INTO brain_edges AS e (namespace_id, source, target, label, note, status, role, confidence, evidence_id)
VALUES (%(ns)s, %(source)s, %(target)s, %(label)s, %(note)s, %(status)s, %(role)s, %(confidence)s, %(evidence)s)
ON CONFLICT (namespace_id, source, target, label) DO UPDATE SET
    note = excluded.note, status = excluded.status, role = excluded.role, confidence = excluded.confidence,
    evidence_id = excluded.evidence_id, revision = e.revision + 1, updated_at = now(), deleted_at = NULL
RETURNING e.key"""

_UNLINK = """
UPDATE brain_edges SET deleted_at = now(), updated_at = now(), revision = revision + 1
WHERE namespace_id = %(ns)s AND source = %(source)s AND target = %(target)s AND label = %(label)s AND deleted_at IS NULL
RETURNING key"""

_EDGES = """
SELECT e.source, e.target, e.label, e.note, e.status, e.role, e.confidence, e.evidence_id, e.revision, e.created_at,
       e.updated_at
FROM unnest(%(sources)s::uuid[], %(targets)s::uuid[], %(labels)s::text[]) AS g (source, target, label)
JOIN brain_edges AS e ON e.source = g.source AND e.target = g.target AND e.label = g.label COLLATE "C"
WHERE e.namespace_id = %(ns)s AND e.deleted_at IS NULL"""


def link(conn: Connection, namespace_id: int, new: NewLink) -> int:
    """Write an edge, or what it says anew; returns its row key.

    Raises: RejectedError when an end is no live object of the namespace, or is a part.
    """
    _check_ends(conn, namespace_id, new.key)
    meta = new.meta
    row = conn.execute(
        _LINK,
        {
            **_identity(namespace_id, new.key),
            "note": meta.note,
            "status": meta.status,
            "role": meta.role,
            "confidence": meta.confidence,
            "evidence": meta.evidence_id,
        },
    ).fetchone()
    assert row is not None  # noqa: S101 - an upsert without a condition answers with one row
    return int(row[0])


def unlink(conn: Connection, namespace_id: int, key: EdgeKey) -> int:
    """Take an edge out; returns its row key. Raises: RejectedError when there is no such edge."""
    row = conn.execute(_UNLINK, _identity(namespace_id, key)).fetchone()
    if row is None:
        raise RejectedError("no such edge in this namespace")
    return int(row[0])


def edges(conn: Connection, namespace_id: int, keys: Sequence[EdgeKey]) -> dict[EdgeKey, Edge]:
    """Those of the edges that are there, read under the namespace."""
    values = {
        "ns": namespace_id,
        "sources": [key.source for key in keys],
        "targets": [key.target for key in keys],
        "labels": [key.label for key in keys],
    }
    found = {}
    for source, target, label, note, status, role, confidence, evidence, *rest in conn.execute(_EDGES, values):
        key = EdgeKey(source, target, label)
        found[key] = Edge(key, EdgeMeta(note, status, role, confidence, evidence), *rest)
    return found


def _check_ends(conn: Connection, namespace_id: int, key: EdgeKey) -> None:
    values = {"ns": namespace_id, "ids": [key.source, key.target]}
    parts: dict[UUID, bool] = dict(conn.execute(_ENDS, values).fetchall())
    for name, end in (("source", key.source), ("target", key.target)):
        if end not in parts:
            raise RejectedError(f"{name}: no object {end} in this namespace")
        if parts[end]:
            raise RejectedError(f"{name}: object {end} is a part; edges hold between whole objects")


def _identity(namespace_id: int, key: EdgeKey) -> dict[str, Any]:
    return {"ns": namespace_id, "source": key.source, "target": key.target, "label": key.label}
