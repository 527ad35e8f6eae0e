"""The stages of the pipeline and the resource each one uses. A stage's name is also its task's name."""

from enum import StrEnum
from types import MappingProxyType


class Queue(StrEnum):
    """Queues follow the resource used, not the feature."""

    DB = "db"  # short SQL
    LLM = "llm"  # slow, bound by a model
    GRAPH = "graph"  # the graph server
    MAINTENANCE = "maintenance"  # ticks


INDEX = "tier.index"
PLAN = "tier.plan"
MIGRATE = "tier.migrate"
SUMMARIZE = "cold.summarize"
ARCHIVE = "cold.archive"
RESTORE = "tier.restore"
REPORT = "tier.report"
TIER_EMBED = "tier.embed"
FORGET = "tier.forget"

BRAIN_EMBED = "brain.embed"
BRAIN_MIRROR = "brain.mirror"
BRAIN_IMPORT = "brain.import"
BRAIN_IMPORT_REPORT = "brain.report_import"
BRAIN_MENTION = "brain.mention"

EXTRACT = "interest.extract"
S1_FOLD = "interest.s1.fold"
S1_JUDGE = "interest.s1.judge"
S2_CLUSTER = "interest.s2.cluster"
V1_2_ADJUDICATE = "interest.v1_2.adjudicate"
V1_3_PERSIST = "interest.v1_3.persist"
TEND = "interest.tend"

# Every stage of durable work. A stage that is not here cannot become a step.
STAGES = MappingProxyType(
    {
        INDEX: Queue.DB,
        PLAN: Queue.DB,
        MIGRATE: Queue.DB,
        SUMMARIZE: Queue.LLM,
        ARCHIVE: Queue.DB,
        RESTORE: Queue.DB,
        REPORT: Queue.DB,
        TIER_EMBED: Queue.LLM,
        FORGET: Queue.DB,
        BRAIN_EMBED: Queue.LLM,
        BRAIN_MIRROR: Queue.GRAPH,
        BRAIN_IMPORT: Queue.DB,
        BRAIN_IMPORT_REPORT: Queue.DB,
        BRAIN_MENTION: Queue.DB,
        EXTRACT: Queue.LLM,
        S1_FOLD: Queue.LLM,
        S1_JUDGE: Queue.LLM,
        S2_CLUSTER: Queue.DB,
        V1_2_ADJUDICATE: Queue.LLM,
        V1_3_PERSIST: Queue.DB,
        TEND: Queue.LLM,
    }
)

# What waits for a server without end: it is a copy that nobody asked for by itself.
ENDLESS = frozenset({BRAIN_MIRROR})

RELAY = "outbox.relay"
SWEEP = "operations.sweep"
PURGE = "operations.purge"
TOUCH = "tier.touch"
REFRESH = "tier.refresh"
DUE = "tier.due"
DEPTH = "tier.depth"
TIER_REEMBED = "tier.reembed"
BRAIN_FOLD = "brain.fold"
BRAIN_DRIFT = "brain.drift"
BRAIN_REEMBED = "brain.reembed"
BRAIN_UNNAMED = "brain.unnamed"
COLLECT = "cold.collect"
QUOTAS = "tier.quotas"
AGE = "interest.age"
INTERESTS_DUE = "interest.due"
INTEREST_MIRROR = "interest.mirror"

# Short, idempotent and not durable: the next tick does what a lost one did not.
TICKS = MappingProxyType(
    {
        **dict.fromkeys(
            (
                RELAY,
                SWEEP,
                PURGE,
                TOUCH,
                REFRESH,
                DUE,
                TIER_REEMBED,
                BRAIN_FOLD,
                BRAIN_REEMBED,
                BRAIN_UNNAMED,
                COLLECT,
                QUOTAS,
                DEPTH,
                AGE,
                INTERESTS_DUE,
            ),
            Queue.MAINTENANCE,
        ),
        BRAIN_DRIFT: Queue.GRAPH,
        INTEREST_MIRROR: Queue.GRAPH,
    }
)

ROUTES = MappingProxyType({**STAGES, **TICKS})
