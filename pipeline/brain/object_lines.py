"""JSON Lines of objects and links: one JSON object per line, `kind` for an object, `label` for a link."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from isotherm.pipeline.brain.kinds import instant
from isotherm.pipeline.brain.links import EdgeKey, EdgeMeta, NewLink
from isotherm.pipeline.brain.objects import NewObject, derived_id
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace

LINE_LIMIT: Final = 32 * 1024 * 1024
_NIL: Final = UUID(int=0)
_TEXTS: Final = ("kind", "title", "summary", "content", "content_type")
_OBJECT: Final = frozenset({*_TEXTS, "id", "properties", "parent_id", "position", "source_time"})
_LINK: Final = frozenset({"source", "target", "label", "note", "status", "role", "confidence", "evidence_id"})


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be stored: its number from 1, and why; the reason never repeats the line."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Numbered:
    """What a line holds, and its number from 1."""

    number: int
    value: NewObject | NewLink


def parse(lines: Iterable[bytes], namespace: Namespace, kind: str) -> Iterator[Numbered | BadLine]:
    """Parse lines; blank ones are passed by, and one that cannot be stored does not end it.

    Ids are UUIDs, or any other names: the same name always means the same object of the namespace. An object without an
    id gets one by its kind, title and place among the lines.

    Args: kind: of objects that name none.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield Numbered(number, _parsed(line, namespace, kind, number))
        except RejectedError as error:
            yield BadLine(number, str(error))


def _parsed(line: bytes, namespace: Namespace, kind: str, number: int) -> NewObject | NewLink:
    if len(line) > LINE_LIMIT:
        raise RejectedError(f"longer than {LINE_LIMIT} bytes")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise RejectedError("not a line of JSON") from None
    if not isinstance(value, dict):
        raise RejectedError("not a JSON object")
    return _link(value, namespace) if "label" in value else _object(value, namespace, kind, number)


def _object(value: Mapping[str, Any], namespace: Namespace, kind: str, number: int) -> NewObject:
    _check_names(value, _OBJECT)
    texts = {name: _text(value, name) for name in _TEXTS}
    position, own = value.get("position"), value.get("id")
    if position is not None and (isinstance(position, bool) or not isinstance(position, int)):
        raise RejectedError("position: a whole number is needed")
    new = NewObject(
        id=_NIL if own is None else _id(own, "id", namespace),
        kind=texts["kind"] or kind,
        title=texts["title"],
        summary=texts["summary"],
        content=texts["content"],
        content_type=texts["content_type"],
        properties=value.get("properties") or {},
        parent_id=None if value.get("parent_id") is None else _id(value["parent_id"], "parent_id", namespace),
        position=position,
        source_time=_moment(value.get("source_time")),
    )
    if own is None:
        new = replace(new, id=derived_id(namespace, "line", new.kind, new.title, str(number)))
    return new.cleaned()


def _link(value: Mapping[str, Any], namespace: Namespace) -> NewLink:
    _check_names(value, _LINK)
    source, target = (_id(value.get(name), name, namespace) for name in ("source", "target"))
    confidence, evidence = value.get("confidence"), value.get("evidence_id")
    if confidence is not None and (isinstance(confidence, bool) or not isinstance(confidence, int | float)):
        raise RejectedError("confidence: a number is needed")
    meta = EdgeMeta(
        note=_text(value, "note"),
        status=_text(value, "status"),
        role=_text(value, "role"),
        confidence=confidence,
        evidence_id=None if evidence is None else _id(evidence, "evidence_id", namespace),
    )
    return NewLink(EdgeKey(source, target, _text(value, "label")), meta).cleaned()


def _check_names(value: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := len(set(value) - known):
        raise RejectedError(f"{unknown} unknown fields; known are {', '.join(sorted(known))}")


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise RejectedError(f"{name}: text is needed")
    return found


def _moment(value: object) -> datetime | None:
    found = None if value is None else instant(value)
    if value is not None and found is None:
        raise RejectedError("source_time: RFC3339 text with a zone or a date is needed")
    return found


def _id(value: object, name: str, namespace: Namespace) -> UUID:
    if not isinstance(value, str) or not value.strip():
        raise RejectedError(f"{name}: an id is needed, as text")
    try:
        found = UUID(value)
    except ValueError:
        return derived_id(namespace, "name", value)
    # Other spellings of a UUID are names: only the usual one is surely meant as an id.
    return found if str(found) == value.lower() else derived_id(namespace, "name", value)
