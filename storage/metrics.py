"""Numbers of the libraries in Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from isotherm.pipeline.brain.observing import Outcome

BRAIN_SECONDS = Histogram(
    "isotherm_brain_seconds",
    "Duration of calls of the knowledge base by verb and outcome",
    ["op", "outcome"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 3),
)
BRAIN_CANDIDATES = Counter("isotherm_brain_candidates", "Candidates that each leg gave, by verb", ["op", "leg"])

_TOTAL = "_total"  # the client adds it to the name of a counter


class PrometheusRecorder:
    """A `MetricRecorder`: one counter or gauge for each name, with the labels it is first used with.

    Args: registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._lock = threading.Lock()

    def add(self, name: str, amount: int, labels: Mapping[str, str]) -> None:
        """Raise a counter."""
        with self._lock:
            if name not in self._counters:
                plain = name.removesuffix(_TOTAL)
                self._counters[name] = Counter(plain, _about(plain), list(labels), registry=self._registry)
        self._counters[name].labels(**labels).inc(amount)

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge."""
        with self._lock:
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, _about(name), list(labels), registry=self._registry)
        self._gauges[name].labels(**labels).set(value)


class BrainMetrics:
    """Counts the calls of an engine: how long, how they ended, and what each leg gave."""

    def ended(self, outcome: Outcome) -> None:
        """A call ended; `degraded` tells answers without a leg from whole ones."""
        ended = outcome.error or ("degraded" if outcome.degraded else "ok")
        BRAIN_SECONDS.labels(op=outcome.op.value, outcome=ended).observe(outcome.elapsed_ms / 1_000)
        for leg, count in outcome.legs.items():
            BRAIN_CANDIDATES.labels(op=outcome.op.value, leg=leg).inc(count)


def _about(name: str) -> str:
    return name.removeprefix("isotherm_").replace("_", " ")
