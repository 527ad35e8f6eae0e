"""What a program of a soak asks about records, and what must be stored of them then."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from soak_program import Program

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.portable import PortableRecord, read_line
from isotherm.pipeline.tier.records import NewRecord
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.tasks import producers

_AGAIN_S = 2.0


@dataclass
class TierCalls(Program):
    """Args: records: of its session, by id; copies: of the session it imports into."""

    records: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    chats: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.copied = Namespace.of(self.agent, "copy")
        self.chat = Namespace.of(self.agent, "chat")

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

    def chatted(self) -> None:
        """Messages of a session without interests."""
        now = datetime.now(UTC)
        lines = [
            TranscriptLine(n + 1, self.agent, "chat", None, "user", f"{self.text()} line{n}", now) for n in range(3)
        ]
        self.keep(lambda: producers.remember_messages(lines))
        self.chats += len(lines)

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
            self.erasures.add(self.keep(lambda: producers.forget(self.session, [record_id], key=self.key())))

    def reconcile(self) -> None:
        if self.records:
            self.insist(lambda: producers.release(None, self.agent))
            self.keep(lambda: producers.reconcile(self.session))

    def cancel(self) -> None:
        """A pass that is asked for and stopped, wherever it is by then."""
        if self.records:
            operation_id = self.keep(lambda: producers.reconcile(self.session))
            self.cancelled.add(operation_id)
            self.maybe(lambda: producers.cancel(operation_id))  # it may be over

    def restore(self) -> None:
        if (record_id := self.known()) is not None:
            self.keep(lambda: producers.restore(self.session, [record_id]))

    def recall(self) -> None:
        if not self.records:
            return
        words = f"kelp depth{self.dice.randint(1, self.count)}"
        found = [item.record for item in self.insist(lambda: producers.recall(self.session, words)).items]
        found += self.insist(lambda: producers.recall_context(self.session, words)).records
        self.wrong += [
            "a recall answered from another namespace" for record in found if record.namespace != self.session
        ]

    def look(self) -> None:
        """What was stored is read back at once, whatever is hurt; and the other readers answer."""
        if (record_id := self.known()) is None:
            return
        read = self.insist(lambda: producers.get(self.session, record_id, whole=True))
        if read.content is None:  # the folder of the blobs is being put aside
            time.sleep(_AGAIN_S)
            read = self.insist(lambda: producers.get(self.session, record_id, whole=True))
        if read.content != self.records[record_id]:
            self.wrong.append(f"record {record_id} of caller {self.number} was read as it was not stored")
        self.insist(lambda: producers.explain(self.session, record_id, query="kelp"))
        self.insist(lambda: producers.list_all(self.session, limit=50))
        self.insist(lambda: producers.plan(self.session))
        self.insist(lambda: producers.set_aside(None, self.agent))
        self.insist(lambda: producers.plan_for_quota(None))
        if self.session not in self.insist(lambda: producers.list_namespaces(None, self.agent)):
            self.wrong.append(f"the session of caller {self.number} is not listed")

    def unknown(self) -> None:
        """What was forgotten stays forgotten."""
        try:
            self.insist(lambda: producers.get(self.session, f"never{self.count}"))
        except RejectedError:
            return
        self.wrong.append(f"caller {self.number} found a record that nobody stored")

    def move(self) -> None:
        """An export of the session, and its import into another one, where what is there already stays."""
        lines = self.insist(lambda: list(producers.export(self.session)))
        if not lines:
            return
        found = [read_line(line.encode()) for line in lines]
        if {record.id: record.content for record in found} != self.records:
            self.wrong.append(f"an export of caller {self.number} has not what was stored")
        some = self.dice.sample(found, min(5, len(found)))
        copied = [PortableRecord.parse({**record.model_dump(), "session": self.copied.session}) for record in some]
        self.keep(lambda: producers.import_records(copied))
        self.copies = {record.id: record.content for record in copied} | self.copies
