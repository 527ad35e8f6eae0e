"""Edges between objects: what identifies one, what it may say, and which are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Self
from uuid import UUID

from isotherm.pipeline.brain.errors import LinkArgsError
from isotherm.pipeline.brain.objects import clean_id
from isotherm.pipeline.clean import clean_name, clean_text

LABEL_MAX_BYTES: Final = 128
_NIL: Final = UUID(int=0)
_NOTE_MAX_BYTES: Final = 4 * 1024
_CONTAINMENT: Final = frozenset({"contains", "part_of", "partof"})
_UPPER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def fold_label(label: str) -> str:
    """A label as it is compared: trimmed, ASCII letters in lower case, so that every store compares it the same way."""
    return label.strip().translate(_UPPER)


def is_containment(label: str) -> bool:
    """Whether a label means being a part, which `parent_id` says and no edge may."""
    return fold_label(label) in _CONTAINMENT


@dataclass(frozen=True, slots=True)
class EdgeKey:
    """What identifies an edge. The label keeps its case; two labels that differ only in case are two edges."""

    source: UUID
    target: UUID
    label: str

    def cleaned(self) -> Self:
        """Return the key as stored.

        Raises: LinkArgsError for a blank label, one that means containment, and an edge from an object to itself.
        """
        if _NIL in {self.source, self.target}:
            raise LinkArgsError("source and target: two ids other than nil are needed")
        clean_id(self.source, "source")
        clean_id(self.target, "target")
        if self.source == self.target:
            raise LinkArgsError("target: an object is not linked to itself")
        if not isinstance(self.label, str):
            raise LinkArgsError("label: text is needed")
        if not self.label.strip():
            raise LinkArgsError("label: must not be blank")
        label = clean_name(self.label.strip(), field="label", max_bytes=LABEL_MAX_BYTES)
        if is_containment(label):
            raise LinkArgsError("label: being a part is said by parent_id, not by an edge")
        return replace(self, label=label)


@dataclass(frozen=True, slots=True)
class EdgeMeta:
    """What an edge says beyond its label. confidence is in [0, 1], None when nobody gave one."""

    note: str = ""
    status: str = ""
    role: str = ""
    confidence: float | None = None
    evidence_id: UUID | None = None

    def cleaned(self) -> Self:
        """Return it as stored. Raises LinkArgsError or RejectedError naming the field that cannot be."""
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise LinkArgsError("confidence: a number in [0, 1] is needed")
        return replace(
            self,
            confidence=None if self.confidence is None else float(self.confidence),
            note=clean_text(self.note, field="note", max_bytes=_NOTE_MAX_BYTES),
            status=clean_text(self.status, field="status", max_bytes=LABEL_MAX_BYTES),
            role=clean_text(self.role, field="role", max_bytes=LABEL_MAX_BYTES),
            evidence_id=None if self.evidence_id is None else clean_id(self.evidence_id, "evidence_id"),
        )


@dataclass(frozen=True, slots=True)
class NewLink:
    """An edge to write."""

    key: EdgeKey
    meta: EdgeMeta

    def cleaned(self) -> Self:
        """Return it as stored. Raises: as its parts do."""
        return replace(self, key=self.key.cleaned(), meta=self.meta.cleaned())


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as stored."""

    key: EdgeKey
    meta: EdgeMeta
    revision: int
    created_at: datetime
    updated_at: datetime
