"""What is called just so, and what is called nearly so: names, ids and declared properties, each by an index."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.objects import canonical_uuid
from isotherm.storage.postgres.brain_filters import allowed
from isotherm.storage.postgres.brain_search import Found, Leg
from isotherm.storage.postgres.pool import Connection

# Share of the query's trigrams that a stretch of the text must have.
_ALIKE = 0.45
# Rows that are compared for their order, when more are alike.
_COMPARED = 500
# Queries longer than what is indexed of a text are no names.
_QUERY_CHARS = 256

_ROW = "r.key, r.id, r.parent_id, coalesce(r.source_time, r.updated_at) AS updated_at"

# One branch for each index.
_BY_TITLE = """SELECT {row} FROM brain_objects AS r WHERE {allowed}
    AND md5(lower(btrim(r.title))) = md5(lower(btrim(%(query)s)))"""
_BY_ID = "SELECT {row} FROM brain_objects AS r WHERE {allowed} AND r.id = %(id)s"
_BY_PROPERTY = "SELECT {row} FROM brain_objects AS r WHERE {allowed} AND ({test})"
_EQUAL = "SELECT DISTINCT key, id, parent_id, updated_at, 1.0 FROM ({branches}) AS e ORDER BY key LIMIT %(k)s"

_THRESHOLD = "SELECT set_config('pg_trgm.word_similarity_threshold', %(alike)s, true)"
# As the index has it (migration 0015).
_TEXT = r"(left(r.title, 96) || E'\n' || left(CASE WHEN r.summary = '' THEN r.content ELSE r.summary END, 40))"
# The index of trigrams knows namespaces only by their own type.
_SIMILAR = """
SELECT c.key, c.id, c.parent_id, c.updated_at, c.score, count(*) OVER () FROM (
    SELECT {row}, greatest(word_similarity(%(query)s, {text}), similarity(%(query)s, r.title)) AS score
    FROM brain_objects AS r WHERE r.namespace_id = %(ns)s::bigint AND {allowed} AND {text} %%> %(query)s LIMIT %(compared)s) AS c
ORDER BY c.score DESC, c.key LIMIT %(k)s"""


def equal(
    conn: Connection, namespace_id: int, query: str, filters: Filters, k: int, *, fields: Sequence[str] = ()
) -> tuple[Found, ...]:
    """Rows whose title is the query (whatever its case), whose id it is, or one of whose declared properties it is.

    Args: fields: names of the declared properties.
    """
    within, values = allowed(namespace_id, filters)
    branches = [_BY_TITLE]
    values |= {"query": query, "k": k}
    as_id = canonical_uuid(query)
    if as_id is not None:
        branches.append(_BY_ID)
        values["id"] = as_id
    alternatives = [{name: value} for name in sorted(set(fields)) for value in _values(query)]
    if alternatives:
        branches.append(_BY_PROPERTY)
        values |= {f"equal_{n}": Jsonb(one) for n, one in enumerate(alternatives)}
    test = " OR ".join(f"r.properties @> %(equal_{n})s" for n, _ in enumerate(alternatives))
    branched = " UNION ALL ".join(each.format(row=_ROW, allowed=within, test=test) for each in branches)
    rows = conn.execute(_EQUAL.format(branches=branched), values).fetchall()
    return tuple(Found(int(r[0]), r[1], r[2], r[3], float(r[4])) for r in rows)


def alike(conn: Connection, namespace_id: int, query: str, filters: Filters, k: int) -> Leg:
    """The k rows whose title, or the beginning of their summary or text, has a stretch most like the query."""
    if not query or len(query) > _QUERY_CHARS or k <= 0:
        return Leg()
    within, values = allowed(namespace_id, filters)
    conn.execute(_THRESHOLD, {"alike": str(_ALIKE)})
    sql = _SIMILAR.format(row=_ROW, allowed=within, text=_TEXT)
    rows = conn.execute(sql, {**values, "query": query, "k": k, "compared": _COMPARED}).fetchall()
    found = tuple(Found(int(r[0]), r[1], r[2], r[3], float(r[4])) for r in rows)
    return Leg(found, truncated=bool(rows) and rows[0][5] >= _COMPARED)


def _values(query: str) -> list[str | int | float]:
    """The query as text, and as the number that it spells."""
    found: list[str | int | float] = [query]
    try:
        number = int(query) if query.lstrip("+-").isdigit() else float(query)
    except ValueError:
        return found
    return [*found, number] if abs(number) < float("inf") else found
