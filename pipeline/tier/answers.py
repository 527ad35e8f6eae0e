"""What a recall answers."""

from dataclasses import dataclass

from isotherm.pipeline.brain.graph_rank import Walked
from isotherm.pipeline.tier.learned import LearnedPoint
from isotherm.pipeline.tier.ranking import ScoreParts
from isotherm.pipeline.tier.records import Record


@dataclass(frozen=True, slots=True)
class Recalled:
    """A record of an answer, with the parts of its score and the indexes that proposed it.

    Args: key: its row, 0 where there are no rows; renewed_by: id of a record that says anew what this one says, None when none is known.
    """

    record: Record
    score: ScoreParts
    legs: frozenset[str]
    renewed_by: str | None = None
    key: int = 0


@dataclass(frozen=True, slots=True)
class Recall:
    """The answer of a recall, oldest record first.

    Args: degraded: parts that were out of reach and left out; truncated: whether a limit may have hidden records;
        walked: what a walk read, None where none was asked for; learned: points that
        match the query, most like it first, where they were asked for.
    """

    items: tuple[Recalled, ...] = ()
    degraded: tuple[str, ...] = ()
    truncated: bool = False
    walked: Walked | None = None
    learned: tuple[LearnedPoint, ...] = ()
