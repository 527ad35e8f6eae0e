"""What the knowledge base keeps: objects, their parts and the edges between objects, as they come in and as stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID, uuid5

from isotherm.pipeline.clean import clean_metadata, clean_name, clean_text
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace

CONTENT_MAX_BYTES: Final = 16 * 1024 * 1024
TITLE_MAX_BYTES: Final = 4 * 1024
SUMMARY_MAX_BYTES: Final = 64 * 1024
PROPERTIES_MAX_BYTES: Final = 64 * 1024
KIND_MAX_BYTES: Final = 128
SCOPE: Final = "knowledge"
# Parts that one call lists: unless it says otherwise, and at most.
PARTS: Final = 1_000
PARTS_MAX: Final = 100_000

_NIL: Final = UUID(int=0)
_POSITIONS: Final = range(-(2**31), 2**31)
# Fixed for ever: ids that were derived from it are stored.
_NAMESPACES: Final = UUID("6b0b5f6e-6a2b-5d39-9d0d-3c1f0e8e4a57")


def namespace_uuid(namespace: Namespace) -> UUID:
    """The id by which others know a namespace: a UUIDv5, different for different namespaces."""
    return uuid5(_NAMESPACES, namespace.key.hex())


def derived_id(namespace: Namespace, *parts: str) -> UUID:
    """An id that the same parts always give within a namespace, so that storing something twice stores it once."""
    return uuid5(namespace_uuid(namespace), "".join(f"{len(part)}:{part}" for part in parts))


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object to store; `cleaned` makes it fit.

    Args: id: unique in its namespace; kind: what it is, a name of the caller's; content_type: such as text/markdown;
        properties: JSON values by name; parent_id: set for a part of another object, which must not be a part itself;
        position: order among the parts of one parent; expected_revision: refuse unless the stored object has this
        revision, 0 when there must be none; None asks nothing; source_time: when what it says was so, by which its age is
        counted; None means the time of the write.
    """

    id: UUID
    kind: str
    title: str = ""
    summary: str = ""
    content: str = ""
    content_type: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    parent_id: UUID | None = None
    position: int | None = None
    expected_revision: int | None = None
    source_time: datetime | None = None

    def cleaned(self, *, max_bytes: int = CONTENT_MAX_BYTES) -> Self:
        """Return the object as it will be stored: text scrubbed, the kind trimmed, properties as plain JSON values.

        Raises: RejectedError naming the field that cannot be stored.
        """
        self._check_place()
        return replace(
            self,
            kind=clean_name(_text(self.kind, "kind").strip(), field="kind", max_bytes=KIND_MAX_BYTES),
            title=clean_text(self.title, field="title", max_bytes=TITLE_MAX_BYTES),
            summary=clean_text(self.summary, field="summary", max_bytes=SUMMARY_MAX_BYTES),
            content=clean_text(self.content, field="content", max_bytes=max_bytes),
            content_type=clean_text(self.content_type, field="content_type", max_bytes=KIND_MAX_BYTES),
            properties=clean_metadata(self.properties, PROPERTIES_MAX_BYTES, field="properties"),
        )

    def _check_place(self) -> None:
        clean_id(self.id, "id")
        if self.parent_id is not None:
            clean_id(self.parent_id, "parent_id")
            if self.parent_id == self.id:
                raise RejectedError("parent_id: an object is no part of itself")
        if self.position is not None and self.position not in _POSITIONS:
            raise RejectedError("position: a whole number of 32 bits is needed")
        if self.expected_revision is not None and self.expected_revision < 0:
            raise RejectedError("expected_revision: 0 or more is needed")
        if self.source_time is not None and self.source_time.utcoffset() is None:
            raise RejectedError("source_time: a moment with a zone is needed")


def clean_id(value: object, field_name: str) -> UUID:
    """Check an id. Raises RejectedError when it is none, or the nil UUID."""
    if not isinstance(value, UUID) or value == _NIL:
        raise RejectedError(f"{field_name}: a UUID other than nil is needed")
    return value


def canonical_uuid(text: str) -> UUID | None:
    """The id that a text is in its usual spelling; other spellings are names that look like ids."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text.lower() and found.int else None


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise RejectedError(f"{name}: text is needed, not {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """An object as stored.

    Args: content: None where it was not asked for; revision: raised by every change; vector_state: `pending` until its
        vector is made, then `done`; `failed` when the model refused the text, `none` where no model makes vectors.
    """

    id: UUID
    kind: str
    title: str
    summary: str
    content: str | None
    content_type: str
    properties: Mapping[str, Any]
    parent_id: UUID | None
    position: int | None
    revision: int
    vector_state: str
    created_at: datetime
    updated_at: datetime
    source_time: datetime | None = None

    @property
    def is_part(self) -> bool:
        """Whether it belongs to another object."""
        return self.parent_id is not None
