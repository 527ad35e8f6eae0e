"""Recall in process: it reads and counts. What it counted is added to the records later, unless the caller wants it now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import changes, finding
from isotherm.pipeline.tier.answers import Recall, Recalled
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.ranking import Lexical, Scored, rank, select
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Store, StoredRecord
from isotherm.pipeline.tier.summaries import ColdSummaryBackend
from isotherm.pipeline.tier.touching import Touch, TouchBuffer, TouchMode
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.pipeline.tier.writing import Writer, existing


class Recalling:
    """Answers recalls and keeps the touches that wait.

    Args: lexical: how words are compared; writer: adds touches to records.
    """

    def __init__(self, store: Store, writer: Writer, summaries: ColdSummaryBackend, lexical: Lexical) -> None:
        self._store = store
        self._writer = writer
        self._summaries = summaries
        self._lexical = lexical
        self.touches = TouchBuffer()

    def recall(
        self,
        owner: Namespace,
        query: str,
        budget: RecallBudget,
        weights: RecallWeights,
        touch: TouchMode,
        now: datetime,
    ) -> Recall:
        """The best records for a query; see `Manager.recall`."""
        normal = budget.normalize()
        tiers = [tier for tier in Tier if not normal.is_off(tier)]
        if not tiers or not normal.total:
            return Recall()
        pool = finding.pool(self._store, owner, tiers)
        proposed, away = self._proposed(owner, query, normal.share(Tier.COLD), tiers)
        rated = finding.candidates(pool, query, self._lexical, proposed)
        chosen = select(rank(rated, weights, now, self._lexical), normal)
        items = tuple(
            Recalled(
                changes.shown(owner, pool.outlines[item.candidate.key], now, whole=False),
                item.parts,
                item.candidate.legs,
            )
            for item in chosen
        )
        degraded = (*pool.degraded, *away, *self._touch(owner, query, chosen, touch, now))
        return Recall(items, degraded, pool.truncated)

    def apply(self, owner: Namespace) -> int:
        """Add the touches that wait for a namespace, and return of how many records.

        Raises: the first error that may pass, after all others were added; touches that met one wait on. A touch of a
        record that is gone, or that its store refuses, is dropped.
        """
        applied, waiting = 0, dict[str, Touch]()
        first: Exception | None = None
        for record_id, touch in self.touches.take(owner).items():
            try:
                self._writer.change(owner, record_id, partial(_touched, touch))
                applied += 1
            except RejectedError:
                continue
            except Exception as error:  # noqa: BLE001 - raised below, once every record had its turn
                first = first or error
                waiting[record_id] = touch
        if first is not None:
            self.touches.add(owner, waiting)
            raise first
        return applied

    def _touch(
        self, owner: Namespace, query: str, chosen: Sequence[Scored], mode: TouchMode, now: datetime
    ) -> tuple[str, ...]:
        """Count the accesses of an answer; what fails is named and loses counts only."""
        hits = [s.candidate.id for s in chosen if s.parts.is_relevant or "summary" in s.candidate.legs]
        if mode is TouchMode.OFF or not query.strip() or not hits:
            return ()
        if not self.touches.add(owner, {record_id: Touch.once(now) for record_id in hits}):
            return ("touches",)
        if mode is TouchMode.NOW:
            try:
                self.apply(owner)
            except Exception:  # noqa: BLE001 - the answer stands, and what was counted waits
                return ("touches",)
        return ()

    def _proposed(
        self, owner: Namespace, query: str, share: int, tiers: Sequence[Tier]
    ) -> tuple[Sequence[str], tuple[str, ...]]:
        if Tier.COLD not in tiers or not query.strip():
            return (), ()
        try:
            return self._summaries.search(owner, query, 2 * max(share, 1)), ()
        except Exception:  # noqa: BLE001 - words still find, whatever befell the index
            return (), ("summaries",)


def _touched(touch: Touch, known: StoredRecord | None) -> StoredRecord:
    return touch.applied_to(existing(known))
