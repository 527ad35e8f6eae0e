"""Objects read by id, always under their namespace: what indexes and the graph say is a hint until it was read here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from isotherm.pipeline.brain.objects import Object
from isotherm.storage.postgres.pool import Connection

_COLUMNS = """r.id, r.kind, r.title, r.summary, {content}, r.content_type, r.properties, r.parent_id, r.position, r.revision,
              r.vector_state, r.created_at, r.updated_at, r.source_time"""

_BY_ID = """
SELECT {columns} FROM brain_objects AS r
WHERE r.namespace_id = %(ns)s AND r.id = ANY(%(ids)s) AND r.deleted_at IS NULL"""

_PARTS = """
SELECT {columns} FROM brain_objects AS r
WHERE r.namespace_id = %(ns)s AND r.parent_id = %(parent)s AND r.deleted_at IS NULL
ORDER BY r.position, r.id LIMIT %(limit)s"""

_WITH_CONTENT = _COLUMNS.format(content="r.content")
_SLIM = _COLUMNS.format(content="NULL::text")

# The part itself, and as many on each side in the order of its parent's parts.
_SIBLINGS = """
WITH parts AS (
    SELECT r.id, row_number() OVER (ORDER BY r.position, r.id) AS place FROM brain_objects AS r
    WHERE r.namespace_id = %(ns)s AND r.parent_id = %(parent)s AND r.deleted_at IS NULL
)
SELECT p.id FROM parts AS p, (SELECT place FROM parts WHERE id = %(part)s) AS own
WHERE p.place BETWEEN own.place - %(radius)s AND own.place + %(radius)s ORDER BY p.place"""

# Objects, and parts by what evidence shows of them.
_SHOWN = f"""
SELECT false, {_SLIM} FROM brain_objects AS r
WHERE r.namespace_id = %(ns)s AND r.id = ANY(%(ids)s) AND r.deleted_at IS NULL
UNION ALL
SELECT true, r.id, NULL, r.title, NULL, left(r.content, %(chars)s), NULL, r.properties, NULL, r.position, NULL, NULL, NULL, NULL, NULL
FROM brain_objects AS r WHERE r.namespace_id = %(ns)s AND r.id = ANY(%(parts)s) AND r.deleted_at IS NULL"""


def by_id(conn: Connection, namespace_id: int, ids: Sequence[UUID], *, content: bool = False) -> dict[UUID, Object]:
    """Live objects of a namespace by id; those that are not there are left out.

    Args: content: whether to read the whole text too.
    """
    sql = _BY_ID.format(columns=_WITH_CONTENT if content else _SLIM)
    rows = conn.execute(sql, {"ns": namespace_id, "ids": list(ids)}).fetchall()
    return {row[0]: _object(row) for row in rows}


def parts(conn: Connection, namespace_id: int, parent: UUID, limit: int, *, content: bool = False) -> list[Object]:
    """The first parts of an object, by position (those without one last), then id."""
    sql = _PARTS.format(columns=_WITH_CONTENT if content else _SLIM)
    rows = conn.execute(sql, {"ns": namespace_id, "parent": parent, "limit": limit}).fetchall()
    return [_object(row) for row in rows]


def siblings(conn: Connection, namespace_id: int, parent: UUID, part: UUID, radius: int) -> list[UUID]:
    """Ids of the parts around one, itself included, in their order."""
    values = {"ns": namespace_id, "parent": parent, "part": part, "radius": radius}
    return [row[0] for row in conn.execute(_SIBLINGS, values).fetchall()]


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A part as evidence shows it; `text` is the beginning of its content."""

    title: str
    text: str
    position: int | None
    properties: Mapping[str, Any]


class Shown(NamedTuple):
    """Objects and parts by id, and the rows of each statement that went along."""

    objects: dict[UUID, Object]
    parts: dict[UUID, Glimpse]
    also: tuple[list[Any], ...]


def shown(
    conn: Connection,
    namespace_id: int,
    ids: Sequence[UUID],
    part_ids: Sequence[UUID],
    chars: int,
    also: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> Shown:
    """Objects without their content, and parts with the beginning of their text, in one round trip.

    Args: chars: read of each text, at most; also: statements that go along, with their parameters.
    """
    values = {"ns": namespace_id, "ids": list(ids), "parts": list(part_ids), "chars": chars}
    with conn.pipeline() if also else nullcontext():
        found = conn.execute(_SHOWN, values)
        more = [conn.execute(sql, values) for sql, values in also]
        rows = found.fetchall()
        along = tuple(cursor.fetchall() for cursor in more)
    objects = {row[1]: _object(row[1:]) for row in rows if not row[0]}
    return Shown(objects, {r[1]: Glimpse(r[3], r[5], r[9], r[7]) for r in rows if r[0]}, along)


def _object(row: Sequence[Any]) -> Object:
    (object_id, kind, title, summary, content, content_type, properties, parent_id, position, revision, vector_state,
     created_at, updated_at, source_time) = row  # fmt: skip
    return Object(
        id=object_id,
        kind=kind,
        title=title,
        summary=summary,
        content=content,
        content_type=content_type,
        properties=properties,
        parent_id=parent_id,
        position=position,
        revision=int(revision),
        vector_state=vector_state,
        created_at=created_at,
        updated_at=updated_at,
        source_time=source_time,
    )
