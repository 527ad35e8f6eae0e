"""Beat's scheduler: ticks go on at their pace when the machine's clock jumps, and beat ends when it is told to."""

from __future__ import annotations

import time
from typing import Any

from celery.beat import PersistentScheduler

from isotherm.tasks.log import log

# What wall clock and monotonic clock may differ by between two looks; clocks that are slewed stay far below.
_JUMP_S = 1.0


class SteadyScheduler(PersistentScheduler):  # type: ignore[misc]  # Celery ships no types
    """Celery's own one waits until the clock is again where it was, for hours after it was set back by hours.

    Here a jump makes the times of all entries anew: what is due is sent, the rest after one pace at most.

    Celery closes its scheduler in the handler of a signal. In the middle of a message that means a second use of a connection
    which the first one holds, and waits without end; here the tick that was interrupted ends first, and then it is closed.
    """

    _ahead_s: float | None = None
    _is_ticking = False

    def tick(self, *args: Any, **options: Any) -> float:  # noqa: ANN401 - as the class above
        """Send what is due; returns the seconds until the next look."""
        ahead = time.time() - time.monotonic()
        if self._ahead_s is None or abs(ahead - self._ahead_s) > _JUMP_S:
            if self._ahead_s is not None:
                log.warning("beat.clock_jumped", seconds=round(ahead - self._ahead_s, 3))
            self._begin_anew()
        self._ahead_s = ahead
        self._is_ticking = True
        try:
            return float(super().tick(*args, **options))
        finally:
            self._is_ticking = False

    def close(self) -> None:
        """Save the schedule and close the connection; not in a tick, whose end does it again."""
        if not self._is_ticking:
            super().close()

    def _begin_anew(self) -> None:
        """No entry was sent later than now; that goes for the times of an earlier life too, which a file keeps."""
        for entry in self.schedule.values():
            entry.last_run_at = min(entry.last_run_at, entry.default_now())
        self._heap = None
