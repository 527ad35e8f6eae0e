"""Two months of daily passes with a summarizer that fails now and then: nothing is lost, and everything can be undone."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from managing import COLD, DAY, HOT, NS, Clock, Recorder, Stub, managed, new

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.tier.cold import truncate_summary
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
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
    manager = managed(Policy(), clock=clock, observer=seen, summaries=backend)
    originals = {
        f"r{number}": " ".join(f"word{source.randrange(5_000)}" for _ in range(30)) for number in range(RECORDS)
    }
    for number, (record_id, content) in enumerate(originals.items()):
        manager.remember(NS, replace(new(record_id, content, age=number * DAY / 100), pinned=number % 50 == 0))
    pinned = {record.id: record.tier for record in manager.list_all(NS) if record.pinned}
    for _ in range(DAYS):
        manager.recall(NS, originals[f"r{source.randrange(RECORDS)}"], touch=TouchMode.NOW)
        manager.reconcile(NS, clock.advance(DAY))
    assert stub.faults > 10
    final = {record.id: record for record in manager.list_all(NS)}
    assert {record_id: record.content for record_id, record in final.items()} == originals
    assert {record_id: final[record_id].tier for record_id in pinned} == pinned
    tiers: dict[str, Tier] = defaultdict(lambda: HOT)
    for move in seen.moves:
        assert (tiers[move.record_id], move.target is not None) == (move.source, True)
        tiers[move.record_id] = move.target or COLD
    assert all(record.tier is tiers[record.id] for record in final.values())
    cold = [record for record in final.values() if record.tier is COLD]
    assert len(cold) > RECORDS / 3
    for record in cold:
        back = manager.restore(NS, record.id)
        assert (back.content, back.metadata, back.tier) == (originals[record.id], record.metadata, Tier.WARM)
