"""The processes of a worker."""

from __future__ import annotations

from celery.concurrency import asynpool, prefork


class Pool(asynpool.AsynPool):  # type: ignore[misc]  # celery ships no types
    """Celery's own, which ended the whole worker when a process of it and the connection to the broker ended at one moment.

    When the connection is lost the pool is filled up, and what is left of it is watched anew, before all that belongs to an
    ended process was put away.
    """

    def get_process_queues(self) -> object:
        """Pipes for a new process: free ones, or more."""
        free = next((pipes for pipes, owner in self._queues.items() if owner is None), None)
        if free is None:
            free = self.create_process_queues()
            self._queues[free] = None
        return free

    def _track_child_process(self, proc: object, hub: object) -> None:
        """Watch for the end of a process, unless it was seen to have ended; it is replaced at the next look at the pool."""
        if getattr(proc, "_sentinel_poll", hub) is not None:
            super()._track_child_process(proc, hub)


class TaskPool(prefork.TaskPool):  # type: ignore[misc]
    """A worker's processes, made by forks."""

    Pool = Pool
