"""What a search is limited to; the limits stand in the first query, so a small set gets its full answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from isotherm.pipeline.clean import clean_metadata, clean_name
from isotherm.pipeline.errors import RejectedError

_NIL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Filters:
    """All of these must hold. A part satisfies kinds and properties by itself or by its parent.

    Args: kinds: any of them, empty means any kind; properties: name to a value or a list of values, any of which may be
        there; scope_ids: only these objects and their parts; None means all, and none of them means nothing.
    """

    kinds: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    scope_ids: tuple[UUID, ...] | None = None

    @classmethod
    def of(
        cls,
        kinds: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
        scope_ids: Sequence[UUID] | None = None,
    ) -> Self:
        """Check every part.

        Raises: RejectedError for blank names, values that are no text, number or truth value, and empty lists of them.
        """
        given = clean_metadata(properties or {}, field="properties")
        for name, value in given.items():
            _check(clean_name(name, field="properties"), value)
        return cls(
            kinds=tuple(clean_name(kind.strip(), field="kind") for kind in kinds),
            properties=given,
            scope_ids=None if scope_ids is None else tuple(dict.fromkeys(i for i in scope_ids if i != _NIL)),
        )

    @property
    def nothing(self) -> bool:
        """Whether no object can satisfy them."""
        return self.scope_ids == ()

    @property
    def narrow(self) -> bool:
        """Whether they leave anything out."""
        return bool(self.kinds or self.properties) or self.scope_ids is not None

    def alternatives(self) -> list[list[dict[str, Any]]]:
        """For each property, the JSON objects of which one must be contained."""
        return [[{name: value} for value in _listed(given)] for name, given in sorted(self.properties.items())]


def _listed(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, list) else [value]


def _check(name: str, value: Any) -> None:  # noqa: ANN401 - any JSON value
    values = _listed(value)
    if not values or not all(isinstance(one, str | int | float) for one in values):
        raise RejectedError(f"properties: {name} needs a text, a number, a truth value or a list of them")
