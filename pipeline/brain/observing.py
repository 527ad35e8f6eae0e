"""Who is told of every call of the engine: how long it took, what each leg gave, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Op(StrEnum):
    """The verbs of the engine."""

    PUT = "put"
    SOFT_DELETE = "soft_delete"
    LINK = "link"
    UNLINK = "unlink"
    READ = "read"
    LIST_CHILDREN = "list_children"
    SCHEMA = "schema"
    SEARCH = "search"
    FIND_EXACT = "find_exact"
    FIND_OBJECTS = "find_objects"
    FIND_LINKS = "find_links"
    CONTINUE = "continue"
    EXPAND = "expand"
    EXPAND_MANY = "expand_many"
    EXPAND_BY_RECIPE = "expand_by_recipe"


@dataclass(slots=True)
class Outcome:
    """What a call did, filled in while it runs.

    Args: hits: objects or links that were answered or changed; degraded: legs that were left out; legs: candidates by
        leg; error: the type of what was raised, never its message; elapsed_ms: set at the end.
    """

    op: Op
    hits: int = 0
    degraded: tuple[str, ...] = ()
    legs: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    elapsed_ms: float = 0.0


class OpObserver(Protocol):
    """Is told of calls once they ended. What it raises disturbs nobody."""

    def ended(self, outcome: Outcome) -> None:
        """A call ended, well or not."""
        ...


@contextmanager
def observed(observer: OpObserver | None, op: Op) -> Iterator[Outcome]:
    """Measure a call and tell the observer of it, whatever happens."""
    outcome, begun = Outcome(op), time.perf_counter()
    try:
        yield outcome
    except BaseException as error:
        outcome.error = type(error).__name__
        raise
    finally:
        outcome.elapsed_ms = (time.perf_counter() - begun) * 1_000
        if observer is not None:
            try:
                observer.ended(outcome)
            except Exception:  # noqa: BLE001 - an observer must not change the answer of what it looks at
                outcome.error = outcome.error or "observer"
