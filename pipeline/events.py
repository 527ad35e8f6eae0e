"""The event vocabulary: facts after the commit, named `<stage>.<noun>_<participle>`, with ids, counts and no text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """Root of all events."""

    name: ClassVar[str] = ""
    # What an operator should see: "info" is a change of state, "warning" was handled, "error" needs a person.
    level: ClassVar[str] = "info"

    def fields(self) -> dict[str, Any]:
        """The event's own fields, by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RecordsRemembered(Event):
    """Records were stored; `records` counts rows that are new or changed."""

    name: ClassVar[str] = "tier.records_remembered"
    records: int


@dataclass(frozen=True, slots=True)
class RecordsIndexed(Event):
    """The words of records can be searched."""

    name: ClassVar[str] = "tier.records_indexed"
    records: int


@dataclass(frozen=True, slots=True)
class MigrationPlanned(Event):
    """A pass over a namespace was planned; `truncated` when more is due than one pass does."""

    name: ClassVar[str] = "tier.migration_planned"
    moves: int
    batches: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class RecordsMoved(Event):
    """A batch of records changed tiers; `changed` counts records that were left alone because they changed meanwhile."""

    name: ClassVar[str] = "tier.records_moved"
    promoted: int
    demoted: int
    evicted: int
    changed: int
    set_aside: int
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class SummariesWritten(Event):
    """Summaries for records on their way to cold; `refused` counts texts without a usable one."""

    name: ClassVar[str] = "cold.summaries_written"
    summaries: int
    refused: int


@dataclass(frozen=True, slots=True)
class RecordsArchived(Event):
    """Records went cold with a summary and a restorable body."""

    name: ClassVar[str] = "cold.records_archived"
    records: int
    set_aside: int


@dataclass(frozen=True, slots=True)
class RecordsRestored(Event):
    """Records came back from cold, byte for byte; `set_aside` counts bodies that do not match their hash."""

    name: ClassVar[str] = "tier.records_restored"
    records: int
    set_aside: int


@dataclass(frozen=True, slots=True)
class MigrationReported(Event):
    """A pass ended."""

    name: ClassVar[str] = "tier.migration_reported"
    promoted: int
    demoted: int
    evicted: int
    set_aside: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class TouchesApplied(Event):
    """Counted accesses are in the rows."""

    name: ClassVar[str] = "tier.touches_applied"
    records: int


@dataclass(frozen=True, slots=True)
class TailsRefreshed(Event):
    """Hot tails were dropped because Redis could not be told before a commit."""

    name: ClassVar[str] = "tier.tails_refreshed"
    namespaces: int


@dataclass(frozen=True, slots=True)
class PassesRequested(Event):
    """Namespaces that are due got a migration pass."""

    name: ClassVar[str] = "tier.passes_requested"
    namespaces: int


@dataclass(frozen=True, slots=True)
class StepPostponed(Event):
    """A step waits for something that passes; it runs again after `delay_ms`."""

    name: ClassVar[str] = "operations.step_postponed"
    level: ClassVar[str] = "warning"
    stage: str
    step_id: int
    delay_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    """A step ended `failed` or `dead`; an operator can run it again with `isotherm ops retry`."""

    name: ClassVar[str] = "operations.step_failed"
    level: ClassVar[str] = "error"
    stage: str
    step_id: int
    state: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepErrored(Event):
    """A step met a bug and will be tried again."""

    name: ClassVar[str] = "operations.step_errored"
    level: ClassVar[str] = "warning"
    stage: str
    step_id: int
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepsRecovered(Event):
    """Steps of lost runners were taken back (`requeued`) or given up (`dead`); `nudged` were announced again."""

    name: ClassVar[str] = "operations.steps_recovered"
    level: ClassVar[str] = "warning"
    requeued: int
    dead: int
    nudged: int


@dataclass(frozen=True, slots=True)
class MessagesRelayed(Event):
    """Messages that their producer had not published were published; `dropped` were needed by nobody any more."""

    name: ClassVar[str] = "outbox.messages_relayed"
    published: int
    dropped: int


@dataclass(frozen=True, slots=True)
class RowsPurged(Event):
    """Steps and operations past their time were deleted."""

    name: ClassVar[str] = "operations.rows_purged"
    steps: int
    operations: int
