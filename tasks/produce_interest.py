"""What other programs import for interests: a session goes in; interests with evidence, and contradictions, come out.

Each call of `ingest_session` is durable when it returns; the others read in the process that calls them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Bank, Namespace, check_names
from isotherm.pipeline.interest.budget import Budget
from isotherm.pipeline.interest.context import Block
from isotherm.pipeline.interest.ranking import Span
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.interest import Contradiction, InterestRecall
from isotherm.storage.postgres import interest_changes, interest_runs, interest_usage, outbox, steps
from isotherm.storage.postgres.interest_changes import LogEntry, Undone
from isotherm.storage.postgres.interest_read import Interest
from isotherm.storage.postgres.interest_runs import FailedUnit, Run
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import of_owner, over_all
from isotherm.storage.postgres.steps import NewStep
from isotherm.tasks import produce_records
from isotherm.tasks.accepted import Accepted

__all__ = [
    "Budget",
    "FailedUnit",
    "LogEntry",
    "Run",
    "Undone",
    "contradictions",
    "grant_budget",
    "ingest_session",
    "interest_context",
    "interests",
    "recall_interests",
    "reopen_contradiction",
    "resolve_contradiction",
    "run_of",
    "runs",
    "undo_change",
]

KIND = "session.ingest"


def ingest_session(namespace: Namespace, lines: Sequence[TranscriptLine]) -> Accepted:
    """Store messages of one session and find out what its user cares about, under one operation.

    The messages are stored when this returns; interests follow in the background, over all that is stored of the session.
    The same messages again change nothing; with more of them, what is new is added to what is known.

    Args: namespace: of the session, whatever the lines say; lines: 1 to 1,000.
    Raises: RejectedError for input that cannot be stored; TransientError when PostgreSQL cannot be reached.
    """
    namespace.check()
    if namespace.session is None:
        raise RejectedError("session: interests are read from a session, and this namespace names none")
    most = storage.open().settings.max_content
    pairs = [(namespace, produce_records.message_record(namespace, line).cleaned(max_bytes=most)) for line in lines]
    said = [part for _, r in pairs for part in (r.id, hashlib.sha256(r.content.encode()).digest())]
    key = digest("session", namespace.key, *said).hex()
    return produce_records.store(pairs, key=key, kind=KIND, also=_begin)


def _begin(conn: Connection, new: NewOperation) -> list[Message]:
    """Write the first step of the run beside the messages, in their transaction."""
    patience = storage.open().patience
    first = NewStep(stages.EXTRACT, {"namespace_id": new.namespace_id})
    step_id = steps.add(conn, new.id, [first], retry_for=patience.retry_for, nudge_after=patience.nudge_after)[0]
    message = outbox.announce(
        conn, first.stage, step_id, operation_id=new.id, trace_id=new.trace_id, delay=patience.grace
    )
    return [message]


def interests(bank: Bank, *, limit: int = 100) -> list[Interest]:
    """What a bank's users care about: what most sessions said first. Raises: TransientError, RejectedError."""
    return storage.open().interest.listed(bank, limit=limit)


def recall_interests(bank: Bank, query: str, *, limit: int = 8, span: Span | None = None) -> InterestRecall:
    """Interests that have to do with a query, best first, with the parts of their scores.

    Reads in this process: no worker takes part.
    Args: span: only those for which something was said then.
    Raises: TransientError, RejectedError.
    """
    return storage.open().interest.recall(bank, query, limit=limit, span=span)


def interest_context(bank: Bank, query: str, *, budget: int = 400, limit: int = 8, span: Span | None = None) -> Block:
    """The same as a block of text for an agent's prompt: delimited, each line with where it comes from.

    Args: budget: of tokens for the whole block.
    Raises: TransientError, RejectedError.
    """
    return storage.open().interest.context(bank, query, budget=budget, limit=limit, span=span)


@of_owner
def resolve_contradiction(bank: Bank, contradiction: UUID, *, side: str | None = None) -> bool:
    """Settle a contradiction; False when it was settled before. Both points stay.

    Args: side: left or right, the one that counts from now on; None leaves it with the one that counts now.
    Raises: RejectedError for one that is not known here, or another side; TransientError.
    """
    if side not in (None, "left", "right"):
        raise RejectedError("side: left or right")
    storage.open()
    with connection() as conn:
        return interest_changes.settle(conn, bank, contradiction, status="resolved", side=side)


@of_owner
def reopen_contradiction(bank: Bank, contradiction: UUID) -> bool:
    """Open a settled contradiction again, the side that counts told by the rules; False when it is open.

    Raises: as `resolve_contradiction`.
    """
    storage.open()
    with connection() as conn:
        return interest_changes.settle(conn, bank, contradiction, status="open")


@of_owner
def undo_change(bank: Bank, entry: int) -> Undone:
    """Take back a merge or an archiving, by its id in the log of changes; what was said stays with what said it.

    Raises: RejectedError for an entry that is not known here, of another kind, or undone already; TransientError.
    """
    storage.open()
    with connection() as conn:
        return interest_changes.undo(conn, bank, entry)


def contradictions(bank: Bank, *, resolved: bool = False, limit: int = 100) -> list[Contradiction]:
    """Contradictions of a bank, newest first, with both sides, their evidence, and which side counts now.

    Raises: TransientError, RejectedError.
    """
    return storage.open().interest.contradictions(bank, resolved=resolved, limit=limit)


@over_all
def runs(*, agent: str | None = None, tenant: str | None = None, limit: int = 20) -> list[Run]:
    """The newest runs over sessions, with their stages and what they cost; for operators: without names those of all.

    Raises: RejectedError, TransientError.
    """
    if limit < 1:
        raise RejectedError("limit: 1 or more")
    check_names(tenant=tenant, agent=agent)
    storage.open()
    with connection() as conn:
        return interest_runs.listed(conn, tenant=tenant, agent=agent, limit=limit)


@over_all
def run_of(operation_id: UUID) -> tuple[Run, list[FailedUnit]]:
    """One run, and what of it failed. Raises: RejectedError when there is no such run; TransientError."""
    storage.open()
    with connection() as conn:
        return interest_runs.one(conn, operation_id), interest_runs.failed_units(conn, operation_id)


@over_all
def grant_budget(operation_id: UUID, budget: Budget) -> None:
    """Give a run a budget of its own, what it has spent already included; a retry goes on with it.

    Raises: RejectedError when there is no such run, or money is to be counted without prices; TransientError.
    """
    chosen = storage.open().settings
    if budget.money is not None and None in {chosen.chat_input_price, chosen.chat_output_price}:
        raise RejectedError("money: the settings name no price of a model's tokens")
    if min(budget.tokens or 0, budget.money or 0) < 0:
        raise RejectedError("budget: 0 or more")
    with connection() as conn:
        interest_usage.grant(conn, interest_runs.one(conn, operation_id).id, budget)
