"""Edges: the truth about relations between objects; the graph is a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain.errors import LinkNotFirstClassError, LinkNotFoundError, ObjectNotFoundError
from isotherm.pipeline.brain.links import Edge, EdgeKey, EdgeMeta, NewLink
from isotherm.storage.postgres.pool import Connection

_ENDS = """
SELECT id, parent_id IS NOT NULL FROM brain_objects
WHERE namespace_id = %(ns)s AND id = ANY(%(ids)s) AND deleted_at IS NULL"""

_LINK = """
INSERT INTO brain_edges AS e (
    namespace_id, source, target, label, note, status, role, confidence, evidence_id, terms)
VALUES (%(ns)s, %(source)s, %(target)s, %(label)s, %(note)s, %(status)s, %(role)s, %(confidence)s, %(evidence)s,
        %(terms)s)
ON CONFLICT (namespace_id, source, target, label) DO UPDATE SET
    note = excluded.note, status = excluded.status, role = excluded.role, confidence = excluded.confidence,
    evidence_id = excluded.evidence_id, terms = excluded.terms, revision = e.revision + 1, updated_at = now(), deleted_at = NULL
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


# An edge whose note says none of the words may still have the whole query within a word.
_FIND = """
SELECT e.source, e.target, e.label, e.note, e.status, e.role, e.confidence, e.evidence_id, e.revision, e.created_at,
       e.updated_at, e.score
FROM (
    SELECT e.*, (SELECT count(*) FROM unnest(e.terms) AS t (term) WHERE t.term = ANY(%(terms)s))::float8
               / greatest(cardinality(%(terms)s::bigint[]), 1) AS score
    FROM brain_edges AS e WHERE e.namespace_id = %(ns)s::bigint AND e.deleted_at IS NULL AND lower(e.label) = %(label)s AND {test}
) AS e
WHERE (SELECT count(*) FROM brain_objects AS o WHERE o.namespace_id = %(ns)s AND o.id IN (e.source, e.target)
         AND o.deleted_at IS NULL) = 2
ORDER BY e.score DESC, e.updated_at DESC, e.key LIMIT %(limit)s"""
_BY_WORDS = "e.terms && %(terms)s::bigint[]"
_BY_TEXT = "NOT e.terms && %(terms)s::bigint[] AND strpos(lower(e.note), lower(%(query)s)) > 0"


@dataclass(frozen=True, slots=True)
class FoundEdge:
    """An edge, and the share of the query's words that its note has."""

    edge: Edge
    score: float


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
            "terms": text.terms(meta.note),
        },
    ).fetchone()
    assert row is not None  # noqa: S101 - an upsert without a condition answers with one row
    return int(row[0])


def unlink(conn: Connection, namespace_id: int, key: EdgeKey) -> int:
    """Take an edge out; returns its row key. Raises: RejectedError when there is no such edge."""
    row = conn.execute(_UNLINK, _identity(namespace_id, key)).fetchone()
    if row is None:
        raise LinkNotFoundError("no such edge in this namespace")
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


def find_links(
    conn: Connection, namespace_id: int, label: str, query: str, terms: Sequence[int], limit: int
) -> list[FoundEdge]:
    """Edges between live objects whose note has words of a query, or failing that the query itself.

    Args: label: as `fold_label` gives it; terms: of the query.
    Returns: more of the words first, then the newest.
    """
    values = {"ns": namespace_id, "label": label, "terms": list(terms), "limit": limit, "query": query.strip()}
    found = [_found(row) for row in conn.execute(_FIND.format(test=_BY_WORDS), values)] if terms else []
    if len(found) < limit:
        left = {**values, "limit": limit - len(found)}
        found += [_found(row) for row in conn.execute(_FIND.format(test=_BY_TEXT), left)]
    return found


def _found(row: tuple[Any, ...]) -> FoundEdge:
    source, target, label, note, status, role, confidence, evidence, revision, created_at, updated_at, score = row
    meta = EdgeMeta(note, status, role, confidence, evidence)
    return FoundEdge(Edge(EdgeKey(source, target, label), meta, revision, created_at, updated_at), float(score))


def _check_ends(conn: Connection, namespace_id: int, key: EdgeKey) -> None:
    values = {"ns": namespace_id, "ids": [key.source, key.target]}
    parts: dict[UUID, bool] = dict(conn.execute(_ENDS, values).fetchall())
    for name, end in (("source", key.source), ("target", key.target)):
        if end not in parts:
            raise ObjectNotFoundError(f"{name}: no object {end} in this namespace")
        if parts[end]:
            raise LinkNotFirstClassError(f"{name}: object {end} is a part; edges hold between whole objects")


def _identity(namespace_id: int, key: EdgeKey) -> dict[str, Any]:
    return {"ns": namespace_id, "source": key.source, "target": key.target, "label": key.label}
