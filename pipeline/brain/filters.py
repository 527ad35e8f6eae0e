"""What a search is limited to; the limits stand in the first query, so a small set gets its full answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from isotherm.pipeline.brain.catalog import KindCatalog
from isotherm.pipeline.brain.errors import FilterError
from isotherm.pipeline.brain.kinds import FieldSpec, FieldType, instant, rfc3339
from isotherm.pipeline.clean import clean_metadata, clean_name
from isotherm.pipeline.errors import RejectedError

_NIL: Final = UUID(int=0)
OPERATORS: Final = ("gt", "gte", "lt", "lte")
_MOMENTS: Final = ("created_after", "created_before", "updated_after", "updated_before")


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a property, all numbers or all moments; a value of another type is outside of any.

    Args: bounds: by operator, one of gt, gte, lt, lte.
    """

    bounds: Mapping[str, float | datetime]

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> Self:
        """Check bounds. Raises: FilterError for other operators, no bound at all, or bounds of two types."""
        if not given or not set(given) <= set(OPERATORS):
            raise FilterError(f"properties: a range of {name} needs some of {', '.join(OPERATORS)}")
        bounds = {operator: _bound(name, value) for operator, value in sorted(given.items())}
        if len({isinstance(bound, datetime) for bound in bounds.values()}) > 1:
            raise FilterError(f"properties: a range of {name} is of numbers or of moments, not of both")
        return cls(bounds)

    @property
    def of_moments(self) -> bool:
        """Whether it bounds moments."""
        return isinstance(next(iter(self.bounds.values())), datetime)


@dataclass(frozen=True, slots=True)
class Filters:
    """All of these must hold. A part satisfies kinds, titles, properties and times by itself or by its parent.

    Args: kinds, titles: any of them, empty means any; properties: name to a value, a list of values any of which may be
        there, or a `Range`; scope_ids: only these objects and their parts; None means all, and none of them means
        nothing; created_after, updated_after: inclusive; created_before, updated_before: exclusive; allowed: kinds that
        a row itself must have, empty means any; whole: only objects that are no parts.
    """

    kinds: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    scope_ids: tuple[UUID, ...] | None = None
    titles: tuple[str, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    updated_after: datetime | None = None
    updated_before: datetime | None = None
    allowed: tuple[str, ...] = ()
    whole: bool = False

    @classmethod
    def of(
        cls,
        kinds: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
        scope_ids: Sequence[UUID] | None = None,
        *,
        titles: Sequence[str] = (),
        created_after: datetime | str | None = None,
        created_before: datetime | str | None = None,
        updated_after: datetime | str | None = None,
        updated_before: datetime | str | None = None,
    ) -> Self:
        """Check every part. Moments are datetimes with a zone, RFC 3339 text, or a date (midnight in UTC).

        Raises: FilterError for blank names, moments that are none, ranges that are none, values that are no text, number
        or truth value, and empty lists of them.
        """
        try:
            return cls(
                kinds=tuple(clean_name(kind.strip(), field="kind") for kind in _names(kinds, "kind")),
                properties={_name(name): _value(name, value) for name, value in (properties or {}).items()},
                scope_ids=None if scope_ids is None else tuple(dict.fromkeys(i for i in scope_ids if i != _NIL)),
                titles=tuple(_names(titles, "title")),
                created_after=_moment(created_after, "created_after"),
                created_before=_moment(created_before, "created_before"),
                updated_after=_moment(updated_after, "updated_after"),
                updated_before=_moment(updated_before, "updated_before"),
            )
        except FilterError:
            raise
        except RejectedError as error:
            raise FilterError(str(error)) from error

    @classmethod
    def parse(cls, given: Mapping[str, Any], scope_ids: Sequence[UUID] | None = None) -> Self:
        """Filters from one flat mapping, as agents write them: the core keys, and any other key is a property.

        Raises: FilterError as `of`.
        """
        named = dict(given)
        kinds, titles = (_listed_key(named, key) for key in ("kind", "title"))
        moments = {key: named.pop(key, None) for key in _MOMENTS}
        return cls.of(kinds, named, scope_ids, titles=titles, **moments)

    def against(self, catalog: KindCatalog) -> Self:
        """Return the filters as the catalog has them: only registered kinds, and datetime values in their one spelling.

        Raises: FilterError for kinds that are not registered, properties without a kind, properties that a named kind
        does not declare, and values of another type.
        """
        if catalog.empty:
            return self
        unknown = [kind for kind in self.kinds if catalog.get(kind) is None]
        if unknown:
            raise FilterError(f"kind {unknown[0]} is not registered")
        if self.properties and not self.kinds:
            raise FilterError("filters by property need a kind")
        properties = {name: self._typed(name, value, catalog) for name, value in sorted(self.properties.items())}
        return replace(self, properties=properties, allowed=() if self.kinds else tuple(catalog.names()))

    def _typed(self, name: str, value: Any, catalog: KindCatalog) -> Any:  # noqa: ANN401 - any JSON value
        typed = value
        for kind in self.kinds:
            spec = catalog.get(kind)
            declared = spec.field(name) if spec else None
            if declared is None:
                raise FilterError(f"kind {kind} does not declare the property {name}")
            typed = _of_type(declared, value)
        return typed

    @property
    def nothing(self) -> bool:
        """Whether no object can satisfy them."""
        return self.scope_ids == ()

    @property
    def narrow(self) -> bool:
        """Whether they leave anything out."""
        return self != Filters()

    @property
    def moments(self) -> dict[str, datetime]:
        """The bounds of creation and change that are set, by name."""
        found = {name: getattr(self, name) for name in _MOMENTS}
        return {name: value for name, value in found.items() if value is not None}


def listed(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    """The alternatives that a value of a filter names."""
    return value if isinstance(value, list) else [value]


def _listed_key(named: dict[str, Any], key: str) -> list[Any]:
    if key not in named:
        return []
    values = listed(named.pop(key))
    if not values:
        raise FilterError(f"{key}: an empty list matches nothing")
    return values


def _names(values: Sequence[str], name: str) -> Sequence[str]:
    if isinstance(values, str):
        return [values]
    anything: Sequence[object] = values
    if not all(isinstance(each, str) and each.strip() for each in anything):
        raise FilterError(f"{name}: text is needed, or a list of texts that are not blank")
    return values


def _name(name: object) -> str:
    return clean_name(name.strip() if isinstance(name, str) else name, field="properties")  # type: ignore[arg-type]


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, Range):
        return value
    if isinstance(value, Mapping):
        return Range.of(name, value)
    given = clean_metadata({"value": [_plain(one) for one in listed(value)]}, field="properties")["value"]
    if not given or not all(isinstance(one, str | int | float) for one in given):
        raise FilterError(f"properties: {name} needs a text, a number, a truth value or a list of them")
    return given if isinstance(value, list) else given[0]


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return rfc3339(value) if isinstance(value, datetime) and value.utcoffset() is not None else value


def _bound(name: str, value: object) -> float | datetime:
    moment = instant(value)
    if moment is not None:
        return moment
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise FilterError(f"properties: a range of {name} is of numbers or of moments")


def _moment(value: object, name: str) -> datetime | None:
    if value is None:
        return None
    moment = instant(value)
    if moment is None:
        raise FilterError(f"{name}: RFC3339 text with a zone or a date is needed")
    return moment


def _of_type(declared: FieldSpec, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, Range):
        fits = declared.type is (FieldType.DATETIME if value.of_moments else FieldType.NUMBER)
        if not fits:
            raise FilterError(f"properties: {declared.name} is a {declared.type} and has no such range")
        return value
    if isinstance(value, list) and "in" not in declared.operators:
        raise FilterError(f"properties: {declared.name} is a {declared.type} and takes no list")
    try:
        typed = [declared.stored(one) for one in listed(value)]
    except RejectedError as error:
        raise FilterError(f"properties: {error}") from error
    return typed if isinstance(value, list) else typed[0]
