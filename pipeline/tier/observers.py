"""Who is told of every record that changed tiers: after the write, and never able to disturb it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypedDict

from isotherm.pipeline.events import Event, RecordDemoted, RecordEvicted, RecordPromoted
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Reason, Tier

MOVES_TOTAL = "isotherm_memory_tier_migrations_total"
EVICTED = "evicted"
_run_id: ContextVar[str | None] = ContextVar("isotherm_migration_run", default=None)


@dataclass(frozen=True, slots=True)
class RecordMove:
    """One record that changed tiers. Target None means that it was evicted; run_id as `migration_run` named it."""

    namespace: Namespace
    record_id: str
    source: Tier
    target: Tier | None
    reason: Reason
    at: datetime
    run_id: str | None = field(default_factory=_run_id.get)


class MigrationObserver(Protocol):
    """Is told of moves. What it raises is the caller's to catch; `ChainedObserver` does."""

    def promoted(self, move: RecordMove) -> None:
        """A record went to a warmer tier."""
        ...

    def demoted(self, move: RecordMove) -> None:
        """A record went to a colder tier."""
        ...

    def evicted(self, move: RecordMove) -> None:
        """A record was removed."""
        ...


class MetricRecorder(Protocol):
    """Keeps numbers; names and labels are few and constant."""

    def add(self, name: str, amount: int, labels: Mapping[str, str]) -> None:
        """Raise a counter."""
        ...

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge."""
        ...


@contextmanager
def migration_run(run_id: str) -> Iterator[None]:
    """Name the run on whose behalf moves are made in this context; a blank name changes nothing."""
    if not run_id.strip():
        yield
        return
    token = _run_id.set(run_id)
    try:
        yield
    finally:
        _run_id.reset(token)


def tell(observer: MigrationObserver, move: RecordMove) -> None:
    """Call the method that fits the move."""
    if move.target is None:
        observer.evicted(move)
    elif move.target.rank > move.source.rank:
        observer.promoted(move)
    else:
        observer.demoted(move)


class NoopObserver:
    """Does nothing."""

    def promoted(self, move: RecordMove) -> None:
        """Nothing."""

    def demoted(self, move: RecordMove) -> None:
        """Nothing."""

    def evicted(self, move: RecordMove) -> None:
        """Nothing."""


class ChainedObserver:
    """Tells several observers in order; one that fails keeps the move from nobody else.

    Args: failed: told which observer failed and the error's type.
    """

    def __init__(
        self, observers: tuple[MigrationObserver, ...], failed: Callable[[MigrationObserver, str], None] | None = None
    ) -> None:
        self.observers = observers
        self._failed = failed

    def promoted(self, move: RecordMove) -> None:
        """Tell all."""
        self._tell(move)

    def demoted(self, move: RecordMove) -> None:
        """Tell all."""
        self._tell(move)

    def evicted(self, move: RecordMove) -> None:
        """Tell all."""
        self._tell(move)

    def _tell(self, move: RecordMove) -> None:
        for observer in self.observers:
            try:
                tell(observer, move)
            except Exception as error:  # noqa: BLE001 - an observer's fault is its own
                if self._failed is not None:
                    self._failed(observer, type(error).__name__)


def chain_observers(
    *observers: MigrationObserver | None, failed: Callable[[MigrationObserver, str], None] | None = None
) -> MigrationObserver:
    """One observer for several: without those that do nothing, and isolated from each other and from the move."""
    useful = tuple(o for o in observers if o is not None and not isinstance(o, NoopObserver))
    return ChainedObserver(useful, failed) if useful else NoopObserver()


class EventSinkObserver:
    """Turns moves into events (`tier.record_promoted` and so on).

    Args: sink: takes an event; None discards it; scenario: the program or memory that is told about.
    """

    def __init__(self, sink: Callable[[Event], None] | None, scenario: str) -> None:
        self._sink = sink
        self._scenario = scenario

    def promoted(self, move: RecordMove) -> None:
        """Send `RecordPromoted`."""
        self._send(RecordPromoted(**_facts(move, self._scenario), to_tier=_name(move.target)))

    def demoted(self, move: RecordMove) -> None:
        """Send `RecordDemoted`."""
        self._send(RecordDemoted(**_facts(move, self._scenario), to_tier=_name(move.target)))

    def evicted(self, move: RecordMove) -> None:
        """Send `RecordEvicted`."""
        self._send(RecordEvicted(**_facts(move, self._scenario)))

    def _send(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)


class MetricsObserver:
    """Counts moves by memory, tiers and reason; nothing of a namespace becomes a label, so their number is bounded.

    Args: recorder: keeps the counter; None counts nothing; memory: the configured name of the memory.
    """

    def __init__(self, recorder: MetricRecorder | None, memory: str) -> None:
        self._recorder = recorder
        self._memory = memory

    def promoted(self, move: RecordMove) -> None:
        """Count it."""
        self._count(move)

    def demoted(self, move: RecordMove) -> None:
        """Count it."""
        self._count(move)

    def evicted(self, move: RecordMove) -> None:
        """Count it."""
        self._count(move)

    def _count(self, move: RecordMove) -> None:
        if self._recorder is not None:
            labels = {
                "memory": self._memory,
                "from": move.source.value,
                "to": _name(move.target),
                "reason": move.reason.value,
            }
            self._recorder.add(MOVES_TOTAL, 1, labels)


class _Facts(TypedDict):
    record_id: str
    from_tier: str
    reason: str
    scenario: str
    run_id: str | None
    tenant: str | None
    agent: str
    session: str | None
    scope: str
    at: str


def _facts(move: RecordMove, scenario: str) -> _Facts:
    owner = move.namespace
    return _Facts(
        record_id=move.record_id,
        from_tier=move.source.value,
        reason=move.reason.value,
        scenario=scenario,
        run_id=move.run_id,
        tenant=owner.tenant,
        agent=owner.agent,
        session=owner.session,
        scope=owner.scope,
        at=move.at.isoformat(),
    )


def _name(target: Tier | None) -> str:
    return target.value if target else EVICTED
