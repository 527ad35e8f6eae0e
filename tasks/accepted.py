"""What a producer answers."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer of a producer.

    Args: operation_id: what to ask about later; ids: of the records, in the order given; new: False when the call
    repeated an earlier one; written: records that are new or changed.
    """

    operation_id: UUID
    ids: tuple[str, ...] = ()
    new: bool = True
    written: int = 0
