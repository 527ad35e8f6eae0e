"""What a tiered memory must keep of a record wherever it is, for tests that do anything in any order and then compare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from hypothesis import strategies as st

from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.records import NewRecord, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isotherm.pipeline.tier.portable import PortableRecord
    from isotherm.pipeline.tier.store import StoredRecord

ROLES = st.sampled_from([None, "user", "tool"])
VERBS = st.sampled_from(["remember", "update", "recall", "pin", "unpin", "forget", "restore", "reconcile", "reconcile"])
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


def news(ids: st.SearchStrategy[str], texts: st.SearchStrategy[str], *tiers: Tier) -> st.SearchStrategy[NewRecord]:
    """Records to remember; their caller gives them a time."""
    return st.builds(
        NewRecord,
        id=ids,
        content=texts,
        created_at=st.just(datetime.min.replace(tzinfo=UTC)),
        role=ROLES,
        importance=IMPORTANCES,
        categories=CATEGORIES,
        metadata=METADATA,
        tier=st.sampled_from(tiers),
        pinned=st.sampled_from([False, False, False, True]),
    )


def one_of_each(ids: Sequence[str], texts: st.SearchStrategy[str], *tiers: Tier) -> st.SearchStrategy[list[NewRecord]]:
    """A record under each id, so that every tier is soon full."""
    return st.tuples(*(news(st.just(record_id), texts, *tiers) for record_id in ids)).map(list)


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


class Call(NamedTuple):
    """One of several calls at once; what it writes tells it from all others."""

    number: int
    verb: str
    id: str
    text: str

    @property
    def edit(self) -> RecordEdit:
        importance = self.number / 8
        return RecordEdit(self.text, "user", importance, (f"by {self.number}",), {"n": self.number})

    def new(self, at: datetime) -> NewRecord:
        edit = self.edit
        parts = (edit.role, edit.importance, edit.categories or (), edit.metadata or {})
        return NewRecord(self.id, self.text, at, *parts)


class Left(NamedTuple):
    """A record before several calls at once, and after them.

    Args: before, found: None where there was none; calls: those that name it; hits: accesses that were counted of it; falls:
        whether passes may have evicted it; at: the time with which the calls remember.
    """

    before: Kept | None
    found: Kept | None
    calls: Sequence[Call]
    hits: int
    falls: bool
    at: datetime

    def check(self) -> None:
        """No call undid another one, and each that must have had an effect has had it, whatever their order was."""
        verbs = {call.verb for call in self.calls}
        goes = self.falls or "forget" in verbs
        if self.found is None:
            assert goes or (self.before is None and "remember" not in verbs)
        elif self.before is None:
            assert "remember" in verbs
            assert self._told(self.found) in self._given(Kept.first(NewRecord("new", "", self.at)))
            assert (self.found.created_at, self.found.access_count <= self.hits) == (self.at, True)
        elif goes:
            assert self._told(self.found) in [self._told(self.before), *self._given(self.before)]
            assert self.found.created_at in {self.before.created_at, self.at}
            assert self.found.access_count <= self.before.access_count + self.hits
        else:
            self._check_stayed(self.before, self.found, verbs)

    def _check_stayed(self, before: Kept, found: Kept, verbs: set[str]) -> None:
        assert self._told(found) in (self._given(before) or [self._told(before)])
        assert (found.created_at, found.access_count) == (before.created_at, before.access_count + self.hits)
        if not {"pin", "unpin"} <= verbs:
            assert found.pinned == ("pin" in verbs or (before.pinned and "unpin" not in verbs))

    def _given(self, known: Kept) -> list[tuple[Any, ...]]:
        """What the calls write. What one of them writes is there whole or not at all."""
        writes = [call.edit for call in self.calls if call.verb in {"remember", "update"}]
        return [self._told(known.edited(edit)) for edit in writes]

    @staticmethod
    def _told(kept: Kept) -> tuple[Any, ...]:
        return kept.content, kept.role, kept.importance, kept.categories, kept.metadata


def may_fall(before: Kept | None, tier: Tier, calls: Sequence[Call], record_id: str) -> bool:
    """Whether passes among some calls can evict a record: each takes it one step down, and a pinned one none."""
    unpinned = before is None or not before.pinned or ("unpin", record_id) in {(c.verb, c.id) for c in calls}
    return unpinned and sum(call.verb == "reconcile" for call in calls) >= tier.rank
