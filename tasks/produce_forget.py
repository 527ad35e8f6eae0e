"""Forgetting: records, a namespace, a session, an agent or a tenant. What is forgotten cannot be found once the call returns.

Single records are gone when the call returns. Of larger scopes the names are gone: a name that is used again begins anew.
Their rows follow in the background, and the operation ends `done` when a look everywhere finds nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.clean import clean_name
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.erasure import ErasureScope
from isotherm.storage import forget as forgetting
from isotherm.storage import refused_lines
from isotherm.storage.forget import Receipt, Rewritten
from isotherm.storage.postgres import forget_objects as erased_objects
from isotherm.storage.postgres import (
    namespaces,
    operations,
    outbox,
    steps,
    tier_forget,
    tier_forget_interest,
    tier_forget_ledgers,
)
from isotherm.storage.postgres.forget_objects import Taken
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import over_all
from isotherm.storage.postgres.steps import NewStep
from isotherm.tasks.accepted import Accepted
from isotherm.tasks.observe import counted
from isotherm.tasks.produce_tier import ids_of
from isotherm.tasks.publish import publish_after_commit

FORGET = "tier.forget"
# Hot copies that are dropped before the call returns; those of more namespaces go by the first step.
_AT_ONCE = 200


@counted("forget")
@over_all
def forget(namespace: Namespace, ids: Sequence[str] | None = None, *, key: str | None = None) -> Accepted:
    """Forget records of a namespace, or the namespace whole when no ids are given.

    Records that are not there are forgotten already. Something remembered later under the same id is a new record.

    Args: ids: 1 to 1,000; key: makes the call safe to repeat.
    Raises: RejectedError for wrong input, or a key that was used with another body; TransientError when PostgreSQL cannot
    be reached.
    """
    if ids is not None:
        return _forget_records(namespace, ids_of(ids), key)
    return _forget_scope(ErasureScope.of_namespace(namespace), key)


@counted("forget")
@over_all
def forget_objects(namespace: Namespace, ids: Sequence[UUID], *, key: str | None = None) -> Accepted:
    """Forget objects of a knowledge base for good: with their parts, edges, words and vectors, and files that wait to be them.

    Objects that are not there are forgotten already; those that `soft_delete` took out of searches are there. Something put
    later under the same id is a new object.

    Args: ids: 1 to 1,000. Raises: as `forget`.
    """
    checked = _uuids(ids)
    scope = ErasureScope.of_objects(namespace, tuple(map(str, checked)))
    place = namespaces.find(namespace, again=True)

    def write(conn: Connection, new: NewOperation) -> tuple[int, list[Message]]:
        taken = Taken() if place is None else erased_objects.erase(conn, place, checked)
        owner: tuple[list[int], list[int]] = ([], []) if place is None else ([place.bank_id], [place.namespace_id])
        graphs = [] if place is None else [namespace_uuid(namespace)]
        tier_forget.begin(conn, new.id, scope, *owner, graphs=graphs, counts=taken.counts, taken=taken)
        return taken.counts.get("objects", 0), []

    return _forget_single(scope, key, write)


@counted("forget")
@over_all
def forget_interests(bank: Bank, ids: Sequence[UUID], *, key: str | None = None) -> Accepted:
    """Forget interests of an agent for good, with the statements for them, their history and their place in the graph.

    The records they were read from stay: a run over their session that comes later may find the same again.

    Args: ids: 1 to 1,000. Raises: as `forget`.
    """
    checked = _uuids(ids)
    scope = ErasureScope.of_interests(bank, tuple(map(str, checked)))

    def write(conn: Connection, new: NewOperation) -> tuple[int, list[Message]]:
        banks = tier_forget.banks_of(conn, scope)
        counts = tier_forget_interest.erase_points(conn, banks, checked)
        again = tier_forget_interest.restart_runs(conn, banks, storage.open().patience)
        found = {kind: n for kind, n in counts.items() if n}
        tier_forget.begin(conn, new.id, scope, banks, [], counts=found, taken=Taken(interests=checked))
        return counts["interests"], again

    return _forget_single(scope, key, write)


@counted("forget")
@over_all
def forget_session(bank: Bank, session: str, *, key: str | None = None) -> Accepted:
    """Forget a session of an agent, in all its scopes and runs, with what was made of it. Raises: as `forget`."""
    return _forget_scope(ErasureScope.of_session(bank, session), key)


@counted("forget")
@over_all
def forget_agent(bank: Bank, *, key: str | None = None) -> Accepted:
    """Forget all that an agent of a tenant remembers. Raises: as `forget`."""
    return _forget_scope(ErasureScope.of_agent(bank), key)


@counted("forget")
@over_all
def forget_tenant(tenant: str, *, key: str | None = None) -> Accepted:
    """Forget all agents of a tenant. Raises: as `forget`; a blank name is refused."""
    return _forget_scope(ErasureScope.of_tenant(tenant), key)


def forget_receipt(operation_id: UUID) -> Receipt:
    """What an erasure erased, and what a look everywhere still finds of it.

    Raises: RejectedError when there is no such erasure; TransientError when a server cannot be reached.
    """
    return forgetting.receipt(storage.open(), operation_id)


def rewrite_files() -> Rewritten:
    """Have PostgreSQL and Redis write their files anew, so that nothing erased is in them; returns which.

    Tables are locked one after the other. Raises: TransientError when a server cannot be reached, or an open transaction
    still sees what was deleted.
    """
    return forgetting.rewrite_files(storage.open())


def _forget_records(namespace: Namespace, ids: list[str], key: str | None) -> Accepted:
    opened = storage.open()
    scope = ErasureScope.of_records(namespace, tuple(ids))
    place = namespaces.find(namespace, again=True)
    new = _operation(scope, key)
    refused = refused_lines.forget(refused_lines.folder_of(opened.settings), scope)

    def write(conn: Connection) -> tuple[tuple[UUID, bool, int], list[Message]]:
        known, fresh = operations.create(conn, new)
        if not fresh:
            return (known.id, False, 0), []
        counts, messages = ({}, []) if place is None else _erase(conn, new, place, scope)
        if place is None:
            tier_forget.begin(conn, new.id, scope, [], [])
        _count_refused(conn, new, refused)
        return (new.id, True, counts.get("records", 0)), [*messages, _begin(conn, new)]

    tails = [] if place is None else [place.namespace_id]
    (operation_id, is_new, gone), messages = opened.tier.change(tails, new.trace_id, write)
    publish_after_commit(messages)
    return Accepted(operation_id, tuple(ids), new=is_new, written=gone)


def _erase(
    conn: Connection, new: NewOperation, place: Place, scope: ErasureScope
) -> tuple[dict[str, int], list[Message]]:
    """Erase records and what was made of them, in one transaction: records first, since whoever moves them locks so too."""
    patience = storage.open().patience
    keys = tier_forget.lock_by_id(conn, place.namespace_id, scope.ids)
    blobs = tier_forget.blobs_of(conn, place.namespace_id, keys)
    counts = tier_forget.delete_records(conn, keys)
    counts |= tier_forget_interest.erase(conn, [place.bank_id], keys=keys)
    messages = tier_forget_interest.restart_runs(conn, [place.bank_id], patience)
    scrubbed, again = tier_forget_ledgers.scrub(
        conn, [place.namespace_id], [place.bank_id], keys, patience, ids=scope.ids
    )
    counts["steps"] = scrubbed
    found = {kind: n for kind, n in counts.items() if n}
    owner = [place.bank_id], [place.namespace_id]
    tier_forget.begin(conn, new.id, scope, *owner, keys=keys, blobs=blobs, counts=found)
    return counts, [*messages, *again]


def _uuids(ids: Sequence[UUID]) -> list[UUID]:
    if not all(isinstance(one, UUID) for one in ids):
        raise RejectedError("ids: UUIDs are needed")
    return [UUID(one) for one in ids_of([str(one) for one in ids])]


def _forget_single(
    scope: ErasureScope, key: str | None, write: Callable[[Connection, NewOperation], tuple[int, list[Message]]]
) -> Accepted:
    """Erase single things in one transaction, with the step that takes them out of the graph."""
    storage.open()
    new = _operation(scope, key)
    with connection() as conn:
        known, fresh = operations.create(conn, new)
        gone, messages = write(conn, new) if fresh else (0, [])
        messages += [_begin(conn, new)] if fresh else []
    publish_after_commit(messages)
    return Accepted(known.id, scope.ids, new=fresh, written=gone)


def _forget_scope(scope: ErasureScope, key: str | None) -> Accepted:
    opened = storage.open()
    new = _operation(scope, key)
    refused = refused_lines.forget(refused_lines.folder_of(opened.settings), scope)

    def write(conn: Connection) -> tuple[tuple[UUID, bool, int], list[Message]]:
        known, fresh = operations.create(conn, new)
        if not fresh:
            return (known.id, False, 0), []
        found = tier_forget.take_names(conn, new.id, scope)
        _count_refused(conn, new, refused)
        return (new.id, True, len(found)), [_begin(conn, new)]

    with connection() as conn:
        tails = tier_forget.namespaces_of(conn, scope, _AT_ONCE)
    (operation_id, is_new, found), messages = opened.tier.change(tails, new.trace_id, write)
    namespaces.forget_places()
    publish_after_commit(messages)
    return Accepted(operation_id, new=is_new, written=found)


def _count_refused(conn: Connection, new: NewOperation, lines: int) -> None:
    erasure = tier_forget.get(conn, new.id) if lines else None
    if erasure is not None:
        tier_forget.count(conn, erasure, {"refused_lines": lines})


def _operation(scope: ErasureScope, key: str | None) -> NewOperation:
    """It belongs to no namespace: it outlives those that it erases."""
    checked = None if key is None else clean_name(key, field="key")
    return NewOperation(
        id=uuid7(),
        kind=FORGET,
        trace_id=uuid4(),
        key=None if checked is None else digest("operation", FORGET, scope.sha256, checked),
        fingerprint=None if checked is None else scope.sha256,
    )


def _begin(conn: Connection, new: NewOperation) -> Message:
    patience = storage.open().patience
    step = NewStep(stages.FORGET, {})
    [step_id] = steps.add(conn, new.id, [step], retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    return outbox.announce(
        conn, stages.FORGET, step_id, operation_id=new.id, trace_id=new.trace_id, delay=patience.grace
    )
