"""Filters as SQL: one meaning of types, inside every query that proposes rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from isotherm.pipeline.brain.filters import Filters, Range, listed

Values = dict[str, Any]

_ALLOWED = "r.namespace_id = %(ns)s AND r.deleted_at IS NULL"
_SIGNS: Final = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_MOMENTS: Final = {
    "created_after": "r.created_at >=",
    "created_before": "r.created_at <",
    "updated_after": "r.updated_at >=",
    "updated_before": "r.updated_at <",
}

# A part satisfies a filter by its parent too.
_PARENT = """EXISTS (SELECT 1 FROM brain_objects AS o
    WHERE o.namespace_id = %(ns)s AND o.id = r.parent_id AND o.deleted_at IS NULL AND {test})"""

# A value of another type is outside of every range; the guards keep the casts from failing on it.
_NUMBER = """CASE WHEN jsonb_typeof({{row}}.properties -> %({name})s) = 'number'
    THEN ({{row}}.properties ->> %({name})s)::numeric {sign} %({bound})s ELSE false END"""
_MOMENT = r"""CASE WHEN {{row}}.properties ->> %({name})s ~ '^\d{{{{4}}}}-\d{{{{2}}}}-\d{{{{2}}}}'
    AND pg_input_is_valid({{row}}.properties ->> %({name})s, 'timestamptz')
    THEN ({{row}}.properties ->> %({name})s)::timestamptz {sign} %({bound})s ELSE false END"""


def allowed(namespace_id: int, filters: Filters) -> tuple[str, Values]:
    """SQL that keeps live rows `r` of the namespace inside the filters, and its parameters."""
    values: Values = {"ns": namespace_id}
    tests = [_ALLOWED]
    if filters.scope_ids is not None:
        tests.append("(r.id = ANY(%(scope)s) OR r.parent_id = ANY(%(scope)s))")
        values["scope"] = list(filters.scope_ids)
    if filters.whole:
        tests.append("r.parent_id IS NULL")
    if filters.allowed:
        tests.append("r.kind = ANY(%(allowed_kinds)s)")
        values["allowed_kinds"] = list(filters.allowed)
    for name, moment in filters.moments.items():
        tests.append(f"{_MOMENTS[name]} %({name})s")
        values[name] = moment
    own = _named(filters, values) + _properties(filters, values)
    tests += [f"({test.format(row='r')} OR {_PARENT.format(test=test.format(row='o'))})" for test in own]
    return " AND ".join(tests), values


def _named(filters: Filters, values: Values) -> list[str]:
    found = []
    if filters.kinds:
        found.append("{row}.kind = ANY(%(kinds)s)")
        values["kinds"] = list(filters.kinds)
    if filters.titles:
        found.append("{row}.title = ANY(%(titles)s)")
        values["titles"] = list(filters.titles)
    return found


def _properties(filters: Filters, values: Values) -> list[str]:
    found = []
    for number, (name, wanted) in enumerate(sorted(filters.properties.items())):
        key = f"property_{number}"
        if isinstance(wanted, Range):
            values[key] = name
            found += [_bounded(key, operator, bound, values) for operator, bound in wanted.bounds.items()]
            continue
        names = [f"{key}_{n}" for n, _ in enumerate(listed(wanted))]
        values |= {each: Jsonb({name: one}) for each, one in zip(names, listed(wanted), strict=True)}
        found.append("(" + " OR ".join(f"{{row}}.properties @> %({each})s" for each in names) + ")")
    return found


def _bounded(key: str, operator: str, bound: float | datetime, values: Values) -> str:
    name = f"{key}_{operator}"
    values[name] = bound
    shape = _MOMENT if isinstance(bound, datetime) else _NUMBER
    return shape.format(name=key, sign=_SIGNS[operator], bound=name)
