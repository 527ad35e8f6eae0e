"""A program of a soak: it makes calls until each is answered, and knows what it was told is stored."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.tasks import producers

T = TypeVar("T")
_BIG = 6_000


class HasOperation(Protocol):
    @property
    def operation_id(self) -> UUID: ...


@dataclass
class Program:
    """Its namespaces, what it was told is stored, and the operations it was given.

    A call that fails for a passing reason may have been taken all the same; it is repeated with its key until it is
    answered, as a program should. Args: cancelled: operations that it asked to stop; gone: those that were of something it
    had forgotten whole.
    """

    number: int
    seed: int
    over: threading.Event
    operations: set[UUID] = field(default_factory=set)
    cancelled: set[UUID] = field(default_factory=set)
    gone: set[UUID] = field(default_factory=set)
    erasures: set[UUID] = field(default_factory=set)
    repeats: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed}/{self.number}")
        self.agent = f"agent{self.number}"
        self.bank = Bank(None, self.agent)
        self.session = Namespace.of(self.agent, "s1")
        self.knowledge = producers.knowledge(self.agent)
        self.count = 0

    def insist(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except TransientError:
                self.repeats += 1
                time.sleep(self.dice.uniform(0.05, 0.4))

    def maybe(self, call: Callable[[], object]) -> None:
        """A call that may be refused: what it is about was changed meanwhile, or an answer was lost and it was taken."""
        with suppress(RejectedError):
            self.insist(call)

    def keep(self, call: Callable[[], HasOperation]) -> UUID:
        operation_id = self.insist(call).operation_id
        self.operations.add(operation_id)
        return operation_id

    def text(self) -> str:
        body = f"note {self.count} of {self.number} on kelp depth{self.count}"
        if self.dice.random() < 0.1:
            return f"{body} {self.dice.randbytes(_BIG).hex()}"
        return body

    def key(self) -> str:
        return f"{self.number}-{self.count}"
