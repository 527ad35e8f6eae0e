"""How many records each tier of a memory holds, as gauges."""

from __future__ import annotations

from collections.abc import Iterable

from isotherm.pipeline.errors import IsothermError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.observers import MetricRecorder
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Store

RECORDS = "isotherm_memory_tier_records"


def record_tier_depth(
    store: Store | None, recorder: MetricRecorder | None, memory: str, namespaces: Iterable[Namespace]
) -> dict[Tier, int]:
    """Set one gauge for each tier, labels memory and tier: the records of all given namespaces together.

    Returns: what was set; a tier whose count fails is left out and keeps its last value.
    """
    if store is None or recorder is None:
        return {}
    owners, depth = list(namespaces), dict[Tier, int]()
    for tier in Tier:
        try:
            depth[tier] = sum(store.count(owner, tier) for owner in owners)
        except IsothermError:
            continue
        recorder.set(RECORDS, depth[tier], {"memory": memory, "tier": tier.value})
    return depth
