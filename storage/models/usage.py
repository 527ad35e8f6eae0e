"""What calls to model providers cost, told to whoever counts. Neither questions nor answers are in it."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """One answered call.

    Args: purpose: name of the question, or `embed`; model: as the provider was asked for it; attempts: requests sent
        until it answered; input_tokens, output_tokens: as the provider counts, None when it does not say;
        duration_ms: waits included.
    """

    purpose: str
    model: str
    attempts: int
    input_tokens: int | None
    output_tokens: int | None
    duration_ms: int


UsageObserver = Callable[[Usage], None]


def ignore(_: Usage) -> None:
    """Count nothing."""


def tell(observer: UsageObserver, usage: Usage) -> None:
    """Tell an observer; one that fails does not lose an answer that was paid for."""
    with contextlib.suppress(Exception):
        observer(usage)
