"""Ranks stored points for a query, and shows how."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from isotherm.pipeline.interest.freshness import Freshness

# Vectors of unrelated short texts lie below this.
LEAST_SIMILARITY = 0.25
_FRESH = {Freshness.FRESH: 1.0, Freshness.AGING: 0.6, Freshness.STALE: 0.2}
_SESSIONS_FULL = 8


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each part counts; they sum to 1."""

    similarity: float = 0.70
    freshness: float = 0.10
    sessions: float = 0.10
    reliability: float = 0.10


@dataclass(frozen=True, slots=True)
class Score:
    """The parts of a score, each in [0, 1], and their weighted sum."""

    similarity: float
    freshness: float
    sessions: float
    reliability: float
    total: float


def score(
    similarity: float, fresh: Freshness, sessions: int, reliability: float, weights: Weights | None = None
) -> Score:
    """Score a point. Args: similarity: the larger of cosine and shared words, in [0, 1]; sessions: distinct ones."""
    w = weights or Weights()
    seen = min(1.0, log2(1 + max(sessions, 0)) / log2(1 + _SESSIONS_FULL))
    parts = (min(1.0, max(0.0, similarity)), _FRESH[fresh], seen, min(1.0, max(0.0, reliability)))
    total = parts[0] * w.similarity + parts[1] * w.freshness + parts[2] * w.sessions + parts[3] * w.reliability
    return Score(*parts, total)
