"""Kinds of objects: what each is for, and which properties its objects have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Self

from isotherm.pipeline.brain.errors import KindError
from isotherm.pipeline.brain.objects import KIND_MAX_BYTES
from isotherm.pipeline.clean import clean_name, clean_text
from isotherm.pipeline.errors import RejectedError

# Names that a filter gives a meaning of their own.
CORE_KEYS: Final = frozenset({"kind", "title", "created_after", "created_before", "updated_after", "updated_before"})
# Names that are columns of an object: a property of that name would be taken for them.
RESERVED: Final = CORE_KEYS | {"id", "summary", "content", "content_type", "parent_id", "position", "revision"}
_FIELD = re.compile(r"[A-Za-z0-9_]{1,128}")
_DAY_CHARS: Final = 10
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[Tt ]\d{2}:\d{2}.*)?")
_TEXT_MAX_BYTES: Final = 4 * 1024


class FieldType(StrEnum):
    """What a property holds."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATETIME = "datetime"

    @property
    def operators(self) -> tuple[str, ...]:
        """What a filter may ask of it."""
        if self is FieldType.BOOLEAN:
            return ("eq",)
        return ("eq", "in") if self is FieldType.STRING else ("eq", "in", "gt", "gte", "lt", "lte")


def instant(value: object) -> datetime | None:
    """A moment in UTC from RFC 3339 text, a date (its midnight in UTC) or a datetime with a zone; None when it is none."""
    if isinstance(value, str) and _DATE.fullmatch(value.strip()):
        text = value.strip()
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            return None
        if value.tzinfo is None and len(text) == _DAY_CHARS:  # with a time of day, whose day it is would be a guess
            value = value.replace(tzinfo=UTC)
    if not isinstance(value, datetime) or value.utcoffset() is None:
        return None
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return None


def rfc3339(moment: datetime) -> str:
    """A moment as it is stored in a property: one spelling for each moment, so that equal ones are equal texts."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A property of a kind. `operators` follow from the type, whatever was given."""

    name: str
    type: FieldType
    description: str = ""
    required: bool = False
    examples: tuple[Any, ...] = ()

    @property
    def operators(self) -> tuple[str, ...]:
        """What a filter may ask of it."""
        return self.type.operators

    def normalized(self) -> Self:
        """Return it as registered. Raises: KindError naming what is wrong."""
        name = self.name.strip()
        if not name:
            raise KindError("a field needs a name")
        if name in RESERVED:
            raise KindError(f"field {name}: the name has a meaning of its own")
        if not _FIELD.fullmatch(name):
            raise KindError("a field's name has letters of ASCII, digits and underscores only, at most 128")
        try:
            kind_of_value = FieldType(self.type)
        except ValueError:
            raise KindError(f"field {name}: its type is one of {', '.join(FieldType)}") from None
        return replace(self, name=name, type=kind_of_value, description=self.description.strip())

    def stored(self, value: object) -> Any:  # noqa: ANN401 - any JSON value
        """The form in which a value of this field is stored.

        Raises: KindError naming the field and the type it wants, never the value.
        """
        if self.type is FieldType.DATETIME:
            moment = instant(value)
            if moment is None:
                raise KindError(f"{self.name}: want a datetime, as RFC3339 text with a zone or a date")
            return rfc3339(moment)
        if not self._fits(value):
            raise KindError(f"{self.name}: want {self.type}, not {type(value).__name__}")
        return value

    def _fits(self, value: object) -> bool:
        if self.type is FieldType.BOOLEAN:
            return isinstance(value, bool)
        if self.type is FieldType.NUMBER:
            return isinstance(value, int | float) and not isinstance(value, bool)
        return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A kind of objects.

    Args: is_parent, is_part: when just one of them is set, its objects must be whole, or parts; otherwise either will do.
    """

    kind: str
    description: str = ""
    is_parent: bool = False
    is_part: bool = False
    fields: tuple[FieldSpec, ...] = ()

    def field(self, name: str) -> FieldSpec | None:
        """The field of that name."""
        return next((each for each in self.fields if each.name == name), None)

    def normalized(self) -> Self:
        """Return it as registered. Raises: KindError for the first thing that is wrong."""
        if not self.kind.strip():
            raise KindError("a kind needs a name")
        try:
            kind = clean_name(self.kind.strip(), field="kind", max_bytes=KIND_MAX_BYTES)
            description = clean_text(self.description.strip(), field="description", max_bytes=_TEXT_MAX_BYTES)
        except RejectedError as error:
            raise KindError(str(error)) from error
        fields = tuple(each.normalized() for each in self.fields)
        names = [each.name for each in fields]
        if len(set(names)) != len(names):
            raise KindError(f"kind {kind}: two fields have one name")
        return replace(self, kind=kind, description=description, fields=fields)

    def to_json(self) -> dict[str, Any]:
        """As plain values, the way agents are shown it and it is stored."""
        return {
            "kind": self.kind,
            "description": self.description,
            "is_parent": self.is_parent,
            "is_part": self.is_part,
            "fields": [
                {
                    "name": each.name,
                    "type": each.type.value,
                    "description": each.description,
                    "required": each.required,
                    "operators": list(each.operators),
                    "examples": list(each.examples),
                }
                for each in self.fields
            ],
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote, or a person did. Raises: KindError for what is no kind."""
        if not isinstance(value.get("fields", []), list | tuple):
            raise KindError("fields: a list is needed")
        return cls(
            _text(value, "kind"),
            _text(value, "description"),
            _flag(value, "is_parent"),
            _flag(value, "is_part"),
            tuple(_field_of_json(each) for each in value.get("fields", [])),
        ).normalized()


@dataclass(frozen=True, slots=True)
class FilterUsage:
    """How an agent may use properties in filters."""

    tools: tuple[str, ...] = ("search", "find_exact", "find_objects")
    note: str = (
        "Use only declared keys; filters by property need a kind, and every named kind must declare the property. "
        f"Core keys: {', '.join(sorted(CORE_KEYS))}. Call schema first."
    )


@dataclass(frozen=True, slots=True)
class SchemaResult:
    """Kinds by name, and how to filter by their properties."""

    kinds: tuple[KindSpec, ...]
    filter_usage: FilterUsage = FilterUsage()


def normalized(specs: Iterable[KindSpec]) -> dict[str, KindSpec]:
    """Kinds by name, in its order. Raises: KindError as `KindSpec.normalized`, and for two of one name."""
    found: dict[str, KindSpec] = {}
    for spec in specs:
        checked = spec.normalized()
        if checked.kind in found:
            raise KindError(f"kind {checked.kind} is described twice")
        found[checked.kind] = checked
    return dict(sorted(found.items()))


def _field_of_json(value: object) -> FieldSpec:
    if not isinstance(value, Mapping):
        raise KindError("a field is a mapping")
    name, examples = _text(value, "name"), value.get("examples", [])
    if not value.get("type"):
        raise KindError(f"field {name}: its type is missing")
    if not isinstance(examples, list | tuple):
        raise KindError(f"field {name}: examples are a list")
    return FieldSpec(name, value["type"], _text(value, "description"), _flag(value, "required"), tuple(examples))


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name, "")
    if not isinstance(found, str):
        raise KindError(f"{name}: text is needed")
    return found


def _flag(value: Mapping[str, Any], name: str) -> bool:
    found = value.get(name, False)
    if not isinstance(found, bool):
        raise KindError(f"{name}: true or false is needed")
    return found
