"""What a put does to what is stored: decided here, from values, before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain.errors import RevisionConflictError
from isotherm.pipeline.brain.index_text import Described, text_of, text_sha256
from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.errors import RejectedError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """An object as its row says, with the words it is found by now (none when it is deleted)."""

    key: int
    id: UUID
    kind: str
    title: str
    summary: str
    content: str
    content_type: str
    properties: Mapping[str, Any]
    parent_id: UUID | None
    position: int | None
    revision: int
    index_sha256: bytes
    terms: Sequence[int]
    length: int
    vector_state: str
    deleted: bool
    source_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one index text: its hash, and the count of each term."""

    sha256: bytes
    counts: Mapping[int, int]

    @classmethod
    def of(cls, described: Described, parent_title: str | None) -> Words:
        """Count the words of an object."""
        found = text_of(described, parent_title)
        return cls(text_sha256(found), text.term_counts(found))

    @property
    def length(self) -> int:
        """How many words there are, repeated ones too."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Change:
    """An object to write; `stored` is its row until now, None when it is new."""

    new: NewObject
    stored: StoredRow | None
    words: Words

    @property
    def reworded(self) -> bool:
        """Whether its words in the index change."""
        return self.stored is None or self.stored.deleted or self.stored.index_sha256 != self.words.sha256


@dataclass(frozen=True, slots=True)
class Reworded:
    """A part that stays as it is, but is found by other words, since its parent has another title."""

    stored: StoredRow
    words: Words


@dataclass(frozen=True, slots=True)
class PutPlan:
    """What to write, what to index again, and which parts to take out.

    Args: unembedded: unchanged objects that still have no vector.
    """

    changes: tuple[Change, ...] = ()
    reworded: tuple[Reworded, ...] = ()
    removed: tuple[StoredRow, ...] = ()
    unembedded: tuple[StoredRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a write adds to the statistics of its namespace; `terms` counts documents."""

    documents: int = 0
    length: int = 0
    terms: Mapping[int, int] = field(default_factory=dict)


def retitled(new: Iterable[NewObject], stored: Mapping[UUID, StoredRow]) -> list[UUID]:
    """Ids of stored objects whose title changes, and with it the index text of their parts."""
    return [n.id for n in new if n.parent_id is None and n.id in stored and stored[n.id].title != n.title]


def plan_put(
    new: Sequence[NewObject],
    stored: Mapping[UUID, StoredRow],
    parts: Sequence[StoredRow] = (),
    *,
    replace_parts: bool = False,
    keep_times: bool = False,
) -> PutPlan:
    """Decide what a put does.

    Args: new: cleaned, each id once; stored: rows by id, of the new ones and of their parents, deleted ones too;
        parts: live parts of stored objects that get another title or, when parts are replaced, of all of `new`;
        replace_parts: parts of the given objects that are not given too are taken out; keep_times: an object of which only
        the source's time differs is left alone.
    Raises: RejectedError for a revision that is not the expected one, a parent that is missing, deleted or a part
        itself, and an object that would become a part or stop being one.
    """
    given = {n.id: n for n in new}
    titles = _titles(given, stored)
    changes, same = [], []
    for n in new:
        known = stored.get(n.id)
        _check(n, known, titles)
        if known is not None and _is_same(n, known, keep_times=keep_times):
            same.append(known)
        else:
            changes.append(Change(n, known, Words.of(n, titles.get(n.parent_id) if n.parent_id else None)))
    kept = {c.new.id for c in changes}
    others = [part for part in parts if part.id not in kept]
    removed = [part for part in others if replace_parts and part.id not in given]
    gone = {part.id for part in removed}
    reworded = [
        Reworded(part, words)
        for part in others
        if part.id not in gone
        and (words := Words.of(part, titles.get(part.parent_id) if part.parent_id else None)).sha256
        != part.index_sha256
    ]
    again = {r.stored.id for r in reworded}
    unembedded = [row for row in same if row.vector_state != "done" and row.id not in again]
    return PutPlan(tuple(changes), tuple(reworded), tuple(removed), tuple(unembedded))


def statistics(plan: PutPlan) -> Statistics:
    """What the statistics of the namespace gain and lose by a plan."""
    lost = [c.stored for c in plan.changes if c.stored is not None and c.reworded]
    lost += [r.stored for r in plan.reworded] + list(plan.removed)
    gained = [c.words for c in plan.changes if c.reworded] + [r.words for r in plan.reworded]
    terms: Counter[int] = Counter()
    for words in gained:
        terms.update(words.counts.keys())
    for row in lost:
        terms.subtract(row.terms)
    return Statistics(
        documents=sum(1 for w in gained if w.counts) - sum(1 for row in lost if row.terms),
        length=sum(w.length for w in gained) - sum(row.length for row in lost),
        terms={term: count for term, count in sorted(terms.items()) if count},
    )


def _titles(given: Mapping[UUID, NewObject], stored: Mapping[UUID, StoredRow]) -> dict[UUID, str]:
    """Titles by id of all that may be a parent: first-class and there once the put is done."""
    titles = {row.id: row.title for row in stored.values() if row.parent_id is None and not row.deleted}
    return titles | {n.id: n.title for n in given.values() if n.parent_id is None}


def _check(new: NewObject, known: StoredRow | None, titles: Mapping[UUID, str]) -> None:
    revision = 0 if known is None or known.deleted else known.revision
    if new.expected_revision is not None and new.expected_revision != revision:
        raise RevisionConflictError(f"object {new.id} has revision {revision}, not {new.expected_revision}")
    if new.parent_id is not None and new.parent_id not in titles:
        raise RejectedError(f"object {new.id}: its parent is no live object of this namespace, or a part itself")
    if known is not None and (known.parent_id is None) != (new.parent_id is None):
        raise RejectedError(f"object {new.id} would become a part or stop being one; give it another id")


def _is_same(new: NewObject, known: StoredRow, *, keep_times: bool) -> bool:
    names = ("kind", "title", "summary", "content", "content_type", "properties", "parent_id", "position")
    same = not known.deleted and all(getattr(new, name) == getattr(known, name) for name in names)
    return same and (keep_times or new.source_time == known.source_time)
