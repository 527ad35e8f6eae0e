"""Producers and readers of the knowledge base: each write is durable when it returns, and found by its words at once.

from isotherm.tasks.produce_brain import put, search, link, expand
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline.brain.answers import Answer, Links
from isotherm.pipeline.brain.catalog import plain_times
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.errors import ObjectNotFoundError
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.links import EdgeKey, EdgeMeta, NewLink
from isotherm.pipeline.brain.objects import PARTS, SCOPE, NewObject, Object, derived_id
from isotherm.pipeline.brain.result_sets import SearchContext
from isotherm.pipeline.brain.walk import NEIGHBORS, Direction
from isotherm.pipeline.brain.write_kinds import Saved
from isotherm.pipeline.clean import clean_name
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import EdgesChanged, Event, ObjectsStored
from isotherm.pipeline.fusion import Fusion
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import Redactor
from isotherm.pipeline.redact import redact_values
from isotherm.storage.brain_expand import Expanded
from isotherm.storage.models import factory
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.brain_write import Put, Written
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.reach import of_owner
from isotherm.tasks import graph
from isotherm.tasks.accepted import operation_over
from isotherm.tasks.observe import emit
from isotherm.tasks.publish import after_commit, publish_after_commit
from isotherm.tasks.strict import with_vectors

MAX_BATCH = 1_000
PUT, DELETE, LINK, UNLINK = "brain.put", "brain.soft_delete", "brain.link", "brain.unlink"


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer of a producer.

    Args: operation_id: what to ask about later; ids: of the objects, in the order given; new: False when the call
    repeated an earlier one; written: objects or edges that are new or changed; removed: objects that were taken out.
    """

    operation_id: UUID
    ids: tuple[UUID, ...] = ()
    new: bool = True
    written: int = 0
    removed: int = 0


def knowledge(agent: str, *, tenant: str | None = None) -> Namespace:
    """The namespace of an agent's knowledge. Raises: RejectedError as `Namespace.of`."""
    return Namespace.of(agent, scope=SCOPE, tenant=tenant)


def put(  # noqa: PLR0913 - one keyword for each field of an object
    namespace: Namespace,
    kind: str,
    *,
    object_id: UUID | None = None,
    key: str | None = None,
    title: str = "",
    summary: str = "",
    content: str = "",
    content_type: str = "",
    properties: Mapping[str, Any] | None = None,
    parent_id: UUID | None = None,
    position: int | None = None,
    expected_revision: int | None = None,
    source_time: datetime | None = None,
    strict: bool = False,
    wait_mirrored: timedelta | None = None,
) -> Stored:
    """Store one object, or a part of one. An object that is there unchanged is left alone.

    Args: object_id: None derives one from `key`, or makes a new one; key: makes the call safe to repeat: the same key with
    the same body returns the first answer; the others as `NewObject` says.
    Raises: RejectedError for input that cannot be stored, a revision that is not the expected one, or a key that was used
    with another body; TransientError when PostgreSQL cannot be reached.
    """
    if object_id is None:
        object_id = uuid7() if key is None else derived_id(namespace, "object", clean_name(key, field="key"))
    new = NewObject(
        object_id,
        kind,
        title,
        summary,
        content,
        content_type,
        properties or {},
        parent_id,
        position,
        expected_revision,
        source_time,
    )
    return put_many(namespace, [new], key=key, strict=strict, wait_mirrored=wait_mirrored)


@of_owner
def put_many(
    namespace: Namespace,
    objects: Sequence[NewObject],
    *,
    key: str | None = None,
    replace_parts: bool = False,
    keep_times: bool = False,
    strict: bool = False,
    wait_mirrored: timedelta | None = None,
) -> Stored:
    """Store objects and parts of one namespace under one operation, in one transaction.

    Args: objects: 1 to 1,000; of two with one id the last one counts; replace_parts: parts of the given objects that are
    not given too are taken out; keep_times: leave alone what differs only in the time of its source; strict: store nothing unless every object gets its vector now, instead of soon; wait_mirrored: return only once the graph has it,
    and wait for so long at most.
    Raises: as `put`, and as `tasks.graph.wait_mirrored` when the graph does not have it in time: it is stored then; TransientError when a strict put finds the embedder away.
    """
    opened = storage.open()
    redactor = factory.redactor(opened.settings)
    cleaned = [_redacted(plain_times(new).cleaned(max_bytes=opened.settings.max_content), redactor) for new in objects]
    unique = list({new.id: opened.brain.catalog.validate(new) for new in cleaned}.values())
    if not 1 <= len(unique) <= MAX_BATCH:
        raise RejectedError(f"from 1 to {MAX_BATCH} objects can be stored at once, not {len(unique)}")
    ids = [n.id for n in cleaned]
    stored = namespaces.again_if_erased(
        lambda: _put(namespace, unique, ids, key, replace_parts=replace_parts, keep_times=keep_times, strict=strict)
    )
    return _mirrored(stored, wait_mirrored)


def _put(
    namespace: Namespace,
    unique: list[NewObject],
    ids: list[UUID],
    key: str | None,
    *,
    replace_parts: bool,
    keep_times: bool,
    strict: bool,
) -> Stored:
    opened = storage.open()
    place = namespaces.resolve(namespace)
    embeds = factory.embedder(opened.settings) is not None
    wanted = Put(place, unique, replace_parts, embeds, datetime.now(UTC), keep_times=keep_times)
    if strict:
        wanted = with_vectors(wanted)
    new = _operation(PUT, namespace, place, key, [*map(_fingerprint, unique), replace_parts])
    done = opened.brain.put(new, wanted)
    return _follow_up(new, done, ids, ObjectsStored(done.written, done.removed))


def save_discovery(namespace: Namespace, saved: Saved, *, key: str | None = None) -> Stored:
    """Store what an agent found out, as the kind that `Engine.use_write_kinds` gave discoveries.

    Raises: WritesUnsupportedError when it gave them none; as `put` besides.
    """
    return _save(namespace, "discovery", saved, key)


def save_fact(namespace: Namespace, saved: Saved, *, key: str | None = None) -> Stored:
    """Store what an agent knows to be so. Raises: as `save_discovery`."""
    return _save(namespace, "fact", saved, key)


def save_memory(namespace: Namespace, saved: Saved, *, key: str | None = None) -> Stored:
    """Store what an agent wants to remember. Raises: as `save_discovery`."""
    return _save(namespace, "memory", saved, key)


def _save(namespace: Namespace, what: str, saved: Saved, key: str | None) -> Stored:
    kind = storage.open().brain.write_kinds.kind(what)
    return put(
        namespace,
        kind,
        key=key,
        title=saved.title,
        summary=saved.summary,
        content=saved.content,
        properties=saved.properties,
    )


@of_owner
def soft_delete(
    namespace: Namespace,
    object_id: UUID,
    *,
    expected_revision: int | None = None,
    key: str | None = None,
    wait_mirrored: timedelta | None = None,
) -> Stored:
    """Take an object and its parts out of every search; putting it again brings it back, with its edges.

    Raises: RejectedError when the namespace has no such object, or it has another revision; as `put` besides.
    """
    opened, place = storage.open(), _known(namespace)
    new = _operation(DELETE, namespace, place, key, [str(object_id), expected_revision])
    done = opened.brain.soft_delete(new, place, [object_id], expected_revision=expected_revision)
    stored = _follow_up(new, done, [object_id], ObjectsStored(done.written, done.removed))
    return _mirrored(stored, wait_mirrored)


@of_owner
def link(  # noqa: PLR0913 - one keyword for each field of an edge
    namespace: Namespace,
    source: UUID,
    target: UUID,
    label: str,
    *,
    note: str = "",
    status: str = "",
    role: str = "",
    confidence: float | None = None,
    evidence_id: UUID | None = None,
    key: str | None = None,
    wait_mirrored: timedelta | None = None,
) -> Stored:
    """Write an edge between two objects; one that is there says what is given now, and nothing else.

    Raises: RejectedError for an end that is missing or a part, an object linked to itself, and labels of containment; as
    `put` besides.
    """
    note = factory.redactor(storage.open().settings).redact(note)
    meta = EdgeMeta(note, status, role, confidence, evidence_id)
    wanted = NewLink(EdgeKey(source, target, label), meta).cleaned()
    opened, place = storage.open(), _known(namespace)
    said = [note, status, role, confidence, str(evidence_id)]
    new = _operation(LINK, namespace, place, key, [str(source), str(target), wanted.key.label, *said])
    done = opened.brain.link(new, place, wanted)
    return _mirrored(_follow_up(new, done, [source, target], EdgesChanged(done.written, 0)), wait_mirrored)


@of_owner
def unlink(
    namespace: Namespace,
    source: UUID,
    target: UUID,
    label: str,
    *,
    key: str | None = None,
    wait_mirrored: timedelta | None = None,
) -> Stored:
    """Take an edge out. Raises: RejectedError when there is no such edge; as `put` besides."""
    edge = EdgeKey(source, target, label).cleaned()
    opened, place = storage.open(), _known(namespace)
    new = _operation(UNLINK, namespace, place, key, [str(source), str(target), edge.label])
    done = opened.brain.unlink(new, place, edge)
    return _mirrored(_follow_up(new, done, [source, target], EdgesChanged(0, done.written)), wait_mirrored)


def search(  # noqa: PLR0913 - one keyword for each choice of a caller
    namespace: Namespace,
    query: str,
    *,
    limit: int | None = None,
    kinds: Sequence[str] = (),
    properties: Mapping[str, Any] | None = None,
    scope_ids: Sequence[UUID] | None = None,
    filters: Filters | None = None,
    fusion: Fusion | None = None,
    decay: Decay | None = None,
    graph: bool | None = None,
    newest_first: bool | None = None,
    context: SearchContext | None = None,
) -> Answer:
    """The objects of a namespace that match a query best. Reads in this process: no worker takes part.

    Args: kinds, properties, scope_ids: as `Filters` says, or `filters` with more of them; the others as `Engine.search`.
    Raises: as `Engine.search`.
    """
    within = filters or Filters.of(kinds, properties, scope_ids)
    engine = storage.open().brain
    return engine.search(
        namespace,
        query,
        limit=limit,
        filters=within,
        fusion=fusion,
        decay=decay,
        graph=graph,
        newest_first=newest_first,
        context=context,
    )


def find_exact(
    namespace: Namespace,
    query: str,
    *,
    limit: int | None = None,
    filters: Filters | None = None,
    context: SearchContext | None = None,
) -> Answer:
    """Objects by name, id or declared property. Raises: as `Engine.find_exact`."""
    return storage.open().brain.find_exact(namespace, query, limit=limit, filters=filters, context=context)


def find_objects(
    namespace: Namespace,
    query: str,
    *,
    limit: int | None = None,
    filters: Filters | None = None,
    context: SearchContext | None = None,
) -> Answer:
    """Whole objects by their own words and properties. Raises: as `Engine.find_objects`."""
    return storage.open().brain.find_objects(namespace, query, limit=limit, filters=filters, context=context)


def find_links(namespace: Namespace, label: str, query: str, *, limit: int | None = None) -> Links:
    """Edges with a label by what their notes say. Raises: as `Engine.find_links`."""
    return storage.open().brain.find_links(namespace, label, query, limit=limit)


def continue_(namespace: Namespace, at: str, context: SearchContext, *, limit: int | None = None) -> Answer:
    """The next page of a search. Raises: as `Engine.continue_`."""
    return storage.open().brain.continue_(namespace, at, context, limit=limit)


def list_children(namespace: Namespace, parent_id: UUID, *, limit: int = PARTS) -> list[Object]:
    """The first parts of an object without their content, in order. Raises: as `Engine.list_children`."""
    return storage.open().brain.list_children(namespace, parent_id, limit)


def expand(
    namespace: Namespace,
    object_id: UUID,
    labels: Sequence[str] | None = (),
    *,
    direction: Direction = Direction.BOTH,
    containment: bool = False,
    hops: int = 1,
    limit: int = NEIGHBORS,
    context: SearchContext | None = None,
) -> Expanded:
    """What is around an object. Args and Raises: as `Engine.expand`."""
    return storage.open().brain.expand(
        namespace,
        object_id,
        labels,
        direction=direction,
        containment=containment,
        hops=hops,
        limit=limit,
        context=context,
    )


def read(namespace: Namespace, object_id: UUID) -> Object:
    """One object with its content. Raises: RejectedError when the namespace has no such object."""
    return storage.open().brain.read(namespace, object_id)


def _redacted(new: NewObject, redactor: Redactor) -> NewObject:
    return replace(
        new,
        title=redactor.redact(new.title),
        summary=redactor.redact(new.summary),
        content=redactor.redact(new.content),
        properties=redact_values(redactor, new.properties),
    )


def _known(namespace: Namespace) -> Place:
    place = namespaces.find(namespace)
    if place is None:
        raise ObjectNotFoundError("this namespace has no objects")
    return place


def _operation(kind: str, namespace: Namespace, place: Place, key: str | None, body: list[Any]) -> NewOperation:
    def said() -> bytes:
        return digest("body", json.dumps(body, sort_keys=True, separators=(",", ":"), default=str))

    return operation_over(kind, namespace, place, key, said)


def _fingerprint(new: NewObject) -> list[Any]:
    """What a repeat must have in common with the first call; the expected revision is long outdated then."""
    same = replace(new, expected_revision=None)
    return [str(same.id), same.kind, same.title, same.summary, same.content, same.content_type, dict(same.properties),
            str(same.parent_id), same.position, *([] if same.source_time is None else [same.source_time.isoformat()])]  # fmt: skip


def _publish(batch: list[tuple[Message, ...]]) -> None:
    publish_after_commit([message for messages in batch for message in messages])


def _follow_up(new: NewOperation, done: Written, ids: Sequence[UUID], event: Event) -> Stored:
    if done.new:
        after_commit(_publish, done.messages)
        emit(event, operation_id=str(new.id), trace_id=str(new.trace_id))
    return Stored(done.operation_id, tuple(ids), done.new, done.written, done.removed)


def _mirrored(stored: Stored, within: timedelta | None) -> Stored:
    """Wait for the graph where that was asked for. Raises: as `graph.wait_mirrored`."""
    if within is not None:
        graph.wait_mirrored(stored.operation_id, within)
    return stored
