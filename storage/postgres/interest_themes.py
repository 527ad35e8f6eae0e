"""Themes of a bank: groups of points with a name and a middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from isotherm.pipeline.identity import Bank
from isotherm.pipeline.interest.candidates import Vector
from isotherm.storage.postgres.interest_history import read_vector
from isotherm.storage.postgres.interest_near import written
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection

# Grouping all anew pays when so many points have come since the last time.
_ANEW_SHARE = 0.1
_ANEW_MIN = 5

_POINTS = """
SELECT id, name, embedding, placed_at IS NOT NULL FROM interest_points
WHERE bank_id = %(bank)s AND status <> 'archived' AND embedding_model = %(model)s
ORDER BY placed_at IS NOT NULL, last_seen_at DESC, id LIMIT %(limit)s"""
_MIDDLES = "SELECT id, middle FROM interest_themes WHERE bank_id = %(bank)s AND model = %(model)s ORDER BY id"
_GROUPED = "SELECT grouped_points FROM interest_banks WHERE bank_id = %(bank)s"
_PLACE = """
UPDATE interest_points SET theme_id = %(theme)s, placed_at = now() WHERE bank_id = %(bank)s AND id = ANY(%(ids)s)"""
_ALL_PLACED = """
UPDATE interest_points SET placed_at = now() WHERE bank_id = %(bank)s AND placed_at IS NULL AND embedding IS NOT NULL"""
_ADD = """
INSERT INTO interest_themes (id, bank_id, name, middle, model)
VALUES (%(theme)s, %(bank)s, %(name)s, %(middle)s::halfvec, %(model)s)"""

_LISTED = """
SELECT t.id, t.name, count(p.id)::int, sum(p.seen_count)::int,
       (array_agg(p.name ORDER BY p.seen_count DESC, p.importance DESC, p.id))[1:%(shown)s]
FROM interest_themes AS t JOIN interest_points AS p ON p.theme_id = t.id AND p.status <> 'archived'
WHERE {scope} GROUP BY t.id, t.name ORDER BY 4 DESC, 3 DESC, t.id LIMIT %(limit)s"""


@dataclass(frozen=True, slots=True)
class ThemePoint:
    """A point as it is grouped. Args: placed: whether somebody looked for its theme already."""

    id: UUID
    name: str
    vec: Vector
    placed: bool


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


def state(
    conn: Connection, bank_id: int, model: str, limit: int
) -> tuple[list[ThemePoint], list[tuple[UUID, Vector]], bool]:
    """Points of a bank, those without a place first, its themes' middles, and whether all should be grouped anew."""
    values = {"bank": bank_id, "model": model, "limit": limit}
    rows = conn.execute(_POINTS, values).fetchall()
    points = [ThemePoint(found, name, read_vector(vec), bool(done)) for found, name, vec, done in rows]
    middles = [(found, read_vector(vec)) for found, vec in conn.execute(_MIDDLES, values).fetchall()]
    row = conn.execute(_GROUPED, values).fetchone()
    before = int(row[0]) if row else 0
    new = len(points) - before
    return points, middles, new >= max(_ANEW_MIN, before * _ANEW_SHARE) or (before > 0 and not middles)


def place(conn: Connection, bank_id: int, point: UUID, theme: UUID | None) -> None:
    """Put a point into a theme, or say that it belongs to none."""
    conn.execute(_PLACE, {"bank": bank_id, "ids": [point], "theme": theme})


def replace(conn: Connection, bank_id: int, found: Sequence[Theme], model: str, points: int) -> None:
    """Write all themes of a bank anew. Args: points: how many were grouped."""
    conn.execute("DELETE FROM interest_themes WHERE bank_id = %s", (bank_id,))
    for theme in found:
        values = {
            "bank": bank_id,
            "theme": uuid4(),
            "name": theme.name,
            "middle": written(theme.middle),
            "model": model,
        }
        conn.execute(_ADD, values)
        conn.execute(_PLACE, {**values, "ids": list(theme.members)})
    conn.execute(_ALL_PLACED, {"bank": bank_id})
    conn.execute("UPDATE interest_banks SET grouped_points = %s WHERE bank_id = %s", (points, bank_id))


def listed(conn: Connection, bank: Bank, limit: int, shown: int = 5) -> list[ListedTheme]:
    """Themes of a bank, what was said most often first."""
    scope, params = predicate(Scope(bank=bank), "t")
    rows = conn.execute(_LISTED.format(scope=scope), {**params, "limit": limit, "shown": shown}).fetchall()
    return [ListedTheme(found, name, n, said or 0, tuple(names)) for found, name, n, said, names in rows]
