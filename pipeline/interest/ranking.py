"""Ranks stored points for a query, and shows how."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import log2

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.interest.freshness import Freshness

# Vectors of unrelated short texts lie below this.
LEAST_SIMILARITY = 0.25
_FRESH = {Freshness.FRESH: 1.0, Freshness.AGING: 0.6, Freshness.STALE: 0.2}
_SESSIONS_FULL = 8
_DAYS_MAX = 36_500


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in which something was said.

    Args: after: its beginning; before: its end, not included; days: it begins so many days before now; with `after` as well
        it begins at the later of both.
    """

    after: datetime | None = None
    before: datetime | None = None
    days: float | None = None

    def bounds(self, now: datetime) -> tuple[datetime | None, datetime | None]:
        """Beginning and end, None for none. Raises: RejectedError for a time without a zone, or days that are not positive."""
        if any(at is not None and at.utcoffset() is None for at in (self.after, self.before)):
            raise RejectedError("after, before: times need a time zone")
        if self.days is None:
            return self.after, self.before
        if not 0 < self.days <= _DAYS_MAX:
            raise RejectedError(f"days: more than 0, at most {_DAYS_MAX}")
        begun = now - timedelta(days=self.days)
        return max(self.after or begun, begun), self.before


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
