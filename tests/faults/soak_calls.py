"""Callers that use every producer, and the model that saw the same calls."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar
from uuid import UUID, uuid5

from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import NewRecord
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.tasks import producers

T = TypeVar("T")
_NAMES = UUID("5f0c6f4e-6a0e-4a53-9a5e-0d1f7d6a1c55")
_OBJECTS = 25
_LABELS = ("about", "owns")
_BIG = 6_000


class HasOperation(Protocol):
    @property
    def operation_id(self) -> UUID: ...


@dataclass
class Caller:
    """One program: its namespaces, what it was told is stored, and the operations it was given.

    A call that fails for a passing reason may have been taken all the same; it is repeated with its key until it is
    answered, as a program should.
    """

    number: int
    seed: int
    over: threading.Event
    records: dict[str, str] = field(default_factory=dict)
    objects: dict[UUID, tuple[str, str]] = field(default_factory=dict)
    edges: dict[tuple[UUID, UUID, str], str] = field(default_factory=dict)
    messages: int = 0
    operations: set[UUID] = field(default_factory=set)
    repeats: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed}/{self.number}")
        self.session = Namespace.of(f"agent{self.number}", "s1")
        self.knowledge = producers.knowledge(f"agent{self.number}")
        self.count = 0

    def run(self, calls: int) -> None:
        """Make calls until there are enough and the faults are over."""
        verbs = (
            [self.remember] * 8 + [self.remember_many] * 2 + [self.update] * 4 + [self.pin] + [self.forget] * 2
            + [self.reconcile] + [self.restore] + [self.recall] * 3 + [self.put] * 6 + [self.put_many] * 2
            + [self.link] * 4 + [self.unlink] + [self.delete] * 2 + [self.search] * 2 + [self.ingest]
        )  # fmt: skip
        while len(self.operations) < calls or not self.over.is_set():
            if len(self.operations) >= calls:
                time.sleep(0.05)  # enough were made; a few more while faults go on
            self.count += 1
            self.dice.choice(verbs)()

    def insist(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except TransientError:
                self.repeats += 1
                time.sleep(self.dice.uniform(0.05, 0.4))

    def keep(self, call: Callable[[], HasOperation]) -> None:
        self.operations.add(self.insist(call).operation_id)

    def text(self) -> str:
        body = f"note {self.count} of {self.number} on kelp depth{self.count}"
        if self.dice.random() < 0.1:
            return f"{body} {self.dice.randbytes(_BIG).hex()}"
        return body

    def key(self) -> str:
        return f"{self.number}-{self.count}"

    def known(self) -> str | None:
        return self.dice.choice(list(self.records)) if self.records else None

    def remember(self) -> None:
        record_id, text = f"r{self.count}", self.text()
        self.keep(lambda: producers.remember(self.session, text, record_id=record_id, key=self.key()))
        self.records[record_id] = text

    def remember_many(self) -> None:
        now = datetime.now(UTC)
        batch = {f"r{self.count}-{n}": f"{self.text()} part{n}" for n in range(self.dice.randint(2, 12))}
        records = [NewRecord(i, text, now) for i, text in batch.items()]
        self.keep(lambda: producers.remember_records(self.session, records, key=self.key()))
        self.records |= batch

    def update(self) -> None:
        if (record_id := self.known()) is not None:
            text = self.text()
            self.keep(lambda: producers.update(self.session, record_id, content=text, key=self.key()))
            self.records[record_id] = text

    def pin(self) -> None:
        if (record_id := self.known()) is not None:
            self.keep(lambda: producers.pin(self.session, [record_id], key=self.key()))
            self.keep(lambda: producers.unpin(self.session, [record_id], key=f"{self.key()}u"))

    def forget(self) -> None:
        if (record_id := self.known()) is not None:
            del self.records[record_id]
            self.keep(lambda: producers.forget(self.session, [record_id], key=self.key()))

    def reconcile(self) -> None:
        if self.records:
            self.keep(lambda: producers.reconcile(self.session))

    def restore(self) -> None:
        if (record_id := self.known()) is not None:
            self.keep(lambda: producers.restore(self.session, [record_id]))

    def recall(self) -> None:
        if not self.records:
            return
        for item in self.insist(
            lambda: producers.recall(self.session, f"kelp depth{self.dice.randint(1, self.count)}")
        ).items:
            if item.record.namespace != self.session:
                self.wrong.append("a recall answered from another namespace")

    def ids(self) -> list[UUID]:
        return [uuid5(_NAMES, f"{self.number}/{n}") for n in range(_OBJECTS)]

    def put(self) -> None:
        object_id, title, text = self.dice.choice(self.ids()), f"title {self.count}", self.text()
        self.keep(
            lambda: producers.put(
                self.knowledge, "note", object_id=object_id, title=title, content=text, key=self.key()
            )
        )
        self.objects[object_id] = (title, text)

    def put_many(self) -> None:
        chosen = {i: (f"title {self.count}", f"{self.text()} {i}") for i in self.dice.sample(self.ids(), 4)}
        objects = [NewObject(i, "note", title, "", text) for i, (title, text) in chosen.items()]
        self.keep(lambda: producers.put_many(self.knowledge, objects, key=self.key()))
        self.objects |= chosen

    def link(self) -> None:
        if len(self.objects) > 1:
            [source, target], label = self.dice.sample(list(self.objects), 2), self.dice.choice(_LABELS)
            note = f"note {self.count}"
            self.keep(lambda: producers.link(self.knowledge, source, target, label, note=note, key=self.key()))
            self.edges[source, target, label] = note

    def unlink(self) -> None:
        if shown := [e for e in self.edges if e[0] in self.objects and e[1] in self.objects]:
            edge = self.dice.choice(shown)
            self.keep(lambda: producers.unlink(self.knowledge, *edge, key=self.key()))
            del self.edges[edge]

    def delete(self) -> None:
        if self.objects:
            object_id = self.dice.choice(list(self.objects))
            self.keep(lambda: producers.soft_delete(self.knowledge, object_id, key=self.key()))
            del self.objects[object_id]  # its edges come back with it

    def search(self) -> None:
        if self.objects:
            for hit in self.insist(lambda: producers.search(self.knowledge, "kelp")).results:
                if hit.object.id not in self.ids():
                    self.wrong.append("a search answered from another namespace")

    def ingest(self) -> None:
        if self.count % 4:
            return
        session, now = Namespace.of(f"agent{self.number}", f"talk{self.count}"), datetime.now(UTC)
        lines = [
            TranscriptLine(n + 1, session.agent, session.session or "", None, "user",
                           f"I like to sail boat{n} with friend{self.count}", now - timedelta(minutes=9 - n))
            for n in range(3)
        ]  # fmt: skip
        self.keep(lambda: producers.ingest_session(session, lines))
        self.messages += len(lines)
