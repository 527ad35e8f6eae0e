"""What other programs import: each call is durable when it returns, and the work behind it is on its way.

    from isotherm.tasks.producers import remember, recall, reconcile

No worker, and not even the broker, has to be up for a producer to answer; PostgreSQL has to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.clean import clean_metadata, clean_name
from isotherm.pipeline.errors import ErasedError, RejectedError
from isotherm.pipeline.events import RecordsRemembered
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Bank, Namespace, message_id
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.plan import MigrationPlan, Move
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres import (
    namespaces,
    operations,
    outbox,
    tier_edit,
    tier_held,
    tier_move,
    tier_recall,
    tier_write,
)
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.operations import NewOperation, Operation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.postgres.tier_held import SetAside
from isotherm.storage.postgres.tier_write import Placed
from isotherm.storage.settings import Settings
from isotherm.storage.tier import Recall, Stored
from isotherm.tasks import passes
from isotherm.tasks.accepted import Accepted
from isotherm.tasks.observe import emit
from isotherm.tasks.produce_forget import forget, forget_agent, forget_receipt, forget_session, forget_tenant
from isotherm.tasks.produce_tier import explain, get, list_all, list_namespaces, pin, unpin, update
from isotherm.tasks.produce_transfer import export, import_records
from isotherm.tasks.publish import after_commit, flush, publish_after_commit, put_back, take_sent

__all__ = [
    "Accepted",
    "cancel",
    "explain",
    "export",
    "flush",
    "forget",
    "forget_agent",
    "forget_receipt",
    "forget_session",
    "forget_tenant",
    "get",
    "import_records",
    "list_all",
    "list_namespaces",
    "operation",
    "pin",
    "plan",
    "recall",
    "reconcile",
    "remember",
    "remember_messages",
    "remember_records",
    "restore",
    "retry",
    "set_aside",
    "unpin",
    "update",
]

MAX_BATCH = 1_000


def remember(
    namespace: Namespace,
    content: str,
    *,
    role: str | None = None,
    record_id: str | None = None,
    key: str | None = None,
    time: datetime | None = None,
    importance: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    categories: Sequence[str] = (),
    pinned: bool = False,
) -> Accepted:
    """Store one record.

    Args: record_id: None derives one from `key`, or makes a new one; key: makes the call safe to repeat: the same key
    with the same body returns the first answer; time: when it was said (aware), None means now.
    Raises: RejectedError for input that cannot be stored, or a key that was used with another body; TransientError when
    PostgreSQL cannot be reached.
    """
    checked = None if key is None else clean_name(key, field="key")
    if record_id is None:
        record_id = str(uuid7()) if checked is None else digest("record", namespace.key, checked).hex()[:32]
    record = NewRecord(
        id=record_id,
        content=content,
        created_at=time or datetime.now(UTC),
        role=role,
        importance=importance,
        categories=tuple(categories),
        metadata=metadata or {},
        pinned=pinned,
    )
    return remember_records(namespace, [record], key=checked)


def remember_records(namespace: Namespace, records: Sequence[NewRecord], *, key: str | None = None) -> Accepted:
    """Store records of one namespace under one operation, in one statement.

    Args: records: 1 to 1,000; of two with one id the last one counts.
    Raises: as `remember`.
    """
    return store([(namespace, record) for record in records], key=key)


def remember_messages(lines: Sequence[TranscriptLine]) -> Accepted:
    """Store messages of one bank, of any of its sessions, under one operation; doing it again changes nothing.

    Args: lines: 1 to 1,000, all of one tenant and agent.
    Raises: as `remember`.
    """
    rows = [(_namespace(line), line) for line in lines]
    pairs = [(namespace, message_record(namespace, line)) for namespace, line in rows]
    named = [part for namespace, record in pairs for part in (namespace.key, record.id)]
    return store(pairs, key=digest("messages", *named).hex())


def _namespace(line: TranscriptLine) -> Namespace:
    return Namespace.of(line.agent, line.session, tenant=line.tenant)


def message_record(namespace: Namespace, line: TranscriptLine) -> NewRecord:
    """A message as it is remembered; the same message of the same namespace always has the same id."""
    return NewRecord(
        id=line.id or message_id(namespace, line.time, line.role, line.content, line.position),
        content=line.content,
        created_at=line.time,
        role=line.role,
        importance=line.importance,
        categories=(line.role,),
        metadata={**line.metadata, "kind": "message"},
    )


def store(
    pairs: Sequence[tuple[Namespace, NewRecord]],
    *,
    key: str | None,
    kind: str = tier_write.KIND,
    also: Callable[[Connection, NewOperation], list[Message]] | None = None,
) -> Accepted:
    """Store records of one bank under one operation, for producers.

    Args: pairs: 1 to 1,000; kind: of the operation; also: written in the same transaction unless the call is a repeat;
    returns messages to publish after the commit.
    Raises: as `remember`.
    """
    if not 1 <= len(pairs) <= MAX_BATCH:
        raise RejectedError(f"from 1 to {MAX_BATCH} records can be stored at once, not {len(pairs)}")
    if len({namespace.bank for namespace, _ in pairs}) > 1:
        raise RejectedError("the records of one call belong to one bank")
    try:
        return _store(pairs, key, kind, also)
    except ErasedError:  # a namespace was forgotten since this process looked up its ids
        return _store(pairs, key, kind, also)


def _store(
    pairs: Sequence[tuple[Namespace, NewRecord]],
    key: str | None,
    kind: str,
    also: Callable[[Connection, NewOperation], list[Message]] | None,
) -> Accepted:
    opened = storage.open()
    rows = [_placed(namespace, record, opened.settings) for namespace, record in pairs]
    _check_pins(rows, opened.settings.max_pinned)
    new = _operation(rows, pairs[0][0], key, kind)
    sent = take_sent()
    further = None if also is None else lambda conn: also(conn, new)
    try:
        stored = opened.tier.remember(new, rows, sent, further)
    except BaseException:
        put_back(sent)
        raise
    after_commit(_follow_up, stored)
    done = stored.done
    if done.new:
        emit(RecordsRemembered(len(done.written)), operation_id=str(new.id), trace_id=str(new.trace_id))
    ids = tuple(row.record.id for row in rows)
    return Accepted(done.operation_id, ids, new=done.new, written=len(done.written))


def _follow_up(batch: list[Stored]) -> None:
    publish_after_commit([message for stored in batch for message in stored.messages])
    for stored in batch:
        stored.conclude()


def _check_pins(rows: Sequence[Placed], most: int | None) -> None:
    pinned = [row for row in rows if row.record.pinned]
    if most is None or not pinned:
        return
    with connection() as conn:
        for place in {row.place for row in pinned}:
            tier_edit.check_pins(conn, place, [row.record.id for row in pinned if row.place == place], most)


def _placed(namespace: Namespace, record: NewRecord, limits: Settings) -> Placed:
    if record.metadata:
        record = replace(record, metadata=clean_metadata(record.metadata, limits.max_metadata))
    cleaned = record.cleaned(max_bytes=limits.max_content)
    if cleaned.tier is Tier.COLD:
        raise RejectedError("tier: a new record starts hot or warm; it goes cold by a pass, with a summary")
    return Placed(namespaces.resolve(namespace), cleaned)


def _operation(rows: Sequence[Placed], namespace: Namespace, key: str | None, kind: str) -> NewOperation:
    places = {row.place.namespace_id for row in rows}
    return NewOperation(
        id=uuid7(),
        kind=kind,
        trace_id=uuid4(),
        bank_id=rows[0].place.bank_id,
        namespace_id=rows[0].place.namespace_id if len(places) == 1 else None,
        key=None if key is None else digest("operation", kind, namespace.bank.key, *_own(places, namespace), key),
        fingerprint=None if key is None else tier_write.fingerprint_rows(rows),
    )


def _own(places: set[int], namespace: Namespace) -> tuple[bytes, ...]:
    """A key belongs to the namespace of its call, or to the bank when the call spans several."""
    return (namespace.key,) if len(places) == 1 else ()


def recall(
    scope: Namespace | Bank,
    query: str,
    *,
    sessions: Sequence[str] | None = None,
    budget: RecallBudget | None = None,
    weights: RecallWeights | None = None,
    touch: bool = True,
) -> Recall:
    """The records of a namespace, or of a bank with all or the listed sessions, that matter most for a query.

    Reads in this process: no worker takes part. Raises: TransientError when PostgreSQL cannot be reached.
    """
    listed = None if sessions is None else tuple(sessions)
    where = Scope(namespace=scope) if isinstance(scope, Namespace) else Scope(bank=scope, sessions=listed)
    return storage.open().tier.recall(where, query, budget=budget, weights=weights, touch=touch)


def reconcile(namespace: Namespace, policy: Policy | None = None) -> Accepted:
    """Ask for a migration pass over a namespace; one that waits already will do.

    Args: policy: None means the one of the settings.
    """
    storage.open()
    wanted = passes.request(namespaces.resolve(namespace).namespace_id, policy)
    return Accepted(wanted.operation_id, new=wanted.new)


def plan(namespace: Namespace, policy: Policy | None = None) -> MigrationPlan:
    """What a migration pass over a namespace would move now; moves nothing.

    Args: policy: None means the one of the settings. Raises: TransientError when PostgreSQL cannot be reached.
    """
    chosen = policy or storage.open().settings.tier
    place = namespaces.find(namespace)
    if place is None:
        return MigrationPlan()
    with connection() as conn:
        return passes.planned(conn, place.namespace_id, chosen)


def set_aside(tenant: str | None, agent: str | None = None, limit: int = 100) -> list[SetAside]:
    """Records of a tenant that passes leave alone for now, with the reason, the longest waiting first."""
    storage.open()
    with connection() as conn:
        return tier_held.listed(conn, tenant=tenant, agent=agent, limit=limit)


def restore(namespace: Namespace, ids: Sequence[str]) -> Accepted:
    """Bring cold records back to warm, byte for byte. Records that are not cold stay as they are.

    Raises: RejectedError when the namespace has no record with one of the ids.
    """
    storage.open()
    wanted = list(dict.fromkeys(ids))
    if not 1 <= len(wanted) <= MAX_BATCH:
        raise RejectedError(f"from 1 to {MAX_BATCH} records can be restored at once, not {len(wanted)}")
    place = namespaces.find(namespace)
    if place is None:
        raise RejectedError("this namespace has no records")
    with connection() as conn:
        found = tier_recall.by_id(conn, namespace, wanted, datetime.now(UTC))
    if missing := len(wanted) - len(found):
        raise RejectedError(f"{missing} of {len(wanted)} records are not in this namespace")
    moves = [
        Move(key, record.version, Tier.COLD, Tier.WARM, Reason.RESTORE)
        for key, record in found.values()
        if record.tier is Tier.COLD
    ]
    new = NewOperation(uuid7(), "tier.restore", uuid4(), place.bank_id, place.namespace_id)
    started = passes.start(new, NewStep(stages.RESTORE, {"moves": tier_move.encode(moves)}))
    return Accepted(started.operation_id, tuple(wanted), written=len(moves))


def operation(operation_id: UUID) -> Operation:
    """What became of a call. Raises: RejectedError when there is no such operation."""
    storage.open()
    with connection() as conn:
        return operations.get(conn, operation_id)


def retry(operation_id: UUID) -> int:
    """Run the failed, dead and cancelled steps of an operation again; returns how many steps are open now.

    Raises: RejectedError when there is no such operation, or nothing of it failed.
    """
    patience = storage.open().patience
    with connection() as conn:
        known = operations.get(conn, operation_id)
        opened = operations.reopen(conn, operation_id, retry_for=patience.retry_for, nudge_after=patience.nudge_after)
        messages = [
            outbox.announce(
                conn, stage, step_id, operation_id=operation_id, trace_id=known.trace_id, delay=patience.grace
            )
            for step_id, stage in opened
        ]
    publish_after_commit(messages)
    return len(opened)


def cancel(operation_id: UUID) -> Operation:
    """Stop what has not ended of an operation. Raises: RejectedError when there is no such operation or it is final."""
    storage.open()
    with connection() as conn:
        return operations.cancel(conn, operation_id)
