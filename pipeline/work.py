"""Rules of durable work: how an operation's state follows from its steps, and how long a retry waits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum


class StepState(StrEnum):
    """States of a step; the last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


class OperationState(StrEnum):
    """States of an operation; all but the first two are final."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


def derive_state(steps: Iterable[StepState]) -> OperationState:
    """The state of an operation with these steps. An operation without steps has only been accepted."""
    states = set(steps)
    if not states or states == {StepState.PENDING}:
        return OperationState.ACCEPTED
    if states & {StepState.PENDING, StepState.RUNNING}:
        return OperationState.RUNNING
    if states == {StepState.DONE}:
        return OperationState.DONE
    if StepState.CANCELLED in states:
        return OperationState.CANCELLED
    if StepState.DONE in states:
        return OperationState.PARTIAL
    return OperationState.DEAD if StepState.DEAD in states else OperationState.FAILED


def backoff(tries: int, base: timedelta, cap: timedelta, jitter: float = 0.0) -> timedelta:
    """How long to wait before the next try.

    Args: tries: how many tries went before (0 or more); base: first wait; cap: longest wait; jitter: in [0, 1], the
    share of a quarter of the wait that is added, so that many waiters do not come back at once.
    """
    wait = min(base * (1 << min(tries, 30)), cap)
    return wait * (1 + 0.25 * jitter)
