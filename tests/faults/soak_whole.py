"""Guests of a soak: tenants whose memory is written and forgotten whole, under names that are used again and again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from soak_program import HasOperation, Program

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.tasks import producers

_WAYS = 4


class WholeCalls(Program):
    def guest(self) -> None:
        """Memory of each kind, forgotten while the work on it is on its way."""
        way = self.dice.randrange(_WAYS)
        bank = Bank(f"tenant{self.number}-{way}", f"guest{self.number}")
        session = Namespace.of(bank.agent, "s1", tenant=bank.tenant)
        for n in range(3):
            self.pass_by(lambda n=n: producers.remember(session, f"{self.text()} guest{n}", record_id=f"g{n}"))  # type: ignore[misc]
        if way >= 2:
            knowledge = producers.knowledge(bank.agent, tenant=bank.tenant)
            self.pass_by(lambda: producers.put(knowledge, "note", title="guest", content=self.text(), key=self.key()))
        if way >= 1:
            said = f"Tell me about guest{self.count}."
            line = TranscriptLine(1, session.agent, "s1", bank.tenant, "user", said, datetime.now(UTC))
            self.pass_by(lambda: producers.ingest_session(session, [line]))
        key = self.key()
        forgets = (
            lambda: producers.forget(session, key=key),
            lambda: producers.forget_session(bank, "s1", key=key),
            lambda: producers.forget_agent(bank, key=key),
            lambda: producers.forget_tenant(str(bank.tenant), key=key),
        )
        self.erasures.add(self.keep(forgets[way]))

    def pass_by(self, call: Callable[[], HasOperation]) -> None:
        """An operation that may be gone by the time anybody looks."""
        self.gone.add(self.insist(call).operation_id)

    def look_back(self) -> None:
        """An operation of before is asked about, and asked to run again, which is refused when nothing of it failed."""
        if self.operations:
            operation_id = self.dice.choice(sorted(self.operations))
            self.maybe(lambda: producers.operation(operation_id))  # it may be gone with what was forgotten since
            self.maybe(lambda: producers.retry(operation_id))
