"""The leg of a recall that walks: what it adds to the likeness of records, and how it is shown.

Records, the things they name and the points that were learned from them are one graph; a walk over it from the best hits
and from who is named in the query meets records that no word of the query is in. See `isotherm.pipeline.brain.graph_rank`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from isotherm.pipeline.tier.ranking import Candidate, Scored, ScoreParts, recency
from isotherm.pipeline.tier.weights import RecallWeights

GRAPH: Final = "graph"
# From one record to the next are two edges where there is one between objects, so a walk goes on by the root of its chance,
# and what is left of it on the objects in between is made good for by weight.
DAMPING: Final = 0.7
WEIGHT: Final = 24.0


def joined(
    ranked: Iterable[Scored],
    found: Iterable[Candidate],
    chances: Mapping[int, float],
    weights: RecallWeights,
    now: datetime,
) -> list[Scored]:
    """Add what a walk says to what the other legs say.

    The best record stays as like the query as the best one was before, so that age and importance keep their weight.

    Args: ranked: best first; found: further records; chances: by row key, 1 where the walk is most.
    Returns: all of them, best first; what has no chance stays behind those that have one as far as it was.
    """
    every = [*ranked, *(Scored(one, _unscored(one, now)) for one in found)]
    level = max((item.parts.semantic for item in every), default=0.0) or 1.0
    added = [WEIGHT * level * chances.get(item.candidate.key, 0.0) for item in every]
    most = max((item.parts.semantic + more for item, more in zip(every, added, strict=True)), default=0.0)
    factor = level / most if most > 0 else 1.0
    raised = [_raised(item, more, factor, weights) for item, more in zip(every, added, strict=True)]
    return sorted(raised, key=lambda item: (-item.parts.total, item.candidate.id, item.candidate.key))


def _unscored(one: Candidate, now: datetime) -> ScoreParts:
    return ScoreParts(0.0, 0.0, None, recency(one.created_at, now), min(1.0, max(0.0, one.importance)), 0.0)


def _raised(item: Scored, added: float, factor: float, weights: RecallWeights) -> Scored:
    parts = item.parts
    semantic = factor * (parts.semantic + added)
    total = weights.semantic * semantic + weights.recency * parts.recency + weights.importance * parts.importance
    shares = {leg: factor * share for leg, share in parts.shares.items()}
    legs = item.candidate.legs
    if added > 0:
        shares[GRAPH], legs = factor * added, legs | {GRAPH}
    return Scored(item.candidate._replace(legs=legs), replace(parts, semantic=semantic, total=total, shares=shares))


def seeds(ranked: Sequence[Scored], most: int) -> list[Scored]:
    """Where walks begin: the best that the query found."""
    return [item for item in ranked[:most] if item.parts.is_relevant]
