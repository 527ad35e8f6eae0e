"""A store whose bodies lie in other stores, by tier, while one index store keeps level and version of every record.

A body is written under a name of its own before the index names it, and removed after the index names another one. So a
record is in one tier at every moment, a reader follows the index to a body that is there, and what fails on the way
leaves the record as it was. A body that could not be removed is remembered, and tried again at the next write.

The rows of the index hold a pointer where their text would be, unless the index itself is named as the store of a tier's
bodies. Within one process writes of a record wait for each other; a process that deletes a record while another one
updates it may leave a body behind that nothing names.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from isotherm.pipeline.errors import IsothermError, RejectedError
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.outline import Outline
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position, Store, StoredRecord, checked, checked_id, checked_limit, placed
from isotherm.pipeline.tier.stripes import Stripes

_KEPT = 1_000
_TRIES = 3
# Bodies left over that a write tries to remove.
_PER_WRITE = 4


class BodyStore(Protocol):
    """What a composite needs of the store of a tier's bodies; every `Store` is one."""

    @property
    def levels(self) -> frozenset[Tier]:
        """The tiers this store keeps."""
        ...

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a body as a record of its own id."""
        ...

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The body of an id."""
        ...

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a body; False when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class LostBody:
    """A record whose text cannot be read: its body is missing, or is not the one that was stored."""

    namespace: Namespace
    record_id: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class _Body:
    """Where a body is."""

    tier: Tier
    id: str
    sha256: str
    size: int


class CompositeStore:
    """Records of several tiers, each tier's bodies in a store of their own.

    Args: index: keeps a row for every record; bodies: by tier; the index itself may be among them; policy: who moves
        records here; starts: the tiers in which records are remembered; report: told of each lost body.
    Raises: RejectedError when the policy would need a tier that has no store for its bodies, or one that cannot keep it.
    """

    def __init__(
        self,
        index: Store,
        bodies: Mapping[Tier, BodyStore],
        policy: Policy,
        *,
        starts: Iterable[Tier] = (Tier.HOT,),
        report: Callable[[LostBody], None] | None = None,
    ) -> None:
        _refuse_gaps(index, bodies, reachable(policy, starts))
        self._index = index
        self._bodies = dict(bodies)
        self._report = report
        self._lost: deque[LostBody] = deque(maxlen=_KEPT)
        self._leftover: deque[tuple[Namespace, str, _Body]] = deque(maxlen=_KEPT)
        self._stripes = Stripes()

    @property
    def levels(self) -> frozenset[Tier]:
        """The tiers that have a store for their bodies."""
        return frozenset(self._bodies)

    def lost(self) -> tuple[LostBody, ...]:
        """Records whose bodies were found missing or changed, the newest 1,000; they are left out of every answer."""
        return tuple(self._lost)

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id."""
        namespace, new = checked(namespace), self._placed(record)
        with self._stripes.of(namespace, new.id):
            while True:
                stored = self._write(namespace, self._index.get(namespace, new.id), new)
                if stored is not None:
                    return stored

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record over one that was read, None when that has changed."""
        namespace, new = checked(namespace), self._placed(new)
        with self._stripes.of(namespace, new.id):
            row = self._index.get(namespace, new.id)
            return self._write(namespace, row, new) if self._is(row, old) else None

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The record of an id, None too when its body is lost."""
        namespace, wanted = checked(namespace), checked_id(record_id)
        row = self._index.get(namespace, wanted)
        return None if row is None else self._whole(namespace, row)

    def list(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[StoredRecord]:
        """A page of a tier, without records whose bodies are lost."""
        namespace, most = checked(namespace), checked_limit(limit)
        found: list[StoredRecord] = []
        while len(found) < most:
            rows = self._index.list(namespace, tier, most - len(found), after)
            if not rows:
                break
            read = (self._whole(namespace, row) for row in rows)
            found += [record for record in read if record is not None]
            after = rows[-1].position
        return found

    def outline(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[Outline]:
        """A page of a tier without its texts: no body is read."""
        rows = self._index.list(checked(namespace), tier, checked_limit(limit), after)
        return [self._outlined(row) for row in rows]

    def count(self, namespace: Namespace, tier: Tier) -> int:
        """How many records a tier has, those with a lost body too."""
        return self._index.count(namespace, tier)

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a record and its body."""
        namespace, wanted = checked(namespace), checked_id(record_id)
        with self._stripes.of(namespace, wanted):
            row = self._index.get(namespace, wanted)
            gone = self._index.delete(namespace, wanted)
            self._drop(namespace, wanted, self._body_of(row))
        return gone

    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record that was read, and its body, False when it has changed."""
        namespace = checked(namespace)
        with self._stripes.of(namespace, old.id):
            row = self._index.get(namespace, old.id)
            if row is None or not self._is(row, old) or not self._index.evict(namespace, row):
                return False
            self._drop(namespace, old.id, self._body_of(row))
        return True

    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace of the index. Raises: RejectedError when the index cannot tell."""
        listing = getattr(self._index, "namespaces", None)
        if listing is None:
            raise RejectedError("the index store cannot list its namespaces")
        found: Sequence[Namespace] = listing()
        return found

    def collect(self, limit: int = _KEPT) -> int:
        """Try to remove bodies that are left over, at most `limit`; returns how many there still are.

        A body that its row names is none of them: its write succeeded although it was reported to have failed.
        """
        for _ in range(min(limit, len(self._leftover))):
            namespace, record_id, body = self._leftover.popleft()
            try:
                row = self._index.get(namespace, record_id)
            except IsothermError:
                self._leave(namespace, record_id, body)
                continue
            if self._body_of(row) != body:
                self._drop(namespace, record_id, body)
        return len(self._leftover)

    def _placed(self, record: StoredRecord) -> StoredRecord:
        return placed(record.cleaned(), self.levels)

    def _write(self, namespace: Namespace, row: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Body, index, old body, in this order. None when the row has changed; then the old body stays."""
        old = self._body_of(row)
        slim, body = self._slimmed(namespace, old, new)
        fresh = body if body != old else None
        try:
            done = self._index.swap(namespace, row, slim)
        except BaseException:
            # The row may have been written all the same: only its text tells which of the two bodies is in use.
            for doubtful in {fresh, old} if fresh else ():
                self._leave(namespace, new.id, doubtful)
            raise
        if done is None:
            self._drop(namespace, new.id, fresh)
            return None
        if body != old:
            self._drop(namespace, new.id, old)
        self.collect(limit=_PER_WRITE)
        return replace(done, content=new.content)

    def _slimmed(self, namespace: Namespace, old: _Body | None, new: StoredRecord) -> tuple[StoredRecord, _Body | None]:
        """The row of the index, and the body it names: the old one when that is the same text in the same tier."""
        store = self._bodies[new.tier]
        if store is self._index:
            return new, None
        sha256 = new.content_sha256.hex()
        if old is not None and (old.tier, old.sha256) == (new.tier, sha256):
            body = old
        else:
            body = _Body(
                new.tier, digest("body", new.id, secrets.token_bytes(16)).hex(), sha256, len(new.content.encode())
            )
            store.put(
                namespace,
                StoredRecord(
                    id=body.id,
                    content=new.content,
                    created_at=new.created_at,
                    last_access_at=new.last_access_at,
                    tier=new.tier,
                ),
            )
        return replace(new, content=json.dumps([body.id, body.sha256, body.size])), body

    def _body_of(self, row: StoredRecord | None) -> _Body | None:
        if row is None or self._bodies.get(row.tier, self._index) is self._index:
            return None
        body_id, sha256, size = json.loads(row.content)
        return _Body(row.tier, body_id, sha256, size)

    def _outlined(self, row: StoredRecord) -> Outline:
        body = self._body_of(row)
        return Outline.of(row) if body is None else Outline(replace(row, content=""), body.size, body.sha256)

    def _is(self, row: StoredRecord | None, old: StoredRecord | None) -> bool:
        """Whether the row of the index is the one of this record."""
        body = self._body_of(row)
        if row is None or old is None or body is None:
            return row == old
        return body.sha256 == old.content_sha256.hex() and replace(row, content=old.content) == old

    def _whole(self, namespace: Namespace, row: StoredRecord) -> StoredRecord | None:
        """The row with its text; a body that is gone because the record moved meanwhile is looked for again."""
        current: StoredRecord | None = row
        for _ in range(_TRIES):
            if current is None:
                return None
            body = self._body_of(current)
            if body is None:
                return current
            found = self._bodies[body.tier].get(namespace, body.id)
            if found is not None and found.content_sha256.hex() == body.sha256:
                return replace(current, content=found.content)
            seen, current = current, self._index.get(namespace, row.id)
            if current == seen:
                self._note(LostBody(namespace, row.id, row.tier))
                return None
        return None

    def _drop(self, namespace: Namespace, record_id: str, body: _Body | None) -> None:
        """Remove a body that no row names; one that cannot be removed now is left for later."""
        if body is None:
            return
        try:
            self._bodies[body.tier].delete(namespace, body.id)
        except IsothermError:
            self._leave(namespace, record_id, body)

    def _leave(self, namespace: Namespace, record_id: str, body: _Body | None) -> None:
        if body is not None:
            self._leftover.append((namespace, record_id, body))

    def _note(self, lost: LostBody) -> None:
        if lost in self._lost:
            return
        self._lost.append(lost)
        if self._report is not None:
            with suppress(Exception):
                self._report(lost)


def reachable(policy: Policy, starts: Iterable[Tier] = (Tier.HOT,)) -> frozenset[Tier]:
    """The tiers in which records of a policy may come to be.

    Args: starts: where they are remembered.
    """
    found = set(starts)
    leaves_hot = policy.hot_capacity is not None or policy.hot_ttl is not None
    leaves_warm = policy.warm_capacity is not None or policy.warm_age is not None
    if Tier.HOT in found and leaves_hot:
        found.add(Tier.WARM)
    if Tier.COLD in found and policy.promote_access is not None:
        found.add(Tier.WARM)
    if Tier.WARM in found and leaves_warm:
        found.add(Tier.COLD)
    if Tier.WARM in found and policy.promote_access is not None:
        found.add(Tier.HOT)
    if Tier.HOT in found and leaves_hot:
        found.add(Tier.WARM)
    return frozenset(found)


def _refuse_gaps(index: Store, bodies: Mapping[Tier, BodyStore], needed: frozenset[Tier]) -> None:
    for tier in sorted(needed | set(bodies), key=lambda tier: -tier.rank):
        if tier not in bodies:
            raise RejectedError(f"{tier}: the policy needs it, but it has no store for its bodies")
        if tier not in bodies[tier].levels or tier not in index.levels:
            raise RejectedError(f"{tier}: a store given for it cannot keep it")
