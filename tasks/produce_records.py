"""Records are written: one call, one statement, and what follows the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from uuid_utils.compat import uuid4, uuid7

from isotherm import storage
from isotherm.pipeline.clean import clean_name
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import RecordsRemembered
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace, message_id
from isotherm.pipeline.ports import Redactor
from isotherm.pipeline.redact import redact_values
from isotherm.pipeline.tier.records import NewRecord, Tier, cleaned_records
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.models import factory
from isotherm.storage.postgres import namespaces, tier_write
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_write import Placed
from isotherm.storage.settings import Settings
from isotherm.storage.tier import Stored
from isotherm.tasks.accepted import Accepted
from isotherm.tasks.observe import emit
from isotherm.tasks.publish import after_commit, publish_after_commit, put_back, take_sent

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
    # Redacted before the id is derived: a hash of a short secret would give it away.
    content = factory.redactor(storage.open().settings).redact(line.content)
    return NewRecord(
        id=line.id or message_id(namespace, line.time, line.role, content, line.position),
        content=content,
        created_at=line.time,
        role=line.role,
        importance=line.importance,
        categories=(line.role,),
        metadata={**line.metadata, "role": line.role, "kind": "message"},
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
    if len({namespace.bank for namespace in _distinct(pairs)}) > 1:
        raise RejectedError("the records of one call belong to one bank")
    return namespaces.again_if_erased(lambda: _store(pairs, key, kind, also))


def _store(
    pairs: Sequence[tuple[Namespace, NewRecord]],
    key: str | None,
    kind: str,
    also: Callable[[Connection, NewOperation], list[Message]] | None,
) -> Accepted:
    opened = storage.open()
    rows = _placed(pairs, opened.settings)
    new = _operation(rows, pairs[0][0], key, kind)
    sent = take_sent()
    further = None if also is None else lambda conn: also(conn, new)
    try:
        stored = opened.tier.remember(new, rows, sent, further, max_pinned=opened.settings.max_pinned)
    except BaseException:
        put_back(sent)
        raise
    after_commit(_follow_up, stored)
    done = stored.done
    if done.new:
        emit(RecordsRemembered(done.written, done.moved), operation_id=str(new.id), trace_id=str(new.trace_id))
    ids = tuple(row.record.id for row in rows)
    return Accepted(done.operation_id, ids, new=done.new, written=done.written)


def _follow_up(batch: list[Stored]) -> None:
    publish_after_commit([message for stored in batch for message in stored.messages])
    storage.open().tier.conclude(batch)


def _placed(pairs: Sequence[tuple[Namespace, NewRecord]], limits: Settings) -> list[Placed]:
    redactor = factory.redactor(limits)
    given = [record for _, record in pairs]
    cleaned = cleaned_records(given, max_bytes=limits.max_content, max_metadata=limits.max_metadata)
    if any(record.tier is Tier.COLD for record in cleaned):
        raise RejectedError("tier: a new record starts hot or warm; it goes cold by a pass, with a summary")
    records = [_redacted(record, redactor) for record in cleaned]
    named = _distinct(pairs)
    if len(named) == 1:
        place = namespaces.resolve(named[0])
        return [Placed(place, record) for record in records]
    places = {namespace: namespaces.resolve(namespace) for namespace in named}
    return [Placed(places[namespace], record) for (namespace, _), record in zip(pairs, records, strict=True)]


def _distinct(pairs: Sequence[tuple[Namespace, NewRecord]]) -> list[Namespace]:
    """The namespaces of a call, each once."""
    # By identity first: a call mostly names one object throughout, and to hash its five names takes a while.
    return list({*{id(namespace): namespace for namespace, _ in pairs}.values()})


def _redacted(record: NewRecord, redactor: Redactor) -> NewRecord:
    if record.metadata:
        record = replace(record, metadata=redact_values(redactor, record.metadata))
    content = redactor.redact(record.content)
    return record if content is record.content else replace(record, content=content)


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
