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
    }
)

RELAY = "outbox.relay"
SWEEP = "operations.sweep"
PURGE = "operations.purge"
TOUCH = "tier.touch"
REFRESH = "tier.refresh"
DUE = "tier.due"

# Short, idempotent and not durable: the next tick does what a lost one did not.
TICKS = MappingProxyType(dict.fromkeys((RELAY, SWEEP, PURGE, TOUCH, REFRESH, DUE), Queue.MAINTENANCE))

ROUTES = MappingProxyType({**STAGES, **TICKS})
