"""What agents save by name: a discovery, a fact, a memory, each as an object of the kind that the host chose for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotherm.pipeline.brain.catalog import KindCatalog
from isotherm.pipeline.brain.errors import UnknownKindError, WritesUnsupportedError


@dataclass(frozen=True, slots=True)
class WriteKinds:
    """Kinds by what an agent saves; an empty one means that agents save nothing of it."""

    discovery: str = ""
    fact: str = ""
    memory: str = ""

    def checked(self, catalog: KindCatalog) -> WriteKinds:
        """Return them once they are known. Raises: UnknownKindError when the catalog lacks one."""
        for kind in (self.discovery, self.fact, self.memory):
            if kind and not catalog.empty and catalog.get(kind) is None:
                raise UnknownKindError(f"kind {kind} is not registered")
        return self

    def kind(self, what: str) -> str:
        """The kind of what is saved. Raises: WritesUnsupportedError when agents save nothing of it."""
        found: str = getattr(self, what)
        if not found:
            raise WritesUnsupportedError(f"agents save no {what} here: it has no kind")
        return found


@dataclass(frozen=True, slots=True)
class Saved:
    """What an agent wants saved: what a search will find it by."""

    title: str
    summary: str = ""
    content: str = ""
    properties: Mapping[str, Any] | None = None
