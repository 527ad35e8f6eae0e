"""What a recall answers."""

from dataclasses import dataclass

from isotherm.pipeline.tier.ranking import ScoreParts
from isotherm.pipeline.tier.records import Record


@dataclass(frozen=True, slots=True)
class Recalled:
    """A record of an answer, with the parts of its score and the indexes that proposed it."""

    record: Record
    score: ScoreParts
    legs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Recall:
    """The answer of a recall, oldest record first.

    Args: degraded: parts that were out of reach and left out; truncated: whether a limit may have hidden records.
    """

    items: tuple[Recalled, ...] = ()
    degraded: tuple[str, ...] = ()
    truncated: bool = False
