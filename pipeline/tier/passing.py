"""One migration pass in process: planned by the same rules as everywhere, then each move a compare-and-swap of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from isotherm.pipeline.errors import IsothermError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.changes import moved, state
from isotherm.pipeline.tier.held import Held, SetAside
from isotherm.pipeline.tier.outline import outlines
from isotherm.pipeline.tier.plan import MigrationPlan, MigrationReport, Move, Snapshot, State, plan_migration
from isotherm.pipeline.tier.policy import Policy, expired_reason, should_promote
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Store, StoredRecord
from isotherm.pipeline.tier.summaries import ColdSummaryBackend
from isotherm.pipeline.tier.writing import Writer

UNREADABLE = "its text cannot be read"
Tell = Callable[[Namespace, Move, datetime], None]


@dataclass(slots=True)
class PassReport:
    """What a pass did.

    Args: report: records moved; reasons: how many for each reason; changed: records left alone because they changed or
        went meanwhile; set_aside: records that could not be moved, with the reason; truncated: more is due than one pass
        does; evicted: ids of records that were removed; held_until: when the first move that a cool-down held back may be made; coalesced: a pass that waits
        already will do what this one was asked for, and this one did nothing; so does one that is asked for from within.
    """

    report: MigrationReport = field(default_factory=MigrationReport)
    reasons: Mapping[str, int] = field(default_factory=dict)
    changed: int = 0
    set_aside: tuple[SetAside, ...] = ()
    truncated: bool = False
    evicted: tuple[str, ...] = ()
    held_until: datetime | None = None
    coalesced: bool = False


class Passing:
    """Plans and applies passes over the namespaces of a store.

    Args: writer: writes records beside others of this process; tell: told of each move after it
        was made, and never raises.
    """

    def __init__(self, store: Store, policy: Policy, summaries: ColdSummaryBackend, writer: Writer, tell: Tell) -> None:
        self._store = store
        self._policy = policy
        self._summaries = summaries
        self._writer = writer
        self._tell = tell
        self.held = Held()

    def plan(self, namespace: Namespace, now: datetime) -> MigrationPlan:
        """Plan a pass; moves nothing. Every record is looked at once, so that each moves one step at most."""
        states = [state(key, outline.record) for key, outline in enumerate(outlines(self._store, namespace))]
        self.held.keep_only(namespace, {one.id for one in states})
        free = [s for s in states if not self.held.is_held(namespace, s.id, s.version, now)]
        planned = plan_migration(snapshot(states, free, self._policy, now), self._policy, now)
        # A store of one tier has nowhere to lift a pinned record to.
        levels = {None, *self._store.levels}
        return replace(planned, moves=tuple(move for move in planned.moves if move.target in levels))

    def run(self, namespace: Namespace, now: datetime) -> PassReport:
        """Plan and apply. A record that cannot be moved is set aside, and one that changed meanwhile is left alone."""
        plan = self.plan(namespace, now)
        done: list[Move] = []
        aside: list[SetAside] = []
        unread: list[Move] = []
        for move in plan.moves:
            try:
                record = self._store.get(namespace, move.id)
                if record is None:
                    unread.append(move)
                    continue
                applied = record.version == move.version and self._apply(namespace, record, move, now)
            except Exception as error:  # noqa: BLE001 - one bad record never stops a pass
                reason = str(error) if isinstance(error, IsothermError) else type(error).__name__
                aside.append(self.held.add(namespace, move.id, move.version, reason, now))
                continue
            if applied:
                done.append(move)
                self.held.drop(namespace, move.id)
                self._tell(namespace, move, now)
        aside += [self.held.add(namespace, m.id, m.version, UNREADABLE, now) for m in self._lost(namespace, unread)]
        return PassReport(
            report=replace(plan, moves=tuple(done)).report,
            reasons=Counter(move.reason.value for move in done),
            changed=len(plan.moves) - len(done) - len(aside),
            set_aside=tuple(aside),
            truncated=plan.truncated,
            evicted=tuple(move.id for move in done if move.target is None),
            held_until=plan.held_until,
        )

    def forget_summary(self, namespace: Namespace, record_id: str) -> None:
        """Take a record that is not cold any more out of the index of summaries, as far as that can be reached.

        What stays there names a record that is not cold, and is passed over.
        """
        with suppress(Exception):
            self._summaries.delete(namespace, record_id)

    def _lost(self, namespace: Namespace, unread: Sequence[Move]) -> list[Move]:
        """Moves of records that could not be got and still are in their tiers; the others went meanwhile."""
        if not unread:
            return []
        there = set[tuple[str, int]]()
        # What cannot be looked for now is looked at by the next pass.
        with suppress(TransientError):
            there.update((one.record.id, one.record.version) for one in outlines(self._store, namespace))
        return [move for move in unread if (move.id, move.version) in there]

    def _apply(self, namespace: Namespace, record: StoredRecord, move: Move, now: datetime) -> bool:
        if move.target is None:
            return self._evict(namespace, record)
        summary = self._summaries.archive(namespace, record) if move.target is Tier.COLD else None
        after = moved(record, move.target, now, move.reason, summary=summary)
        swapped = self._writer.replace(namespace, record, after)
        if move.source is Tier.COLD and swapped:
            self.forget_summary(namespace, record.id)
        elif summary is not None and not swapped:
            self._summary_of_none(namespace, record.id)
        return swapped

    def _evict(self, namespace: Namespace, record: StoredRecord) -> bool:
        # First, while the record still tells of it: nobody would find it afterwards.
        self._summaries.delete(namespace, record.id)
        if self._writer.remove(namespace, record.id, only=record):
            return True
        known = self._store.get(namespace, record.id)
        if known is not None and known.tier is Tier.COLD and known.summary is not None:
            self._summaries.index(namespace, known.id, known.summary)
        return False

    def _summary_of_none(self, namespace: Namespace, record_id: str) -> None:
        """Take a summary out of the index whose record changed or went before it could go cold."""
        known = self._store.get(namespace, record_id)
        if known is None or known.tier is not Tier.COLD:
            self.forget_summary(namespace, record_id)


def snapshot(states: Iterable[State], free: Iterable[State], policy: Policy, now: datetime) -> Snapshot:
    """What a plan is made from. Args: states: all records, which are counted; free: those that may move."""
    movable = list(free)
    aged = [one for one in movable if expired_reason(one, policy, now) is not None]
    return Snapshot(
        counts=Counter(one.tier for one in states),
        expired=[one for one in aged if one.tier is not Tier.COLD],
        weakest={tier: [one for one in movable if one.tier is tier and not one.pinned] for tier in Tier},
        hottest=[one for one in movable if should_promote(one, policy, now)],
        evictable=[one for one in aged if one.tier is Tier.COLD],
        sunken=[one for one in movable if one.pinned and one.tier is Tier.COLD],
    )
