"""Events to structlog and to counters; one observer that fails disturbs neither the other nor the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.events import Event
from isotherm.pipeline.tier.records import Tier
from isotherm.tasks.log import log

EVENTS = Counter("isotherm_events", "Events by name", ["event"])
MOVES = Counter("isotherm_tier_moves", "Records that changed tiers, by reason", ["reason"])
TASK_SECONDS = Histogram(
    "isotherm_task_seconds", "Duration of tasks by name", ["task"], buckets=(0.01, 0.05, 0.2, 1, 5, 20, 60, 300)
)

# Scopes of namespaces are names of the caller's: those that are not usual are counted together, so that labels stay few.
MEMORIES = ("conversation", "session", "long_term", "audit", "other")
RECORDS = Gauge(
    "isotherm_tier_records", "Records by memory and tier", ["memory", "tier"], multiprocess_mode="mostrecent"
)
BYTES = Gauge(
    "isotherm_tier_bytes", "Bytes of texts by memory and tier", ["memory", "tier"], multiprocess_mode="mostrecent"
)
VERBS = Counter("isotherm_verbs", "Calls of producers by outcome", ["verb", "outcome"])

P = ParamSpec("P")
R = TypeVar("R")

Observer = Callable[[Event, dict[str, Any]], None]


def _to_log(event: Event, context: dict[str, Any]) -> None:
    getattr(log, event.level)(event.name, **event.fields(), **context)


# To find the counter of a name takes its library ten times as long as to raise it.
@lru_cache(maxsize=1_000)
def _counter(name: str) -> Counter:
    return EVENTS.labels(event=name)


def _to_counters(event: Event, _: dict[str, Any]) -> None:
    _counter(event.name).inc()
    for reason, count in getattr(event, "reasons", {}).items():
        MOVES.labels(reason=reason).inc(count)


_observers: list[Observer] = [_to_log, _to_counters]


def observe(observer: Observer) -> Callable[[], None]:
    """Add an observer to this process; returns a function that removes it."""
    _observers.append(observer)
    return lambda: _observers.remove(observer)


def emit(event: Event, **context: Any) -> None:  # noqa: ANN401 - ids and names of any JSON type
    """Tell every observer, after the commit of the fact. `context` adds ids such as `operation_id`."""
    for observer in _observers:
        try:
            observer(event, context)
        except Exception as error:  # noqa: BLE001 - an observer's fault is its own
            log.warning("observer.event_lost", observed=event.name, error=type(error).__name__)


def counted(verb: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count the calls of a producer by outcome: done, refused, unavailable, or failed for a bug."""

    def wrap(call: Callable[P, R]) -> Callable[P, R]:
        @wraps(call)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            outcome = "failed"
            try:
                answer = call(*args, **kwargs)
                outcome = "done"
            except RejectedError:
                outcome = "refused"
                raise
            except TransientError:
                outcome = "unavailable"
                raise
            finally:
                VERBS.labels(verb=verb, outcome=outcome).inc()
            return answer

        return run

    return wrap


def show_depth(rows: Iterable[tuple[str, Tier, int, int]]) -> None:
    """Set the gauges of depth; what is not among the rows is empty.

    Args: rows: scope of namespaces, tier, records, bytes of their texts.
    """
    totals = {(memory, tier): [0, 0] for memory in MEMORIES for tier in Tier}
    for scope, tier, records, size in rows:
        total = totals[scope if scope in MEMORIES else "other", tier]
        total[0] += records
        total[1] += size
    for (memory, tier), (records, size) in totals.items():
        RECORDS.labels(memory=memory, tier=tier.value).set(records)
        BYTES.labels(memory=memory, tier=tier.value).set(size)
