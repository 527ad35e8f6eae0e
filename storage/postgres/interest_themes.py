"""Themes of a bank: groups of points with a name and a middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.identity import Bank
from isotherm.pipeline.interest.candidates import Vector
from isotherm.storage.postgres import interest_near
from isotherm.storage.postgres.interest_near import sent, written
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection

Vectors = NDArray[np.float32]

# Grouping all anew pays when so many points have come since the last time.
_ANEW_SHARE = 0.1
_ANEW_MIN = 5

_COUNTED = """
SELECT b.grouped_points, b.version, (SELECT count(*) FROM interest_points AS p
                                     WHERE p.bank_id = b.bank_id AND p.embedding_model = %(model)s)
FROM interest_banks AS b WHERE b.bank_id = %(bank)s"""
_NAMES = "SELECT id, name FROM interest_points WHERE bank_id = %(bank)s AND embedding_model = %(model)s"
_UNPLACED = """
SELECT id, halfvec_send(embedding) FROM interest_points
WHERE bank_id = %(bank)s AND placed_at IS NULL AND status <> 'archived' AND embedding_model = %(model)s
ORDER BY last_seen_at DESC, id LIMIT %(limit)s"""
_MIDDLES = (
    "SELECT id, halfvec_send(middle) FROM interest_themes WHERE bank_id = %(bank)s AND model = %(model)s ORDER BY id"
)
# What was forgotten, undone or resolved meanwhile makes what was read old; the next look sees it.
_SAME = "SELECT 1 FROM interest_banks WHERE bank_id = %(bank)s AND version = %(version)s FOR UPDATE"
_PLACED = """
UPDATE interest_points SET placed_at = now()
WHERE bank_id = %(bank)s AND placed_at IS NULL AND embedding IS NOT NULL AND (%(ids)s::uuid[] IS NULL OR id = ANY(%(ids)s))"""
_JOIN = """
INSERT INTO interest_theme_points (point_id, theme_id)
SELECT p.id, u.theme FROM unnest(%(points)s::uuid[], %(themes)s::uuid[]) AS u (point, theme)
JOIN interest_points AS p ON p.id = u.point AND p.bank_id = %(bank)s AND p.status <> 'archived'
ON CONFLICT (point_id) DO UPDATE SET theme_id = excluded.theme_id"""
_LEAVE = "DELETE FROM interest_theme_points WHERE point_id = ANY(%(ids)s)"
_ADD = """
INSERT INTO interest_themes (id, bank_id, name, middle, model)
SELECT u.id, %(bank)s, u.name, u.middle::halfvec, %(model)s
FROM unnest(%(ids)s::uuid[], %(names)s::text[], %(middles)s::text[]) AS u (id, name, middle)"""

_LISTED = """
SELECT t.id, t.name, count(p.id)::int, sum(p.seen_count)::int,
       (array_agg(p.name ORDER BY p.seen_count DESC, p.importance DESC, p.id))[1:%(shown)s]
FROM interest_themes AS t JOIN interest_theme_points AS m ON m.theme_id = t.id
JOIN interest_points AS p ON p.id = m.point_id AND p.bank_id = t.bank_id AND p.status <> 'archived'
WHERE {scope} GROUP BY t.id, t.name ORDER BY 4 DESC, 3 DESC, t.id LIMIT %(limit)s"""


@dataclass(frozen=True, slots=True)
class State:
    """How a bank's themes stand. Args: version: of the bank; anew: whether all of it should be grouped anew."""

    version: int
    anew: bool


@dataclass(frozen=True, slots=True)
class Theme:
    """A theme to write."""

    name: str
    middle: Vector
    members: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class ListedTheme:
    """A theme as it is shown. Args: points: how many; said: in how many sessions, summed; names: of the foremost."""

    id: UUID
    name: str
    points: int
    said: int
    names: tuple[str, ...]


def state(conn: Connection, bank_id: int, model: str) -> State:
    """Whether so many points have come since all were grouped that it pays to do that again."""
    values = {"bank": bank_id, "model": model}
    before, version, count = conn.execute(_COUNTED, values).fetchone() or (0, 0, 0)
    there = conn.execute(_MIDDLES + " LIMIT 1", values).fetchone() is not None
    new = int(count) - int(before)
    return State(int(version), new >= max(_ANEW_MIN, before * _ANEW_SHARE) or (before > 0 and not there))


def everything(
    conn: Connection, bank_id: int, model: str, dimension: int, limit: int
) -> tuple[list[UUID], list[str], Vectors]:
    """Ids, names and vectors of a bank's points, at most so many, by id. Returns: vectors of shape (points, dimension)."""
    ids: list[UUID] = []
    found: list[Vectors] = [np.zeros((0, dimension), np.float32)]
    for some, matrix in interest_near.every(conn, {"bank": bank_id, "model": model, "dimension": dimension}):
        ids += some.tolist()
        found.append(matrix)
        if len(ids) >= limit:
            break
    names: dict[UUID, str] = dict(conn.execute(_NAMES, {"bank": bank_id, "model": model}).fetchall())
    ids = ids[:limit]
    return ids, [names.get(one, "") for one in ids], np.concatenate(found)[:limit]


def unplaced(conn: Connection, bank_id: int, model: str, limit: int) -> list[tuple[UUID, Vector]]:
    """Points whose theme nobody looked for, those that were said last first."""
    rows = _sent(conn, _UNPLACED, {"bank": bank_id, "model": model, "limit": limit})
    return [(found, sent(vec)) for found, vec in rows]


def middles(conn: Connection, bank_id: int, model: str) -> list[tuple[UUID, Vector]]:
    """The middles of a bank's themes."""
    return [(found, sent(vec)) for found, vec in _sent(conn, _MIDDLES, {"bank": bank_id, "model": model})]


def _sent(conn: Connection, sql: str, values: Mapping[str, object]) -> list[tuple[UUID, bytes]]:
    with conn.cursor(binary=True) as cursor:
        return cursor.execute(sql, values).fetchall()


def place(conn: Connection, bank_id: int, version: int, found: Mapping[UUID, UUID | None]) -> bool:
    """Put points into themes, or say that they belong to none; without effect when the bank has another version by now."""
    if not _is_same(conn, bank_id, version):
        return False
    ids = list(found)
    conn.execute(_LEAVE, {"ids": ids})
    _join(conn, bank_id, [(point, theme) for point, theme in found.items() if theme is not None])
    conn.execute(_PLACED, {"bank": bank_id, "ids": ids})
    return True


def replace(conn: Connection, bank_id: int, version: int, found: Sequence[Theme], model: str, points: int) -> bool:
    """Write all themes of a bank anew; without effect when the bank has another version by now. Args: points: how many were grouped."""
    if not _is_same(conn, bank_id, version):
        return False
    conn.execute("DELETE FROM interest_themes WHERE bank_id = %s", (bank_id,))
    ids = [uuid4() for _ in found]
    names, written_middles = [theme.name for theme in found], [written(theme.middle) for theme in found]
    conn.execute(_ADD, {"bank": bank_id, "model": model, "ids": ids, "names": names, "middles": written_middles})
    _join(conn, bank_id, [(point, one) for one, theme in zip(ids, found, strict=True) for point in theme.members])
    conn.execute(_PLACED, {"bank": bank_id, "ids": None})
    conn.execute("UPDATE interest_banks SET grouped_points = %s WHERE bank_id = %s", (points, bank_id))
    return True


def _is_same(conn: Connection, bank_id: int, version: int) -> bool:
    return conn.execute(_SAME, {"bank": bank_id, "version": version}).fetchone() is not None


def _join(conn: Connection, bank_id: int, pairs: Sequence[tuple[UUID, UUID]]) -> None:
    conn.execute(_JOIN, {"bank": bank_id, "points": [p for p, _ in pairs], "themes": [t for _, t in pairs]})


def listed(conn: Connection, bank: Bank, limit: int, shown: int = 5) -> list[ListedTheme]:
    """Themes of a bank, what was said most often first."""
    scope, params = predicate(Scope(bank=bank), "t")
    rows = conn.execute(_LISTED.format(scope=scope), {**params, "limit": limit, "shown": shown}).fetchall()
    return [ListedTheme(found, name, n, said or 0, tuple(names)) for found, name, n, said, names in rows]
