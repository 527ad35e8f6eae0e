"""Tiered memory for hosts that know plain memories only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.budget import DEFAULT_TOTAL, RecallBudget
from isotherm.pipeline.tier.cognitive import CognitiveRecord, cognitive
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.weights import RecallWeights


def budget_of(limit: int) -> RecallBudget:
    """A budget of `limit` records; 0 or less is the default of 20."""
    return RecallBudget(total=limit if limit > 0 else DEFAULT_TOTAL)


class CognitiveAdapter:
    """Remembers and recalls plain memories in a manager.

    Args: weights: what counts in its recalls, None for the manager's; budget: what a limit means.
    """

    def __init__(
        self,
        manager: Manager,
        weights: RecallWeights | None = None,
        budget: Callable[[int], RecallBudget] = budget_of,
    ) -> None:
        self._manager = manager
        self._weights = weights
        self._budget = budget

    def remember(self, namespace: Namespace, record: CognitiveRecord) -> CognitiveRecord:
        """Store a memory; the same one again keeps its tier and its use. Returns: it as stored, with its id.

        Raises: as `Manager.remember`.
        """
        return cognitive(self._manager.remember(namespace, record.new()))

    def recall(self, namespace: Namespace, query: str, limit: int = 0) -> Sequence[CognitiveRecord]:
        """What matters most for a query, in chronological order. Raises: as `Manager.recall`."""
        answer = self._manager.recall(namespace, query, self._budget(limit), weights=self._weights)
        return [cognitive(item.record) for item in answer.items]
