"""Tiered memory in this process, over any store: no worker, no broker, and the same rules as the pipeline's.

Reads never write: a recall counts what it found beside the records, and the next pass, or `apply_touches`, adds it. Every
write is a compare-and-swap of one record, so threads and processes that share a store lose none of each other's changes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from isotherm.pipeline.clean import METADATA_MAX_BYTES, aware
from isotherm.pipeline.errors import RejectedError, TransientError, VersionConflictError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import changes
from isotherm.pipeline.tier.answers import Recall
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.explaining import Explanation, explained
from isotherm.pipeline.tier.finding import MOST_COMPARED
from isotherm.pipeline.tier.held import SetAside
from isotherm.pipeline.tier.lines import exported, read_lines
from isotherm.pipeline.tier.moves import Moves
from isotherm.pipeline.tier.observers import MigrationObserver
from isotherm.pipeline.tier.outline import Outline, outlines, records
from isotherm.pipeline.tier.passing import Passing, PassReport
from isotherm.pipeline.tier.plan import MigrationPlan, Move
from isotherm.pipeline.tier.policy import Policy, refuse_unkept
from isotherm.pipeline.tier.ranking import Lexical
from isotherm.pipeline.tier.recalling import Recalling
from isotherm.pipeline.tier.records import CONTENT_MAX_BYTES, NewRecord, Reason, Record, Tier
from isotherm.pipeline.tier.store import Store, StoredRecord, checked, checked_id
from isotherm.pipeline.tier.summaries import ColdSummaryBackend, NoopColdSummary
from isotherm.pipeline.tier.touching import TouchMode
from isotherm.pipeline.tier.turns import Turns
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.pipeline.tier.writing import Writer, existing

_ID_BYTES = 8


@runtime_checkable
class NamespaceStore(Protocol):
    """A store that knows whose records it keeps."""

    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace that has records."""
        ...


@dataclass(frozen=True, slots=True)
class Receipt:
    """What `forget` removed: ids of records, and whether a look afterwards found any of them."""

    ids: tuple[str, ...]
    verified: bool


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Manager:
    """Remembers, recalls and moves records.

    Args: store: where they are; policy: when they move; weights: what counts in recall; lexical: how words are compared;
        observer: told of every move; summaries: what happens when a record goes cold; clock: the time, aware; max_pinned:
        records that may be pinned in one namespace, None for any number.
    Raises: RejectedError when the policy moves records into tiers that the store does not keep.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy | None = None,
        *,
        weights: RecallWeights | None = None,
        lexical: Lexical = Lexical.RARITY,
        observer: MigrationObserver | None = None,
        summaries: ColdSummaryBackend | None = None,
        clock: Callable[[], datetime] = _utc_now,
        max_pinned: int | None = None,
    ) -> None:
        self._store = store
        self._policy = policy or Policy()
        refuse_unkept(self._policy, store.levels)
        self._weights = weights or RecallWeights()
        self._summaries = summaries or NoopColdSummary()
        self._writer = Writer(store)
        self._recalling = Recalling(store, self._writer, self._summaries, lexical)
        self._clock = clock
        self._max_pinned = max_pinned
        self._moves = Moves(observer)
        self._passing = Passing(store, self._policy, self._summaries, self._writer, self._moves.add)
        self._turns = Turns()
        self._pins = threading.Lock()

    @property
    def policy(self) -> Policy:
        """When records move."""
        return self._policy

    def remember(self, namespace: Namespace, record: NewRecord) -> Record:
        """Store a record; one with a blank id gets a new one.

        The same id with the same text keeps its tier and its use, but a pin lifts it out of cold; another text replaces it.

        Returns: the record as stored. Raises: RejectedError for input that cannot be stored, or when too many would be
        pinned; TransientError when the store is out of reach.
        """
        owner, now, levels = checked(namespace), self._now(), self._store.levels
        given = (record if record.id.strip() else replace(record, id=secrets.token_hex(_ID_BYTES))).cleaned()
        with self._pinning(owner, given.id) if given.pinned else nullcontext():
            new = self._summarized(owner, changes.stored(given))

            def rule(known: StoredRecord | None) -> StoredRecord:
                return new if known is None else changes.remembered_again(known, new, now, levels)

            before, after = self._writer.change(owner, new.id, rule)
        if Tier.COLD in {new.tier, before and before.tier}:
            self._keep_summary(owner, new, after)
        same = before is not None and before.content == after.content
        self._note_move(owner, before, after, Reason.PIN if same else Reason.RESTORE, now)
        return self._shown(owner, after, now)

    def get(self, namespace: Namespace, record_id: str) -> Record:
        """One record with its whole text, cold or not. Raises: NotFoundError."""
        owner = checked(namespace)
        return self._shown(owner, self._found(owner, record_id), self._now())

    def update(
        self, namespace: Namespace, record_id: str, edit: RecordEdit, *, expected_version: int | None = None
    ) -> Record:
        """Change parts of a record. A cold one that gets another text is warm afterwards.

        Args: expected_version: the version the caller saw; None changes whatever is there.
        Raises: NotFoundError; VersionConflictError; RejectedError naming the part that cannot be stored.
        """
        owner, now = checked(namespace), self._now()
        wanted = edit.cleaned(max_bytes=CONTENT_MAX_BYTES, max_metadata=METADATA_MAX_BYTES)

        def rule(known: StoredRecord | None) -> StoredRecord:
            record = existing(known)
            if expected_version is not None and record.version != expected_version:
                raise VersionConflictError(record.version, expected_version)
            return changes.edited(record, wanted, now)

        before, after = self._writer.change(owner, checked_id(record_id), rule)
        self._note_move(owner, before, after, Reason.RESTORE, now)
        return self._shown(owner, after, now)

    def pin(self, namespace: Namespace, record_id: str) -> Record:
        """Keep a record at warm or hotter, untouched by passes; a cold one comes back with its text.

        Raises: NotFoundError; RejectedError when too many would be pinned.
        """
        owner, now, levels = checked(namespace), self._now(), self._store.levels
        with self._pinning(owner, record_id):
            before, after = self._writer.change(
                owner, checked_id(record_id), lambda known: changes.pinned(existing(known), now, levels)
            )
        self._note_move(owner, before, after, Reason.PIN, now)
        return self._shown(owner, after, now)

    def unpin(self, namespace: Namespace, record_id: str) -> Record:
        """Let passes move a record again. Raises: NotFoundError."""
        owner = checked(namespace)
        _, after = self._writer.change(
            owner, checked_id(record_id), lambda known: replace(existing(known), pinned=False)
        )
        return self._shown(owner, after, self._now())

    def restore(self, namespace: Namespace, record_id: str) -> Record:
        """Bring a cold record back to warm, as it was byte for byte; another one stays as it is. Raises: NotFoundError."""
        owner, now = checked(namespace), self._now()

        def rule(known: StoredRecord | None) -> StoredRecord:
            record = existing(known)
            if record.tier is not Tier.COLD:
                return record
            warm = changes.moved(record, Tier.WARM, now, Reason.RESTORE)
            # Asking for it is using it: it must not be idle at once.
            return replace(warm, last_access_at=max(warm.last_access_at, now))

        before, after = self._writer.change(owner, checked_id(record_id), rule)
        self._note_move(owner, before, after, Reason.RESTORE, now)
        return self._shown(owner, after, now)

    def forget(self, namespace: Namespace, ids: Sequence[str] | None = None) -> Receipt:
        """Remove records for good: from the store, the index of summaries, waiting touches and the log of moves.

        Args: ids: None forgets the whole namespace, with what its stores have set aside and what no record names any more;
            an id that is not there is no error.
        Raises: TransientError when something is out of reach; what was removed before stays removed, and the same call
            goes on with what is left.
        """
        owner = checked(namespace)
        if ids is None:
            return self._forget_all(owner)
        wanted = [checked_id(record_id) for record_id in dict.fromkeys(ids)]
        gone = [record_id for record_id in wanted if self._forget(owner, record_id)]
        self._recalling.touches.drop(owner, wanted)
        self._moves.drop(owner, set(wanted))
        return Receipt(tuple(gone), verified=all(self._store.get(owner, record_id) is None for record_id in wanted))

    def _forget_all(self, owner: Namespace) -> Receipt:
        wanted = self._ids(owner)
        for record_id in wanted:  # first, since only the records tell of their summaries
            self._summaries.delete(owner, record_id)
        self._store.forget_all(owner)
        self._passing.held.keep_only(owner, ())
        self._recalling.touches.take(owner)
        self._moves.drop(owner)
        left = set(self._ids(owner))
        return Receipt(tuple(record_id for record_id in wanted if record_id not in left), verified=not left)

    def _forget(self, owner: Namespace, record_id: str) -> bool:
        """Forget one record, its summary first."""
        self._summaries.delete(owner, record_id)
        removed = self._writer.remove(owner, record_id)
        self._passing.held.drop(owner, record_id)
        return removed

    def recall(
        self,
        namespace: Namespace,
        query: str,
        budget: RecallBudget | None = None,
        *,
        weights: RecallWeights | None = None,
        touch: TouchMode = TouchMode.BATCHED,
    ) -> Recall:
        """The records that matter most for a query, in chronological order; cold ones by their summaries.

        Moves nothing and asks no chat model. A query counts as an access of what it found; a blank one finds the newest and
        counts nothing. What fails beside the store's own answer leaves it standing and is named in `degraded`.

        Args: weights: None means those of this manager. Raises: TransientError when the store is out of reach.
        """
        wanted = budget or RecallBudget()
        return self._recalling.recall(checked(namespace), query, wanted, weights or self._weights, touch, self._now())

    def apply_touches(self, namespace: Namespace | None = None) -> int:
        """Add counted accesses to their records; returns how many records that were. None means every namespace.

        Raises: TransientError when the store is out of reach; what was not added waits on.
        """
        owners = self._recalling.touches.namespaces() if namespace is None else [checked(namespace)]
        return sum(self._recalling.apply(owner) for owner in owners)

    def reconcile(self, namespace: Namespace, now: datetime | None = None) -> PassReport:
        """Run one migration pass; waiting touches are added first.

        While one runs, the next one waits for it; those asked for meanwhile leave it to the one that waits.

        Args: now: what ages are measured against, aware; None means the clock's time.
        Raises: TransientError when the store is out of reach.
        """
        owner = checked(namespace)
        moment = self._now() if now is None else aware(now, "now")
        wanted = self._turns.begin(owner, moment)
        if wanted is None:
            return PassReport(coalesced=True)
        try:
            # Accesses that cannot be added yet wait for the next pass; they hold up nothing.
            with suppress(TransientError):
                self.apply_touches(owner)
            return self._passing.run(owner, wanted)
        finally:
            self._turns.end(owner)

    def plan(self, namespace: Namespace, now: datetime | None = None) -> MigrationPlan:
        """What a pass would move now; moves nothing. Raises: TransientError when the store is out of reach."""
        moment = self._now() if now is None else aware(now, "now")
        return self._passing.plan(checked(namespace), moment)

    def set_aside(self, namespace: Namespace) -> Sequence[SetAside]:
        """Records that passes leave alone for now, with the reason."""
        return self._passing.held.listed(checked(namespace))

    def explain(self, namespace: Namespace, record_id: str, query: str | None = None) -> Explanation:
        """Why a record is where it is, what the next pass would do with it, and how a query rates it. Raises: NotFoundError."""
        owner, now = checked(namespace), self._now()
        record = self._found(owner, record_id)
        planned = [move for move in self._passing.plan(owner, now).moves if move.id == record.id]
        all_of_it = RecallBudget(total=MOST_COMPARED)
        answer = None if query is None else self.recall(owner, query, all_of_it, touch=TouchMode.OFF)
        return explained(
            self._shown(owner, record, now), self._policy, self._moves.of(owner, record.id), planned, answer
        )

    def list_all(self, namespace: Namespace) -> Iterator[Record]:
        """Every record with its text, hot first, each tier from the newest access on; each record once."""
        owner, now = checked(namespace), self._now()
        for record in records(self._store, owner):
            yield self._shown(owner, record, now)

    def export(self, namespace: Namespace) -> Iterator[str]:
        """Every record as a line of JSON with its end, in order of (created_at, id), as the pipeline's exports are."""
        return exported(self._store, checked(namespace))

    def import_lines(self, lines: Iterable[str], *, overwrite: bool = False) -> int:
        """Store exported records, each in the namespace it names; returns how many. One that is there stays as it is.

        Args: overwrite: store each over whatever has its id.
        Raises: RejectedError naming the line that is no record; those before it are stored.
        """
        return sum(self._imported(owner, record, overwrite=overwrite) for owner, record in read_lines(lines))

    def _imported(self, owner: Namespace, record: StoredRecord, *, overwrite: bool) -> bool:
        before, after = self._writer.change(
            owner, record.id, lambda known: record if known is None or overwrite else known
        )
        if before is not None and not overwrite:
            return False
        if not self._index_summary(owner, after) and before is not None and before.tier is Tier.COLD:
            self._passing.forget_summary(owner, after.id)
        self._note_move(owner, before, after, Reason.RESTORE, self._now())
        return True

    def index_summaries(self, namespace: Namespace) -> int:
        """Index the summaries of all cold records anew, for an index that lost them; returns how many.

        Raises: what the index raises.
        """
        owner = checked(namespace)
        cold = (outline.record for outline in outlines(self._store, owner, (Tier.COLD,)))
        return sum(self._index_summary(owner, record) for record in cold)

    def namespaces(self, tenant: str | None = None) -> list[Namespace]:
        """The namespaces of a tenant that have records. Raises: RejectedError when the store cannot tell."""
        if not isinstance(self._store, NamespaceStore):
            raise RejectedError("this store cannot list its namespaces")
        return [owner for owner in self._store.namespaces() if owner.tenant == tenant]

    def _now(self) -> datetime:
        return aware(self._clock(), "clock")

    def _shown(self, owner: Namespace, record: StoredRecord, now: datetime) -> Record:
        return changes.shown(owner, Outline.of(record), now, whole=True)

    def _ids(self, owner: Namespace) -> list[str]:
        return sorted(outline.record.id for outline in outlines(self._store, owner))

    def _found(self, owner: Namespace, record_id: str) -> StoredRecord:
        return existing(self._store.get(owner, checked_id(record_id)))

    def _summarized(self, owner: Namespace, new: StoredRecord) -> StoredRecord:
        """A record that is remembered as cold gets its summary like any other; without one it starts warm."""
        if new.tier is not Tier.COLD:
            return new
        try:
            return replace(new, summary=self._summaries.archive(owner, new))
        except RejectedError:
            return replace(new, tier=Tier.WARM)

    def _keep_summary(self, owner: Namespace, new: StoredRecord, after: StoredRecord) -> None:
        """Leave in the index of summaries what is stored, whatever was made of the new record."""
        if after.summary is None:
            self._passing.forget_summary(owner, new.id)
        elif after.summary != new.summary:
            self._index_summary(owner, after)

    def _index_summary(self, owner: Namespace, record: StoredRecord) -> bool:
        if record.tier is not Tier.COLD or record.summary is None:
            return False
        self._summaries.index(owner, record.id, record.summary)
        return True

    @contextmanager
    def _pinning(self, owner: Namespace, record_id: str) -> Iterator[None]:
        """Pin a record within the limit: threads that pin one wait for each other; other processes are not waited for.

        Raises: RejectedError when too many would be pinned.
        """
        if self._max_pinned is None:
            yield
            return
        with self._pins:
            rows = (outline.record for outline in outlines(self._store, owner))
            pinned = {row.id for row in rows if row.pinned} - {record_id}
            if len(pinned) >= self._max_pinned:
                raise RejectedError(f"{len(pinned)} records of this namespace are pinned, which is the limit")
            yield

    def _note_move(
        self, owner: Namespace, before: StoredRecord | None, after: StoredRecord, reason: Reason, now: datetime
    ) -> None:
        """Tell of a record that one of the verbs moved."""
        if before is None or before.tier is after.tier:
            return
        if after.tier is not Tier.COLD:
            self._passing.forget_summary(owner, after.id)
        self._passing.held.drop(owner, after.id)
        self._moves.add(owner, Move(0, after.version, before.tier, after.tier, reason, after.id), now)
