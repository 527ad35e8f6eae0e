"""One answer for an agent's prompt: what recall found, with the turns around it, packed within a budget of tokens."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from isotherm.pipeline.clean import whole_number
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.answers import Recalled
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.packing import Packed, Window, pack
from isotherm.pipeline.tier.ranking import Touch
from isotherm.storage.postgres import tier_recall
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import reading
from isotherm.storage.postgres.reach import of_owner
from isotherm.storage.tier import TierMemory

TOKENS = 1_500
LIMIT = 20
WINDOW = 1
MOST_AROUND = 20


@of_owner
def context(
    memory: TierMemory,
    scope: Scope,
    query: str,
    *,
    tokens: int = TOKENS,
    window: int = WINDOW,
    limit: int = LIMIT,
    touch: bool | Touch = Touch.RELEVANT,
    now: datetime | None = None,
    graph: bool = False,
    learned: bool = True,
) -> Packed:
    """Recall, and pack what was found in order of time; each line names its record.

    Args: tokens: for the whole block, estimated; window: turns shown before and after each hit, 0 to 20, never of another
        session; limit: hits at most; graph, learned: as for `TierMemory.recall`, and what was learned is shown, too.
    Raises: RejectedError for another window, or no whole number; TransientError when PostgreSQL cannot be reached.
    """
    budget = whole_number(tokens, "tokens")
    if not 0 <= whole_number(window, "window") <= MOST_AROUND:
        raise RejectedError(f"window: from 0 to {MOST_AROUND}")
    moment = now or datetime.now(UTC)
    answer = memory.recall(
        scope, query, budget=RecallBudget(total=limit), touch=touch, now=moment, graph=graph, learned=learned
    )
    best = sorted(answer.items, key=_order)
    with reading() as conn:
        around = tier_recall.windows(conn, [item.key for item in best], scope, window, moment) if window else {}
    windows = [Window(item.record, around.get(item.key, [item.record]), item.renewed_by) for item in best]
    return replace(pack(windows, budget, answer.learned), degraded=answer.degraded, truncated=answer.truncated)


def _order(item: Recalled) -> tuple[bool, float, float]:
    """What a reranker rated comes first, by that; the rest by its score."""
    relevance = item.score.relevance
    return relevance is None, -(relevance or 0.0), -item.score.total
