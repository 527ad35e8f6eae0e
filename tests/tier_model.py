"""What a tiered memory must keep of a record wherever it is, for tests that do anything in any order and then compare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from hypothesis import strategies as st

from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.records import NewRecord, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from isotherm.pipeline.tier.portable import PortableRecord
    from isotherm.pipeline.tier.store import StoredRecord

ROLES = st.sampled_from([None, "user", "tool"])
IMPORTANCES = st.sampled_from([None, 0.0, 0.3, 1.0])
CATEGORIES = st.sampled_from([(), ("sea",), ("sea", "é")])
METADATA = st.sampled_from([{}, {"n": 1}, {"searchable": "eelgrass meadow"}, {"deep": {"list": [1, None, "é"]}}])


@dataclass(frozen=True, slots=True)
class Kept:
    """The parts of a record that no move may touch."""

    content: str
    created_at: datetime
    role: str | None
    importance: float
    categories: tuple[str, ...]
    metadata: Mapping[str, Any]
    pinned: bool
    access_count: int = 0

    @classmethod
    def of(cls, record: StoredRecord | PortableRecord) -> Self:
        """What a store, or an export, has of a record."""
        return cls(
            record.content,
            record.created_at,
            record.role,
            record.importance,
            tuple(record.categories),
            dict(record.metadata),
            record.pinned,
            record.access_count,
        )

    @classmethod
    def first(cls, new: NewRecord) -> Self:
        """A record that is remembered where there was none."""
        return cls(new.content, new.created_at, new.role, new.weight, new.categories, dict(new.metadata), new.pinned)

    def again(self, new: NewRecord) -> Self:
        """The same id is remembered once more: its time, its use and a pin stay."""
        told = Kept.first(new)
        return replace(
            self,
            content=told.content,
            role=told.role,
            importance=told.importance,
            categories=told.categories,
            metadata=told.metadata,
            pinned=self.pinned or told.pinned,
        )

    def edited(self, edit: RecordEdit) -> Self:
        """Parts that are given replace the old ones."""
        names = ("content", "role", "importance", "categories", "metadata")
        return replace(self, **{name: getattr(edit, name) for name in names if getattr(edit, name) is not None})

    def touched(self, times: int) -> Self:
        """Accesses that were counted."""
        return replace(self, access_count=self.access_count + times)


def news(
    ids: st.SearchStrategy[str], texts: st.SearchStrategy[str], at: datetime, *tiers: Tier
) -> st.SearchStrategy[NewRecord]:
    """Records to remember. Args: at: the time of all of them, which a caller may replace."""
    return st.builds(
        NewRecord,
        id=ids,
        content=texts,
        created_at=st.just(at),
        role=ROLES,
        importance=IMPORTANCES,
        categories=CATEGORIES,
        metadata=METADATA,
        tier=st.sampled_from(tiers),
        pinned=st.booleans(),
    )


def edits(texts: st.SearchStrategy[str]) -> st.SearchStrategy[RecordEdit]:
    """Changes of one part of a record, or of several."""
    parts = st.fixed_dictionaries(
        {},
        optional={
            "content": texts,
            "role": st.just("assistant"),
            "importance": st.sampled_from([0.0, 0.8]),
            "categories": CATEGORIES,
            "metadata": METADATA,
        },
    )
    return parts.filter(bool).map(lambda given: RecordEdit(**given))
