"""What ticks that catch up on old rows share: few rows at a time, while the stage that does them keeps up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.storage.postgres import steps
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.tier_write import Patience
from isotherm.tasks.publish import publish_after_commit

T = TypeVar("T")


def catch_up(
    kind: str,
    stage: str,
    most_waiting: int,
    take: Callable[[Connection], dict[tuple[int, int], list[T]]],
    begin: Callable[[Connection, NewOperation, list[T], Patience], Iterable[Message]],
) -> dict[tuple[int, int], list[T]]:
    """Take rows and begin an operation for each namespace of them, in one transaction; nothing while many steps wait.

    Args: kind: of the operations; stage: what they have to do; most_waiting: steps of it that nobody has claimed;
        take: returns rows by bank and namespace; begin: writes an operation over some of them.
    Returns: what was taken.
    """
    patience = storage.open().patience
    messages: list[Message] = []
    with connection() as conn:
        if steps.unclaimed(conn, stage, most_waiting) >= most_waiting:
            return {}
        taken = take(conn)
        for (bank, namespace), rows in taken.items():
            new = NewOperation(uuid7(), kind, uuid4(), bank_id=bank, namespace_id=namespace)
            messages += begin(conn, new, rows, patience)
    publish_after_commit(messages)
    return taken
