"""The event vocabulary: facts after the commit, named `<stage>.<noun>_<participle>`, with ids, counts and no text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """Root of all events."""

    name: ClassVar[str] = ""
    # What an operator should see: "info" is a change of state, "warning" was handled, "error" needs a person.
    level: ClassVar[str] = "info"

    def fields(self) -> dict[str, Any]:
        """The event's own fields, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class RecordsRemembered(Event):
    """Records were stored; `records` counts rows that are new or changed, `moved` those that another text moved to its tier."""

    name: ClassVar[str] = "tier.records_remembered"
    records: int
    moved: int = 0


@dataclass(frozen=True, slots=True)
class RecordUpdated(Event):
    """A record was changed by its caller; `reworded`: it is found by another text; `lifted`: it came back from cold."""

    name: ClassVar[str] = "tier.record_updated"
    reworded: bool
    lifted: bool


@dataclass(frozen=True, slots=True)
class RecordsPinned(Event):
    """Records are kept out of cold; `restoring` counts those that come back from there for it."""

    name: ClassVar[str] = "tier.records_pinned"
    records: int
    restoring: int


@dataclass(frozen=True, slots=True)
class RecordsUnpinned(Event):
    """Records may be moved by passes again."""

    name: ClassVar[str] = "tier.records_unpinned"
    records: int


@dataclass(frozen=True, slots=True)
class MemoryForgotten(Event):
    """Everything of a scope was erased, and a look everywhere found nothing more. Its names are not told."""

    name: ClassVar[str] = "tier.memory_forgotten"
    scope: str
    records: int
    objects: int
    interests: int


@dataclass(frozen=True, slots=True)
class RecordsImported(Event):
    """Records came in from another installation; those that were there already do not count."""

    name: ClassVar[str] = "tier.records_imported"
    records: int


@dataclass(frozen=True, slots=True)
class RecordsIndexed(Event):
    """The words of records can be searched."""

    name: ClassVar[str] = "tier.records_indexed"
    records: int


@dataclass(frozen=True, slots=True)
class RecordsEmbedded(Event):
    """Records can be found by what they are about; texts that changed meanwhile are not counted."""

    name: ClassVar[str] = "tier.records_embedded"
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
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class RecordsRestored(Event):
    """Records came back from cold, byte for byte; `set_aside` counts bodies that are missing or do not match their hash."""

    name: ClassVar[str] = "tier.records_restored"
    records: int
    set_aside: int
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class BlobsCollected(Event):
    """Objects that no cold body refers to were removed from the blob store."""

    name: ClassVar[str] = "cold.blobs_collected"
    objects: int


@dataclass(frozen=True, slots=True)
class QuotaExceeded(Event):
    """A tenant has more than its quota; `over_records` and `over_bytes` are what is to go colder, or out of cold."""

    name: ClassVar[str] = "tier.quota_exceeded"
    level: ClassVar[str] = "warning"
    tenant: str | None
    over_records: int
    over_bytes: int
    moves: int


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
class RecordPromoted(Event):
    """One record went to a warmer tier, as the in-process manager tells it."""

    name: ClassVar[str] = "tier.record_promoted"
    record_id: str
    from_tier: str
    to_tier: str
    reason: str
    scenario: str
    run_id: str | None
    tenant: str | None
    agent: str
    session: str | None
    scope: str
    at: str


@dataclass(frozen=True, slots=True)
class RecordDemoted(Event):
    """One record went to a colder tier, as the in-process manager tells it."""

    name: ClassVar[str] = "tier.record_demoted"
    record_id: str
    from_tier: str
    to_tier: str
    reason: str
    scenario: str
    run_id: str | None
    tenant: str | None
    agent: str
    session: str | None
    scope: str
    at: str


@dataclass(frozen=True, slots=True)
class RecordEvicted(Event):
    """One record was removed because its policy asks for it, as the in-process manager tells it."""

    name: ClassVar[str] = "tier.record_evicted"
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
class DeliveryRefused(Event):
    """A message that is none of ours, or not for this stage, was dropped; the reason names fields and never values."""

    name: ClassVar[str] = "operations.delivery_refused"
    level: ClassVar[str] = "error"
    stage: str
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
    """Steps and operations past their time were deleted, and files of lines that were refused."""

    name: ClassVar[str] = "operations.rows_purged"
    steps: int
    operations: int
    files: int = 0


@dataclass(frozen=True, slots=True)
class ObjectsStored(Event):
    """Objects of the knowledge base were stored or taken out; `written` counts those that are new or changed."""

    name: ClassVar[str] = "brain.objects_stored"
    written: int
    removed: int


@dataclass(frozen=True, slots=True)
class FilesImported(Event):
    """Files were taken into the knowledge base; `failed` counts those that could not be stored."""

    name: ClassVar[str] = "brain.files_imported"
    files: int
    failed: int


@dataclass(frozen=True, slots=True)
class EdgesChanged(Event):
    """Edges between objects were written or taken out."""

    name: ClassVar[str] = "brain.edges_changed"
    linked: int
    unlinked: int


@dataclass(frozen=True, slots=True)
class ObjectsEmbedded(Event):
    """Objects got vectors; `changed` counts those whose text changed meanwhile, `refused` those the model refused."""

    name: ClassVar[str] = "brain.objects_embedded"
    objects: int
    changed: int
    refused: int


@dataclass(frozen=True, slots=True)
class GraphRepaired(Event):
    """A graph differed from its truth and was repaired; `discarded` counts what only the graph had, or had newer."""

    name: ClassVar[str] = "brain.graph_repaired"
    level: ClassVar[str] = "warning"
    nodes: int
    edges: int
    discarded: int


@dataclass(frozen=True, slots=True)
class EmbeddingRequested(Event):
    """Objects wait for a vector of this installation's model, since theirs is of another one or they had none."""

    name: ClassVar[str] = "brain.embedding_requested"
    objects: int
    namespaces: int


@dataclass(frozen=True, slots=True)
class RecordEmbeddingRequested(Event):
    """Records wait for a vector of this installation's model, since theirs is of another one or they had none."""

    name: ClassVar[str] = "tier.embedding_requested"
    records: int
    namespaces: int


@dataclass(frozen=True, slots=True)
class GraphMirrored(Event):
    """Objects and edges are in the graph as they are in the database; what was there already does not count."""

    name: ClassVar[str] = "brain.graph_mirrored"
    nodes: int
    edges: int


@dataclass(frozen=True, slots=True)
class InterestsMirrored(Event):
    """Points and edges of interests are in the graph as they are in the database; what was there already does not count."""

    name: ClassVar[str] = "interest.interests_mirrored"
    nodes: int
    edges: int


@dataclass(frozen=True, slots=True)
class MentionsLinked(Event):
    """Texts were read for the names of other objects; `linked` and `unlinked` count edges that are new or gone."""

    name: ClassVar[str] = "brain.mentions_linked"
    texts: int
    linked: int
    unlinked: int


@dataclass(frozen=True, slots=True)
class StatisticsFolded(Event):
    """Changes of word statistics were added up."""

    name: ClassVar[str] = "brain.statistics_folded"
    changes: int


@dataclass(frozen=True, slots=True)
class CandidatesExtracted(Event):
    """Windows of a session were read; `fallbacks` counts those that the rules read because the model could not."""

    name: ClassVar[str] = "interest.candidates_extracted"
    windows: int
    candidates: int
    fallbacks: int


@dataclass(frozen=True, slots=True)
class CandidatesFolded(Event):
    """Candidates of one name are one, embedded, and grouped; `groups` counts those that need a judgement."""

    name: ClassVar[str] = "interest.candidates_folded"
    candidates: int
    points: int
    groups: int


@dataclass(frozen=True, slots=True)
class GroupsJudged(Event):
    """Groups of one session were judged; `fallbacks` counts those kept as they are because the model could not."""

    name: ClassVar[str] = "interest.groups_judged"
    groups: int
    points: int
    merged: int
    fallbacks: int


@dataclass(frozen=True, slots=True)
class PointsClustered(Event):
    """The points of a session were linked with each other and with stored ones; `known` counts those stored already."""

    name: ClassVar[str] = "interest.points_clustered"
    points: int
    known: int
    components: int
    queues: int
    isolated: int


@dataclass(frozen=True, slots=True)
class UnitsAdjudicated(Event):
    """It was decided what becomes of points; `fallbacks` counts units whose points wait for review instead."""

    name: ClassVar[str] = "interest.units_adjudicated"
    units: int
    decisions: int
    contradictions: int
    fallbacks: int


@dataclass(frozen=True, slots=True)
class InterestsAged(Event):
    """Interests are less fresh than they were; `expired` counts those that were archived, since their time is over."""

    name: ClassVar[str] = "interest.interests_aged"
    changed: int
    expired: int


@dataclass(frozen=True, slots=True)
class InterestsTended(Event):
    """An agent's interests have the vectors they lacked, and what waited for review was judged; `waiting` still waits."""

    name: ClassVar[str] = "interest.interests_tended"
    embedded: int
    judged: int
    waiting: int
    themes: int


@dataclass(frozen=True, slots=True)
class InterestsPersisted(Event):
    """A run is written."""

    name: ClassVar[str] = "interest.interests_persisted"
    created: int
    updated: int
    archived: int
    contradictions: int
    edges: int
