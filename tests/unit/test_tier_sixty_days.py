"""Two months of daily passes with a summarizer that fails now and then: nothing is lost, and everything can be undone."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from managing import COLD, DAY, HOT, NS, Clock, Recorder, Stub, managed, new, policy

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.cold import truncate_summary
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.pipeline.tier.summaries import ColdSummarySettings, SummarizingColdSummary
from isotherm.pipeline.tier.touching import TouchMode

RECORDS, DAYS = 1_000, 60


class Unreliable(Stub):
    """Fails or answers nonsense in one call of twenty."""

    def __init__(self, source: random.Random) -> None:
        super().__init__("")
        self.source = source
        self.faults = 0

    def summarize(self, text: str, *, max_chars: int) -> str:
        if self.source.random() >= 0.05:
            return truncate_summary(text, max_chars)
        self.faults += 1
        if self.source.random() < 0.5:
            raise TransientError("the model is busy")
        return self.source.choice(["", "no no no no no no no no no no no no no no no no no", text * 2])


def test_sixty_daily_passes_lose_nothing_and_can_be_undone() -> None:
    source, clock, seen = random.Random(7), Clock(), Recorder()
    stub = Unreliable(source)
    backend = SummarizingColdSummary(ColdSummarySettings(min_bytes=100, max_summary_chars=60), summarizer=stub)
    store = MemoryStore()
    manager = managed(Policy(), store=store, clock=clock, observer=seen, summaries=backend)
    originals = {
        f"r{number}": " ".join(f"word{source.randrange(5_000)}" for _ in range(30)) for number in range(RECORDS)
    }
    for number, (record_id, content) in enumerate(originals.items()):
        record = new(record_id, content, age=number * DAY / 100, metadata={"n": number}, categories=(f"c{number % 7}",))
        manager.remember(NS, replace(record, pinned=number % 50 == 0))
    before = {record.id: unmoved(record) for record in manager.list_all(NS)}
    pinned = {record.id: (record.tier, record.moved_at) for record in manager.list_all(NS) if record.pinned}
    assert len(pinned) == RECORDS / 50
    for _ in range(DAYS):
        manager.recall(NS, originals[f"r{source.randrange(RECORDS)}"], touch=TouchMode.NOW)
        manager.reconcile(NS, clock.advance(DAY))
    assert stub.faults > 10
    final = {record.id: record for record in manager.list_all(NS)}
    assert {record_id: record.content for record_id, record in final.items()} == originals
    assert {i: (final[i].tier, final[i].moved_at) for i in pinned} == pinned
    tiers: dict[str, Tier] = defaultdict(lambda: HOT)
    for move in seen.moves:
        assert (tiers[move.record_id], move.target is not None) == (move.source, True)
        tiers[move.record_id] = move.target or COLD
    assert all(record.tier is tiers[record.id] for record in final.values())
    cold = [record for record in final.values() if record.tier is COLD]
    assert len(cold) > RECORDS / 3
    for record in cold:
        assert manager.restore(NS, record.id).tier is Tier.WARM
    every_word = " ".join(f"word{number}" for number in range(5_000))
    assert len(manager.recall(NS, every_word, RecallBudget(total=RECORDS), touch=TouchMode.NOW).items) == RECORDS
    managed(policy(promote_access=1), store=store, clock=clock).reconcile(NS)
    assert {record.id: unmoved(record) for record in manager.list_all(NS)} == before
    assert {record.tier for record in manager.list_all(NS)} == {HOT}


def unmoved(record: Record) -> tuple[object, ...]:
    """What no move changes of a record."""
    return (
        record.content, record.content_sha256, record.metadata, record.categories, record.importance, record.created_at,
        record.pinned,
    )  # fmt: skip
