"""Numbers of the tier library in Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

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


def _about(name: str) -> str:
    return name.removeprefix("isotherm_").replace("_", " ")
