"""The text by which an object is found: what its words are counted in and its vector is made from."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from isotherm.pipeline.hashing import digest


class Described(Protocol):
    """What an index text is made of."""

    @property
    def title(self) -> str:
        """Title."""

    @property
    def summary(self) -> str:
        """Summary."""

    @property
    def content(self) -> str:
        """Whole text."""

    @property
    def properties(self) -> Mapping[str, Any]:
        """JSON values by name."""

    @property
    def parent_id(self) -> UUID | None:
        """Set for a part."""


def index_text(title: str, summary: str, content: str) -> str:
    """Title, summary and content, trimmed, those that are not empty, one below the other."""
    return _joined(title, summary, content)


def index_text_with_parent(parent_title: str, title: str, summary: str, content: str) -> str:
    """The same below the parent's title, so that a part is found by what it is a part of."""
    return _joined(parent_title, index_text(title, summary, content))


def entity_index_text(title: str, summary: str, content: str, properties: Mapping[str, Any]) -> str:
    """Title and summary, one `key: value` line for each property in order of the keys, and the content.

    Only texts, numbers and truth values are shown; numbers as plain decimals, since nobody searches for `1.2e+06`.
    """
    lines = [f"{key}: {shown}" for key, value in sorted(properties.items()) if (shown := _shown(value))]
    return _joined(title, summary, "\n".join(lines), content)


def text_of(described: Described, parent_title: str | None) -> str:
    """The index text of an object, or of a part below its parent's title."""
    title, summary, content = described.title, described.summary, described.content
    if described.parent_id is None:
        return entity_index_text(title, summary, content, described.properties)
    return index_text_with_parent(parent_title or "", title, summary, content)


def text_sha256(text: str) -> bytes:
    """32 bytes that tell whether an index text changed."""
    return digest("index text", text)


def _joined(*parts: str) -> str:
    return "\n".join(trimmed for part in parts if (trimmed := part.strip()))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        plain = format(Decimal(repr(value)), "f")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    return ""
