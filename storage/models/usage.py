"""What calls to model providers cost, told to whoever counts. Neither questions nor answers are in it."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
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


_collecting: ContextVar[list[Usage] | None] = ContextVar("isotherm_usage", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[Usage]]:
    """What the calls inside cost, of models that `collect` observes; an inner one takes its own calls for itself."""
    used: list[Usage] = []
    token = _collecting.set(used)
    try:
        yield used
    finally:
        _collecting.reset(token)


def collect(usage: Usage) -> None:
    """Tell whoever collects in this thread, if anybody does."""
    used = _collecting.get()
    if used is not None:
        used.append(usage)


def ignore(_: Usage) -> None:
    """Count nothing."""


def tell(observer: UsageObserver, usage: Usage) -> None:
    """Tell an observer; one that fails does not lose an answer that was paid for."""
    with contextlib.suppress(Exception):
        observer(usage)
