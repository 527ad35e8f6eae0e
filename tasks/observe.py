"""Events to structlog and to counters; one observer that fails disturbs neither the other nor the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from prometheus_client import Counter, Histogram

from isotherm.pipeline.events import Event

log = structlog.get_logger("isotherm")

EVENTS = Counter("isotherm_events", "Events by name", ["event"])
MOVES = Counter("isotherm_tier_moves", "Records that changed tiers, by reason", ["reason"])
TASK_SECONDS = Histogram(
    "isotherm_task_seconds", "Duration of tasks by name", ["task"], buckets=(0.01, 0.05, 0.2, 1, 5, 20, 60, 300)
)

Observer = Callable[[Event, dict[str, Any]], None]


def _to_log(event: Event, context: dict[str, Any]) -> None:
    getattr(log, event.level)(event.name, **event.fields(), **context)


def _to_counters(event: Event, _: dict[str, Any]) -> None:
    EVENTS.labels(event=event.name).inc()
    for reason, count in event.fields().get("reasons", {}).items():
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
