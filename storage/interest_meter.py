"""A chat model whose calls are counted against the budget of a run, before and after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Semaphore
from typing import Any
from uuid import UUID

from isotherm.pipeline.errors import BudgetSpentError, RejectedError, TransientError
from isotherm.pipeline.interest.budget import Budget, Prices, Spent, estimated
from isotherm.pipeline.ports import AnswerT, ChatModel, Question
from isotherm.storage.models.usage import Usage, collected
from isotherm.storage.postgres import interest_usage
from isotherm.storage.postgres.pool import Connection, statement


@dataclass(frozen=True, slots=True)
class Meter:
    """Where the calls of a step are counted, and what its run may spend.

    Args: budget: of the settings; one that the run has of its own counts instead, None when neither was there when the
        step began: what it is given meanwhile counts from its next step on.
    """

    operation_id: UUID
    stage: str
    unit: str
    model: str
    prices: Prices
    budget: Budget | None

    def demand(self, question: Question[Any]) -> None:
        """Ask whether a question may be asked.

        Calls that are under way side by side are not known yet, so these may go over the budget by what they cost; no
        call begins after that.
        Raises: BudgetSpentError; TransientError.
        """
        if self.budget is None:
            return
        tokens = _tokens_of(question)
        with statement() as conn:
            budget = interest_usage.granted(conn, self.operation_id) or self.budget
            spent = interest_usage.spent(conn, self.operation_id)
        why = budget.exceeded(spent, Spent(input_tokens=tokens, cost=self.prices.of(tokens, 0)))
        if why is not None:
            raise BudgetSpentError(f"the budget of the run is spent: {why}")

    def count(self, spent: Spent) -> None:
        """Add what a question came to. Raises: TransientError."""
        with statement() as conn:
            self.add(conn, spent)

    def add(self, conn: Connection, spent: Spent) -> None:
        """Add what questions came to in the caller's transaction."""
        interest_usage.add(conn, self.operation_id, self.stage, self.unit, self.model, spent)


@dataclass(frozen=True, slots=True)
class MeteredChat:
    """Asks while the budget lasts. What was paid for is counted whatever came of it: repairs, and answers of no use."""

    chat: ChatModel
    meter: Meter

    def ask(self, question: Question[AnswerT]) -> tuple[AnswerT, Spent]:
        """Ask the model; returns what it said, and what that cost, which is to be counted in the transaction that keeps it.

        Raises: BudgetSpentError, nothing asked; else as the model, and what that cost is counted already.
        """
        self.meter.demand(question)
        with collected() as used:
            try:
                said = self.chat.ask(question)
            except (RejectedError, TransientError):
                self.meter.count(_priced(used, question, None, self.meter.prices))
                raise
        return said, _priced(used, question, said.model_dump_json(), self.meter.prices)


@dataclass(frozen=True, slots=True)
class BoundedChat:
    """Has so many questions under way at a time. What its callers do before and after keeps no other question waiting."""

    chat: ChatModel
    places: Semaphore

    def ask(self, question: Question[AnswerT]) -> AnswerT:
        """Ask the model when there is a place. Raises: as the model."""
        with self.places:
            return self.chat.ask(question)


def _priced(used: Sequence[Usage], question: Question[Any], said: str | None, prices: Prices) -> Spent:
    """What answered requests came to; what the provider did not count is estimated from what was sent and said."""
    calls = len(used) or int(said is not None)
    told = [(u.input_tokens, u.output_tokens) for u in used] or [(None, None)] * calls
    guess = (_tokens_of(question), estimated(said or ""))
    pairs = [tuple(g if n is None else n for n, g in zip(pair, guess, strict=True)) for pair in told]
    missing = sum(g for pair in told for n, g in zip(pair, guess, strict=True) if n is None)
    inputs, outputs = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return Spent(
        calls=calls,
        repairs=max(calls - 1, 0),
        failures=int(said is None),
        input_tokens=inputs,
        output_tokens=outputs,
        estimated_tokens=missing,
        cost=prices.of(inputs, outputs),
        model_ms=sum(one.duration_ms for one in used),
    )


def _tokens_of(question: Question[Any]) -> int:
    return estimated(question.system + question.user)
