"""A store whose bodies lie in other stores, by tier, while one index store keeps level and version of every record.

A body is written under a name of its own before the index names it, and removed after the index names another one. So a
record is in one tier at every moment, a reader follows the index to a body that is there, and what fails on the way
leaves the record as it was. A removal takes the bodies first and the row last, so that whoever repeats one that failed, in
whichever process, still finds what is left.

The rows of the index hold a pointer where their text would be, unless the index itself is named as the store of a tier's
bodies. A pointer names the body before its own too, which the next write or the removal tries again to remove; a row that
is no pointer cannot, so that a write of one whose old body stays is undone. Bodies of writes that lost their race while
their store was away are known to this process alone; `forget_all` removes those too, as it empties every store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from isotherm.pipeline.errors import IsothermError, RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.bodies import Body, BodyStore, LostBody, Pointer
from isotherm.pipeline.tier.outline import Outline
from isotherm.pipeline.tier.policy import Policy, reachable
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position, Store, StoredRecord, checked, checked_id, checked_limit, placed
from isotherm.pipeline.tier.stripes import Stripes, tries

_KEPT = 1_000
_TRIES = 3
# Bodies left over that a write tries to remove.
_PER_WRITE = 4


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
        self._leftover: deque[tuple[Namespace, str, Body]] = deque(maxlen=_KEPT)
        self._stripes = Stripes()

    @property
    def levels(self) -> frozenset[Tier]:
        """The tiers that have a store for their bodies."""
        return frozenset(self._bodies)

    def lost(self) -> tuple[LostBody, ...]:
        """Records whose bodies were found missing or changed, the newest 1,000.

        They are left out of every answer until they are remembered again.
        """
        return tuple(self._lost)

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id."""
        namespace, new = checked(namespace), self._placed(record)
        with self._stripes.of(namespace, new.id):
            while True:
                row = self._index.get(namespace, new.id)
                pointer = self._pointer(row)
                same = pointer is not None and pointer.body.is_of(new)
                stored = self._write(namespace, row, new, anew=same and self._is_lost(namespace, row))
                if stored is not None:
                    return stored

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record over one that was read, None when that has changed."""
        namespace, new = checked(namespace), self._placed(new)
        with self._stripes.of(namespace, new.id):
            row = self._index.get(namespace, new.id)
            lost = old is None and self._is_lost(namespace, row)
            return self._write(namespace, row, new, anew=lost) if lost or self._is(row, old) else None

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
        """Remove a body, then its record, whatever other processes make of that meanwhile."""
        namespace, wanted = checked(namespace), checked_id(record_id)
        with self._stripes.of(namespace, wanted):
            self._remove_leftovers(namespace, wanted)
            for _ in tries():
                row = self._index.get(namespace, wanted)
                if row is None:
                    return self._index.delete(namespace, wanted)
                self._remove(namespace, *self._bodies_of(row))
                # Not whatever is there by now: another process may have moved the record and named another body.
                if self._index.evict(namespace, row):
                    return True
        raise AssertionError("the tries end with an error")

    def forget_all(self, namespace: Namespace) -> int:
        """Empty all stores of a namespace, the index last.

        What another process writes meanwhile may lose its body; it is told as lost then, and can be remembered again.
        """
        namespace = checked(namespace)
        with self._stripes.all():
            for store in {id(store): store for store in self._bodies.values() if store is not self._index}.values():
                store.forget_all(namespace)
            gone = self._index.forget_all(namespace)
            for left in self._leftover.copy():
                if left[0] == namespace:
                    self._done_with(left)
        return gone

    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record that was read, and its body, False when it has changed."""
        namespace = checked(namespace)
        with self._stripes.of(namespace, old.id):
            row = self._index.get(namespace, old.id)
            if row is None or not self._is(row, old) or not self._index.evict(namespace, row):
                return False
            try:
                self._remove(namespace, *self._bodies_of(row))
            except IsothermError:
                if not self._swapped(namespace, None, row):
                    self._leave(namespace, old.id, self._body_of(row))
                raise
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

    def _write(
        self, namespace: Namespace, row: StoredRecord | None, new: StoredRecord, *, anew: bool
    ) -> StoredRecord | None:
        """Body, index, old body, in this order. None when the row has changed; then the old body stays.

        Args: anew: write a body also for the same text in the same tier.
        Raises: TransientError when the old body cannot be removed nor the row name it; then the row is again what it was.
        """
        old = self._body_of(row)
        slim, fresh = self._slimmed(namespace, row, new, anew=anew)
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
        if fresh is not None:
            self._drop(namespace, new.id, old)
        elif row is not None and old is not None and self._body_of(done) is None:
            self._remove_or_undo(namespace, row, done, old)
        self._found_again(namespace, new.id)
        self.collect(limit=_PER_WRITE)
        return replace(done, content=new.content)

    def _slimmed(
        self, namespace: Namespace, row: StoredRecord | None, new: StoredRecord, *, anew: bool
    ) -> tuple[StoredRecord, Body | None]:
        """The row of the index, and the body that was written for it: none for the same text in the same tier.

        Raises: TransientError when older bodies cannot be removed that the row could not name any more.
        """
        store = self._bodies[new.tier]
        before = self._pointer(row)
        if store is self._index:
            self._remove(namespace, *(before.old if before else ()))
            return new, None
        if before is not None and before.body.is_of(new) and not anew:
            return replace(new, content=before.written()), None
        body = Body.of(new)
        store.put(namespace, body.stored(new))
        old = () if before is None else (*self._stuck(namespace, before.old), before.body)
        return replace(new, content=Pointer(body, old).written()), body

    def _stuck(self, namespace: Namespace, bodies: Iterable[Body]) -> tuple[Body, ...]:
        """Remove bodies; returns those that cannot be removed now."""
        stuck = []
        for body in bodies:
            try:
                self._remove(namespace, body)
            except IsothermError:
                stuck.append(body)
        return tuple(stuck)

    def _pointer(self, row: StoredRecord | None) -> Pointer | None:
        if row is None or self._bodies.get(row.tier, self._index) is self._index:
            return None
        return Pointer.read(row)

    def _body_of(self, row: StoredRecord | None) -> Body | None:
        pointer = self._pointer(row)
        return None if pointer is None else pointer.body

    def _bodies_of(self, row: StoredRecord) -> tuple[Body, ...]:
        """All bodies that a row names, those that were to go first."""
        pointer = self._pointer(row)
        return () if pointer is None else (*pointer.old, pointer.body)

    def _outlined(self, row: StoredRecord) -> Outline:
        body = self._body_of(row)
        return Outline.of(row) if body is None else Outline(replace(row, content=""), body.size, body.sha256)

    def _is_lost(self, namespace: Namespace, row: StoredRecord | None) -> bool:
        """Whether the text of a row cannot be read any more. Raises: TransientError when its store is away."""
        return row is not None and self._whole(namespace, row) is None

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

    def _remove_or_undo(self, namespace: Namespace, row: StoredRecord, done: StoredRecord, old: Body) -> None:
        """Remove the old body of a row that has no place to name it; one that stays keeps its row.

        Raises: TransientError when it stays.
        """
        try:
            self._remove(namespace, old)
        except IsothermError:
            if not self._swapped(namespace, done, row):
                self._leave(namespace, row.id, old)
            raise

    def _swapped(self, namespace: Namespace, old: StoredRecord | None, row: StoredRecord) -> bool:
        """Make a row again what it was; False when that cannot be, or somebody has written it meanwhile."""
        try:
            return self._index.swap(namespace, old, row) is not None
        except IsothermError:
            return False

    def _remove(self, namespace: Namespace, *bodies: Body) -> None:
        """Remove bodies. Raises: what their stores raise."""
        for body in bodies:
            self._bodies[body.tier].delete(namespace, body.id)

    def _remove_leftovers(self, namespace: Namespace, record_id: str) -> None:
        """Remove what is left over of a record. Raises: as `_remove`."""
        for left in self._leftover.copy():
            if left[:2] == (namespace, record_id):
                self._remove(namespace, left[2])
                self._done_with(left)

    def _done_with(self, left: tuple[Namespace, str, Body]) -> None:
        with suppress(ValueError):  # somebody else was faster
            self._leftover.remove(left)

    def _drop(self, namespace: Namespace, record_id: str, body: Body | None) -> None:
        """Remove a body that no row names; one that cannot be removed now is left for later."""
        for stuck in self._stuck(namespace, () if body is None else (body,)):
            self._leave(namespace, record_id, stuck)

    def _leave(self, namespace: Namespace, record_id: str, body: Body | None) -> None:
        if body is not None:
            self._leftover.append((namespace, record_id, body))

    def _found_again(self, namespace: Namespace, record_id: str) -> None:
        """A record that has a body again is told anew should that be lost too."""
        for lost in self._lost.copy():
            if (lost.namespace, lost.record_id) == (namespace, record_id):
                with suppress(ValueError):  # somebody else was faster
                    self._lost.remove(lost)

    def _note(self, lost: LostBody) -> None:
        if lost in self._lost:
            return
        self._lost.append(lost)
        if self._report is not None:
            with suppress(Exception):
                self._report(lost)


def _refuse_gaps(index: Store, bodies: Mapping[Tier, BodyStore], needed: frozenset[Tier]) -> None:
    for tier in sorted(needed | set(bodies), key=lambda tier: -tier.rank):
        if tier not in bodies:
            raise RejectedError(f"{tier}: the policy needs it, but it has no store for its bodies")
        if tier not in bodies[tier].levels or tier not in index.levels:
            raise RejectedError(f"{tier}: a store given for it cannot keep it")
