"""Filters for objects in this process: what `isotherm.storage.postgres.brain_filters` asks in SQL, with one meaning."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from isotherm.pipeline.brain.filters import Filters, Range, listed
from isotherm.pipeline.brain.kinds import instant
from isotherm.pipeline.brain.objects import Object

_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def matches(filters: Filters, row: Object, parent: Object | None) -> bool:
    """Whether an object is inside the filters; a part satisfies kinds, titles and properties by its parent, too.

    Args: parent: of a part, when it is there.
    """
    if filters.scope_ids is not None and not {row.id, row.parent_id} & set(filters.scope_ids):
        return False
    if (filters.whole and row.is_part) or (filters.allowed and row.kind not in filters.allowed):
        return False
    if not _in_time(filters, row):
        return False
    either = [row] if parent is None else [row, parent]
    return all(any(test(each) for each in either) for test in _tests(filters))


def _in_time(filters: Filters, row: Object) -> bool:
    bounds = filters.moments
    for name, moment in ("created", row.created_at), ("updated", row.updated_at):
        after, before = bounds.get(f"{name}_after"), bounds.get(f"{name}_before")
        if (after is not None and moment < after) or (before is not None and moment >= before):
            return False
    return True


def _tests(filters: Filters) -> list[Callable[[Object], bool]]:
    """What a row or its parent must satisfy, each by itself."""
    tests: list[Callable[[Object], bool]] = []
    if filters.kinds:
        tests.append(lambda row: row.kind in filters.kinds)
    if filters.titles:
        tests.append(lambda row: row.title in filters.titles)
    for name, wanted in filters.properties.items():
        if isinstance(wanted, Range):
            tests += [_bounded(name, sign, bound) for sign, bound in wanted.bounds.items()]
        else:
            tests.append(_equal(name, listed(wanted)))
    return tests


def _equal(name: str, wanted: list[Any]) -> Callable[[Object], bool]:
    return lambda row: name in row.properties and any(same(row.properties[name], one) for one in wanted)


def same(value: object, wanted: object) -> bool:
    """Whether two JSON values are equal: numbers by their value, truth values only with truth values."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return value == wanted


def _bounded(name: str, sign: str, bound: float | datetime) -> Callable[[Object], bool]:
    def test(row: Object) -> bool:
        value: Any = row.properties.get(name)
        if isinstance(bound, datetime):
            value = instant(value) if isinstance(value, str) else None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            value = None
        return value is not None and _SIGNS[sign](value, bound)

    return test
