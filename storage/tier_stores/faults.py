"""What a store found damaged: set aside, remembered and told to whoever asked, never raised into a read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from isotherm.pipeline.identity import Namespace

_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Damaged:
    """A record that cannot be read.

    Args: namespace, record_id: None when its bytes do not say whose they are; where: the name they were set aside under;
        why: how it is damaged, without any of its text.
    """

    namespace: Namespace | None
    record_id: str | None
    where: str
    why: str


class Faults:
    """The damaged records a store has met since it was opened, the newest 1,000 of them.

    Args: report: told of each; when it fails, the read goes on.
    """

    def __init__(self, report: Callable[[Damaged], None] | None = None) -> None:
        self._report = report
        self._found: deque[Damaged] = deque(maxlen=_KEPT)

    def add(self, damaged: Damaged) -> None:
        """Remember one, and tell."""
        self._found.append(damaged)
        if self._report is not None:
            with suppress(Exception):
                self._report(damaged)

    def found(self) -> tuple[Damaged, ...]:
        """Those kept, oldest first."""
        return tuple(self._found)
