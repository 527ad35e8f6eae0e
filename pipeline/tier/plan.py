"""What a pass moves. A plan is made from one snapshot and moves each record at most one tier.

In this order, so that a plan cut at `max_moves` has done what is due first:

0. Pinned cold records are lifted to warm, since pinned means never below warm.
1. Records too old for hot or warm go down one tier.
2. Hot, then warm: exactly the overflow goes down, the least valuable first. The overflow counts the residents of the
   snapshot without those that left by age or by promotion. What arrives from above in the same pass is not part of it
   (it would push down records for others that only just came); the next pass sees it.
3. Hot, then warm: records hot enough are lifted, the most valuable first, while there is room; here arrivals from
   above do take room. Into a full tier a record is lifted only in exchange for the weakest resident, and only if it is
   worth more.
4. Cold, only when the policy asks for eviction: records past `cold_ttl`, then exactly the overflow.

Other pinned records are never moved, but count as residents. Records that are set aside are not in the snapshot's lists. A move that would undo the record's last one within the
cool-down is left out; the next weakest record takes its place. Values keep their order as time passes, so without new
accesses every exchange raises what the upper tier is worth, and passes come to an end.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

from isotherm.pipeline.tier.policy import Policy, expired_reason, next_tier_on_demote, should_promote
from isotherm.pipeline.tier.records import Reason, Tier

# Batches of one pass that wait for a model side by side.
MAX_PARTS = 64


@dataclass(frozen=True, slots=True)
class State:
    """A record as a pass sees it.

    Args: key: the row; version: what the move compares with; moved_from: the tier before the last move.
    """

    key: int
    id: str
    tier: Tier
    version: int
    pinned: bool
    heat_log: float | None
    value_log: float
    importance: float
    created_at: datetime
    last_access_at: datetime
    moved_at: datetime | None = None
    moved_from: Tier | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The bounded part of a namespace that a pass needs, read in one transaction. The order of the lists is free.

    Args: counts: all records by tier, pinned ones too, without those that another pass is moving; expired: hot and warm
        records past their age; weakest: by tier the least valuable records, at least as many as overflow and some more for
        exchanges; hottest: warm and cold records with heat for a lift; evictable: cold records past `cold_ttl`; sunken:
        pinned records that are cold; truncated: whether a list was cut; arriving: by tier those that another pass is
        moving to it.
    """

    counts: Mapping[Tier, int]
    expired: list[State] = field(default_factory=list)
    weakest: Mapping[Tier, list[State]] = field(default_factory=dict)
    hottest: list[State] = field(default_factory=list)
    evictable: list[State] = field(default_factory=list)
    sunken: list[State] = field(default_factory=list)
    truncated: bool = False
    arriving: Mapping[Tier, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """One step of one record, valid while the row has this version. Target None is eviction; `id` is for people."""

    key: int
    version: int
    source: Tier
    target: Tier | None
    reason: Reason
    id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """How many records a pass moved."""

    promoted: int = 0
    demoted: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """Moves in the order they are due.

    Args: truncated: more is due than this pass does; held_until: when the first move that a cool-down held back may be
        made, None when none was; without new accesses or writes a pass then is soon enough.
    """

    moves: tuple[Move, ...] = ()
    truncated: bool = False
    held_until: datetime | None = None

    @property
    def report(self) -> MigrationReport:
        """What applying the whole plan would report."""
        evicted = sum(move.target is None for move in self.moves)
        promoted = sum(move.target is not None and move.target.rank > move.source.rank for move in self.moves)
        return MigrationReport(promoted, len(self.moves) - promoted - evicted, evicted)


class BatchKind(StrEnum):
    """Moves that are applied by the same kind of work."""

    LIFT_AND_LOWER = "lift_and_lower"  # hot to warm and back: the row alone
    ARCHIVE = "archive"  # warm to cold: a summary is written and the body moves out
    RESTORE = "restore"  # cold to warm: the body comes back
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Batch:
    """Moves of one kind, applied together."""

    kind: BatchKind
    moves: tuple[Move, ...]


def plan_migration(snapshot: Snapshot, policy: Policy, now: datetime) -> MigrationPlan:
    """Plan one pass by the rules at the top of this module."""
    planner = _Planner(snapshot, policy, now)
    planner.lift_pinned()
    planner.demote_expired()
    for tier in (Tier.HOT, Tier.WARM):
        planner.demote_overflow(tier)
        planner.promote_into(tier)
    if policy.evicts:
        planner.evict()
    kept = tuple(planner.moves[: policy.max_moves])
    truncated = snapshot.truncated or len(planner.moves) > len(kept)
    return MigrationPlan(kept, truncated=truncated, held_until=planner.held_until)


def plan_batches(
    plan: MigrationPlan, size: int, *, archive_size: int | None = None, apart: Collection[int] = ()
) -> list[Batch]:
    """Split a plan into batches of at most `size` moves, each of one kind; within a kind the order is kept.

    Args: archive_size: for moves to cold, which take a model's time; None means the same, and a plan that would need more
        than `MAX_PARTS` batches for them gets larger ones; apart: keys of records that failed before. They go after the
        others of their kind, in batches as small as `MAX_PARTS` of them allow: what stops its batch is soon alone.
    Raises: ValueError when a size is below 1.
    """
    if size < 1 or (archive_size is not None and archive_size < 1):
        raise ValueError("size must be at least 1")
    found: list[Batch] = []
    by_kind: dict[BatchKind, list[Move]] = {kind: [] for kind in BatchKind}
    for move in plan.moves:
        by_kind[batch_kind(move)].append(move)
    for kind, moves in by_kind.items():
        slow = archive_size if kind is BatchKind.ARCHIVE else None
        for part, wanted in (
            ([move for move in moves if move.key not in apart], slow or size),
            ([move for move in moves if move.key in apart], 1),
        ):
            most = min(size, max(wanted, -(-len(part) // MAX_PARTS)))
            found += [Batch(kind, chunk) for chunk in _chunks(part, most)]
    return found


def batch_kind(move: Move) -> BatchKind:
    """Return the kind of work a move is."""
    if move.target is None:
        return BatchKind.EVICT
    if move.target is Tier.COLD:
        return BatchKind.ARCHIVE
    return BatchKind.RESTORE if move.source is Tier.COLD else BatchKind.LIFT_AND_LOWER


def victim_order(state: State) -> tuple[float, datetime, datetime, str, int]:
    """Sort key of victims: the least valuable first, ties by last access, created, id."""
    return state.value_log, state.last_access_at, state.created_at, state.id, state.key


class _Planner:
    """Collects moves; knows who has moved already and how many records each tier keeps."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: datetime) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now = now
        self._moved: set[int] = set()
        # Residents that stay and records lifted in; what comes down from above is counted apart.
        self._residents = {tier: snapshot.counts.get(tier, 0) for tier in Tier}
        self._arrivals = {tier: snapshot.arriving.get(tier, 0) for tier in Tier}
        self.moves: list[Move] = []
        self.held_until: datetime | None = None

    def lift_pinned(self) -> None:
        for state in sorted(self._snapshot.sunken, key=victim_order, reverse=True):
            if state.pinned and state.tier is Tier.COLD and state.key not in self._moved:
                self._leave(state, Tier.WARM, Reason.PIN)
                self._residents[Tier.WARM] += 1

    def demote_expired(self) -> None:
        for state in sorted(self._snapshot.expired, key=victim_order):
            reason = expired_reason(state, self._policy, self._now)
            target = next_tier_on_demote(state.tier)
            if reason is not None and target is not None and self._movable(state, target):
                self._demote(state, target, reason)

    def demote_overflow(self, tier: Tier) -> None:
        capacity, target = self._policy.capacity(tier), next_tier_on_demote(tier)
        if capacity is None or target is None:
            return
        overflow = max(0, self._residents[tier] - capacity)
        for state in islice(self._victims(tier, target), overflow):
            self._demote(state, target, Reason.CAPACITY)

    def promote_into(self, tier: Tier) -> None:
        below = next_tier_on_demote(tier)
        victims = self._victims(tier, below)
        for state in self._candidates(tier):
            if self._has_room(tier):
                self._promote(state, tier)
                continue
            weakest = next(victims, None)
            if weakest is None or below is None or state.value_log <= weakest.value_log:
                return
            self._promote(state, tier)
            self._demote(weakest, below, Reason.CAPACITY)

    def evict(self) -> None:
        for state in sorted(self._snapshot.evictable, key=victim_order):
            expired = state.tier is Tier.COLD and expired_reason(state, self._policy, self._now) is not None
            if expired and self._movable(state, None):
                self._leave(state, None, Reason.TTL)
        if self._policy.cold_capacity is not None:
            overflow = max(0, self._residents[Tier.COLD] - self._policy.cold_capacity)
            for state in islice(self._victims(Tier.COLD, None), overflow):
                self._leave(state, None, Reason.CAPACITY)

    def _victims(self, tier: Tier, target: Tier | None) -> Iterator[State]:
        ordered = sorted(self._snapshot.weakest.get(tier, ()), key=victim_order)
        return (state for state in ordered if state.tier is tier and self._movable(state, target))

    def _candidates(self, tier: Tier) -> list[State]:
        lifted = (
            state
            for state in self._snapshot.hottest
            if state.tier.rank + 1 == tier.rank
            and should_promote(state, self._policy, self._now)
            and self._movable(state, tier)
        )
        unique = {state.key: state for state in lifted}
        return sorted(unique.values(), key=victim_order, reverse=True)

    def _movable(self, state: State, target: Tier | None) -> bool:
        if state.pinned or state.key in self._moved:
            return False
        cooldown = self._policy.cooldown
        if cooldown is None or state.moved_at is None or target is None or state.moved_from is not target:
            return True
        held = self._now - state.moved_at < cooldown
        if held:
            self._hold(cooldown - (self._now - state.moved_at))
        return not held

    def _hold(self, left: timedelta) -> None:
        try:
            until = self._now + left
        except OverflowError:
            return  # beyond the calendar: never
        self.held_until = until if self.held_until is None else min(self.held_until, until)

    def _has_room(self, tier: Tier) -> bool:
        capacity = self._policy.capacity(tier)
        return capacity is None or self._residents[tier] + self._arrivals[tier] < capacity

    def _promote(self, state: State, target: Tier) -> None:
        self._leave(state, target, Reason.ACCESS)
        self._residents[target] += 1

    def _demote(self, state: State, target: Tier, reason: Reason) -> None:
        self._leave(state, target, reason)
        self._arrivals[target] += 1

    def _leave(self, state: State, target: Tier | None, reason: Reason) -> None:
        self._moved.add(state.key)
        self._residents[state.tier] -= 1
        self.moves.append(Move(state.key, state.version, state.tier, target, reason, state.id))


def _chunks(moves: list[Move], size: int) -> Iterator[tuple[Move, ...]]:
    return (tuple(moves[at : at + size]) for at in range(0, len(moves), size))
