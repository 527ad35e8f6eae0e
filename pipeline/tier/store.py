"""The port of tiered stores: what keeps whole records of one or more tiers, and the rules every such store follows.

- Every call names its namespace. A namespace or an id that cannot be stored is refused at the door, so that what differs
  for a caller differs for every store.
- `put` stores a record whatever is there; `swap` only over the record that the caller has read. So two writers never
  lose each other's change, and a record that was deleted meanwhile does not come back.
- A store of some tiers only refuses to be given others by `levels`; a store of one tier keeps everything as that tier.
- The newest access comes first in a list, ties by id; a page continues behind the last record of the one before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from isotherm.pipeline.clean import aware, clean_metadata, clean_name, clean_text, whole_limit
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.records import CATEGORIES_MAX, CONTENT_MAX_BYTES, Reason, Tier, importance_of

MOST_LISTED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A record with everything a tier keeps of it; `cleaned` makes it fit to store.

    Args: version: 1 at first, raised by every write, set by the store; value_log, heat_log: see
        `isotherm.pipeline.tier.heat`; moved_at, moved_from: the last change of tier; summary: what a cold record is found
        by when it is not its whole text.
    """

    id: str
    content: str
    created_at: datetime
    last_access_at: datetime
    tier: Tier = Tier.HOT
    version: int = 1
    role: str | None = None
    importance: float = 0.5
    categories: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pinned: bool = False
    access_count: int = 0
    heat_log: float | None = None
    value_log: float | None = None
    moved_at: datetime | None = None
    moved_from: Tier | None = None
    summary: str | None = None
    moved_reason: Reason | None = field(default=None, compare=False)

    @property
    def content_sha256(self) -> bytes:
        """SHA-256 of the content in UTF-8."""
        return hashlib.sha256(self.content.encode()).digest()

    @property
    def position(self) -> Position:
        """Where the record stands in the lists of its tier."""
        return Position(self.last_access_at, self.id)

    def cleaned(self) -> StoredRecord:
        """Return the record as every store keeps it, so that what is read equals what was written.

        Raises: RejectedError naming the field that cannot be stored.
        """
        if len(self.categories) > CATEGORIES_MAX:
            raise RejectedError(f"categories: {len(self.categories)} given, the limit is {CATEGORIES_MAX}")
        importance = importance_of(self.importance, None)
        accessed = aware(self.last_access_at, "last_access_at")
        return replace(
            self,
            id=clean_name(self.id, field="id"),
            content=clean_text(self.content, field="content", max_bytes=CONTENT_MAX_BYTES),
            created_at=aware(self.created_at, "created_at"),
            last_access_at=accessed,
            role=None if self.role is None else clean_text(self.role, field="role", max_bytes=512),
            importance=importance,
            categories=tuple(clean_text(name, field="categories", max_bytes=512) for name in self.categories),
            metadata=clean_metadata(self.metadata),
            value_log=heat.value_log(importance, accessed) if self.value_log is None else self.value_log,
            moved_at=None if self.moved_at is None else aware(self.moved_at, "moved_at"),
            summary=None
            if self.summary is None
            else clean_text(self.summary, field="summary", max_bytes=CONTENT_MAX_BYTES),
        )


class Position(NamedTuple):
    """Where a page of a list begins: behind the record with this access and id."""

    last_access_at: datetime
    id: str


class Store(Protocol):
    """Keeps records. Threads may share a store.

    Every method raises RejectedError for a namespace, an id or a record that cannot be stored, and TransientError when
    what is behind the store is out of reach.
    """

    @property
    def levels(self) -> frozenset[Tier]:
        """The tiers this store keeps."""
        ...

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id; returns it as stored, its version one above the one before."""
        ...

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record only if what is stored under its id still equals `old` (None: nothing is that `get` could answer).

        Returns: it as stored, or None when something else is there; then nothing was written.
        """
        ...

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The record of an id, whole; None when there is none."""
        ...

    def list(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[StoredRecord]:
        """A page of a tier, the newest access first, ties by id; empty for a tier the store does not keep.

        Args: limit: 1 to 1,000; after: the position of the last record of the page before.
        """
        ...

    def count(self, namespace: Namespace, tier: Tier) -> int:
        """How many records a tier has; 0 for a tier the store does not keep."""
        ...

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a record and what was set aside of it; False when there is none.

        Raises: TransientError while anything of it is left; the same call goes on.
        """
        ...

    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record only if what is stored under its id still equals `old`, however many processes write.

        Returns: False when something else is there, or nothing; then nothing was removed.
        """
        ...

    def forget_all(self, namespace: Namespace) -> int:
        """Remove all that is kept of a namespace, also what was set aside of it and what no record names any more.

        Returns: how many records there were. Raises: TransientError while anything of it is left; the same call goes on.
        """
        ...


def checked(namespace: Namespace) -> Namespace:
    """Return the namespace, whose parts may not have been checked. Raises RejectedError as `Namespace.of` does."""
    return Namespace.of(namespace.agent, namespace.session, namespace.scope, run=namespace.run, tenant=namespace.tenant)


def checked_id(record_id: str) -> str:
    """Return the id. Raises RejectedError when no store can keep it: blank, over 512 bytes, control characters."""
    return clean_name(record_id, field="id")


def checked_limit(limit: int) -> int:
    """Return the length of a page. Raises RejectedError when it is not from 1 to 1,000."""
    return whole_limit(limit, MOST_LISTED)


def placed(record: StoredRecord, levels: frozenset[Tier]) -> StoredRecord:
    """Return the record as a store of these tiers keeps it: a store of one tier keeps everything as that tier.

    Raises: RejectedError when the store has several tiers and this is none of them.
    """
    if len(levels) == 1:
        (only,) = levels
        record = replace(record, tier=only)
    if record.tier not in levels:
        raise RejectedError(f"this store keeps no {record.tier} records")
    return record if record.tier is Tier.COLD else replace(record, summary=None)
