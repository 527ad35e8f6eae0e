"""Changes of a stored record by its caller: what may change, made storable at the door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from isotherm.pipeline.clean import clean_metadata, clean_text
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.records import CATEGORIES_MAX, importance_of

_NAME_BYTES = 512


@dataclass(frozen=True, slots=True)
class RecordEdit:
    """New values of parts of a record; a part that is None stays as it is.

    Args: content: another text, which is searched and embedded anew; metadata, categories: replace the old ones whole;
        importance: in [0, 1].
    """

    content: str | None = None
    role: str | None = None
    importance: float | None = None
    categories: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] | None = None

    def cleaned(self, *, max_bytes: int, max_metadata: int) -> Self:
        """Return the edit as it will be stored.

        Raises: RejectedError naming the part that cannot be stored, or when no part is given.
        """
        if all(part is None for part in (self.content, self.role, self.importance, self.categories, self.metadata)):
            raise RejectedError("an update needs something to change")
        if self.categories is not None and len(self.categories) > CATEGORIES_MAX:
            raise RejectedError(f"categories: {len(self.categories)} given, the limit is {CATEGORIES_MAX}")
        return replace(
            self,
            content=_text(self.content, "content", max_bytes),
            role=_text(self.role, "role", _NAME_BYTES),
            importance=None if self.importance is None else importance_of(self.importance, None),
            categories=None
            if self.categories is None
            else tuple(clean_text(name, field="categories", max_bytes=_NAME_BYTES) for name in self.categories),
            metadata=None if self.metadata is None else clean_metadata(self.metadata, max_metadata),
        )


def _text(value: str | None, field: str, max_bytes: int) -> str | None:
    return None if value is None else clean_text(value, field=field, max_bytes=max_bytes)
