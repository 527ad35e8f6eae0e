"""Newer knowledge is preferred, within bounds: age alone never buries a strong match."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from isotherm.pipeline.errors import RejectedError

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Decay:
    """What age does to a score.

    Args: per_day: rate of decay, 0 or less switches it off; floor: the share of a score that age cannot take, in
        [0, 1]; 0 lets it fade entirely.
    """

    per_day: float = 0.02
    floor: float = 0.85

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1 or not math.isfinite(self.per_day):
            raise RejectedError("decay: a floor in [0, 1] and a finite rate are needed")

    @classmethod
    def off(cls) -> Self:
        """Age changes nothing."""
        return cls(per_day=0.0)

    def apply(self, score: float, updated_at: datetime | None, now: datetime) -> float:
        """Return the score at a time: score * (floor + (1 - floor) * exp(-per_day * days)).

        Args: updated_at: aware; one in the future, or None, leaves the score as it is.
        """
        if updated_at is None or self.per_day <= 0:
            return score
        days = max((now - updated_at).total_seconds(), 0.0) / _DAY_S
        return score * (self.floor + (1 - self.floor) * math.exp(-self.per_day * days))
