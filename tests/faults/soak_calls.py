"""Callers that use every producer, and the model that saw the same calls."""

from __future__ import annotations

import time
from dataclasses import dataclass

from soak_brain import BrainCalls
from soak_interest import InterestCalls
from soak_tier import TierCalls
from soak_whole import WholeCalls

from isotherm.storage.postgres.pool import fetch_all

_AHEAD = 250
_LOOK_EVERY = 5


@dataclass
class Caller(TierCalls, BrainCalls, InterestCalls, WholeCalls):
    """One program with all its calls."""

    def run(self, calls: int) -> None:
        """Make calls until there are enough and the faults are over."""
        verbs = (
            [self.remember] * 16 + [self.remember_many] * 4 + [self.chatted] * 2 + [self.update] * 8 + [self.pin] * 2
            + [self.forget] * 4 + [self.reconcile] * 2 + [self.cancel] + [self.restore] * 2 + [self.recall] * 4
            + [self.look] * 4 + [self.unknown] + [self.move] + [self.put] * 10 + [self.put_many] * 4 + [self.save] * 2
            + [self.take_in] * 2 + [self.link] * 8 + [self.unlink] * 2 + [self.delete] * 4 + [self.search] * 3
            + [self.read_object] * 3 + [self.ingest] * 2 + [self.forget_talk] + [self.forget_interest]
            + [self.erase] * 2 + [self.settle] + [self.undo] + [self.ask]
            + [self.guest] * 2 + [self.look_back] * 2
        )  # fmt: skip
        while len(self.operations) < calls or not self.over.is_set():
            if len(self.operations) >= calls:
                time.sleep(0.05)  # enough were made; a few more while faults go on
            if self.count % _LOOK_EVERY == 0:
                self.wait_for_workers()
            self.count += 1
            self.dice.choice(verbs)()

    def wait_for_workers(self) -> None:
        """Go on once the workers are not too far behind: what is hurt should be work, and not a queue."""
        while self.insist(_open) > _AHEAD:
            time.sleep(0.2)


def _open() -> int:
    return int(fetch_all("SELECT count(*) FROM operations WHERE finished_at IS NULL")[0][0])
