"""A text file as it becomes an object with parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Final
from uuid import UUID

from isotherm.pipeline.brain.objects import NewObject, derived_id
from isotherm.pipeline.brain.promotion import snippet
from isotherm.pipeline.brain.split import split, title_of
from isotherm.pipeline.identity import Namespace

MARKDOWN: Final = frozenset({".md", ".markdown"})
TEXTS: Final = MARKDOWN | {".txt", ".text", ".rst"}


@dataclass(frozen=True, slots=True)
class Document:
    """A text to be stored.

    Args: id: of the object; name: of the file, shown and kept as a property; title: None means the first heading, else the
        name without its ending; source_time: when the text was written, None when nobody knows.
    """

    id: UUID
    name: str
    text: str
    kind: str = "document"
    title: str | None = None
    content_type: str = "text/plain"
    source_time: datetime | None = None


def document_id(namespace: Namespace, path: str) -> UUID:
    """The id of a file's object: the same path always means the same object."""
    return derived_id(namespace, "file", path)


def content_type_of(name: str) -> str:
    """What a file holds, by the ending of its name."""
    return "text/markdown" if PurePath(name).suffix.lower() in MARKDOWN else "text/plain"


def objects_of(namespace: Namespace, document: Document) -> list[NewObject]:
    """The object of a document, then its parts in order, each about one thing and short enough for a model."""
    sections = split(document.text)
    first = next((s.content for s in sections if s.content), "")
    chosen = document.title or title_of(document.text) or PurePath(document.name).stem
    whole = NewObject(
        document.id,
        document.kind,
        chosen,
        snippet(first),
        "",
        document.content_type,
        {"file": document.name},
        source_time=document.source_time,
    )
    parts = [
        NewObject(
            derived_id(namespace, "part", str(document.id), str(n)),
            "part",
            section.title.removeprefix(chosen).removeprefix(" > "),
            content=section.content,
            content_type=document.content_type,
            parent_id=document.id,
            position=n,
            source_time=document.source_time,
        )
        for n, section in enumerate(sections)
    ]
    return [whole, *parts]


def total_bytes(documents: Iterable[Document]) -> int:
    """Size of the texts in UTF-8."""
    return sum(len(document.text.encode("utf-8", "replace")) for document in documents)
