"""Verbs on stored records: read, list and explain them, change, pin and unpin them. A write is durable when it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from isotherm import storage
from isotherm.pipeline.clean import whole_limit
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import RecordsPinned, RecordsUnpinned, RecordUpdated
from isotherm.pipeline.identity import Bank, Namespace, check_names
from isotherm.pipeline.redact import redact_values
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.storage.explain import Explanation
from isotherm.storage.explain import explain as explained
from isotherm.storage.models import factory
from isotherm.storage.postgres import namespaces, steps, tier_edit, tier_list
from isotherm.storage.postgres.namespaces import Place, Scope
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import of_owner, over_all
from isotherm.storage.postgres.tier_edit import Edited, Pinned
from isotherm.storage.postgres.tier_list import Page
from isotherm.storage.settings import Settings
from isotherm.tasks.accepted import operation_over
from isotherm.tasks.observe import counted, emit
from isotherm.tasks.publish import publish_after_commit

UPDATE, PIN, UNPIN = "tier.update", "tier.pin", "tier.unpin"
MAX_IDS = 1_000


@counted("get")
def get(namespace: Namespace, record_id: str, *, whole: bool = False) -> Record:
    """One record. A cold one comes with its summary and without its text.

    Args: whole: read the text of a cold one too, which stays where it is; it is None when what is stored is damaged.
    Raises: RejectedError when the namespace has no such record; TransientError when a server cannot be reached.
    """
    opened = storage.open()
    record = opened.tier.get(namespace, record_id)
    if whole and record.content is None:
        return replace(record, content=opened.tier.original(namespace, record_id))
    return record


@counted("list")
@of_owner
def list_all(
    scope: Namespace | Bank,
    *,
    sessions: Sequence[str] | None = None,
    tier: Tier | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Page:
    """Records of a namespace, or of a bank with all or the listed sessions, oldest first, a page at a time.

    Args: after: `next` of the page before; limit: 1 to 1,000.
    Raises: RejectedError for another limit or a wrong `after`; TransientError when PostgreSQL cannot be reached.
    """
    storage.open()
    whole_limit(limit, MAX_IDS)
    where = scope_of(scope, sessions)
    with connection() as conn:
        return tier_list.page(conn, where, datetime.now(UTC), tier=tier, after=after, limit=limit)


@over_all
def list_namespaces(
    tenant: str | None, agent: str | None = None, *, after: Namespace | None = None, limit: int = 1_000
) -> list[Namespace]:
    """Namespaces of a tenant, or of one of its agents, in order of their names, a page at a time.

    Args: tenant: None for those that belong to no tenant; after: the last of the page before; limit: 1 to 1,000.
    Raises: RejectedError for another limit or a blank name; TransientError when PostgreSQL cannot be reached.
    """
    check_names(tenant=tenant, agent=agent)
    storage.open()
    whole_limit(limit, MAX_IDS)
    with connection() as conn:
        return tier_list.namespaces(conn, tenant=tenant, agent=agent, after=after, limit=limit)


@counted("explain")
def explain(
    namespace: Namespace, record_id: str, *, query: str | None = None, policy: Policy | None = None
) -> Explanation:
    """Why a record is where it is, what the next pass would do with it, and how a query rates it. Writes nothing.

    Args: policy: None means the one of the settings.
    Raises: RejectedError when the namespace has no such record; TransientError when PostgreSQL cannot be reached.
    """
    opened = storage.open()
    return explained(opened.tier, namespace, record_id, policy or opened.settings.tier, query=query)


def scope_of(scope: Namespace | Bank, sessions: Sequence[str] | None) -> Scope:
    """What a read may see. Raises: RejectedError for sessions of a namespace."""
    listed = None if sessions is None else tuple(sessions)
    if isinstance(scope, Namespace):
        return Scope(namespace=scope, sessions=listed)
    return Scope(bank=scope, sessions=listed)


@counted("update")
@of_owner
def update(
    namespace: Namespace,
    record_id: str,
    *,
    content: str | None = None,
    role: str | None = None,
    importance: float | None = None,
    categories: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    expected_version: int | None = None,
    key: str | None = None,
) -> Edited:
    """Change parts of a record; a part that is not given stays as it is.

    Another text is indexed and embedded anew in the background, and the record is found by it at once. A cold record that
    gets another text is warm afterwards.

    Args: expected_version: the version the caller saw; None changes whatever is there; key: makes the call safe to repeat.
    Raises: VersionConflictError when the record has another version; RejectedError when there is no such record, for input
    that cannot be stored, or a key that was used with another body; TransientError when PostgreSQL cannot be reached.
    """
    opened = storage.open()
    limits = opened.settings
    given = RecordEdit(content, role, importance, None if categories is None else tuple(categories), metadata)
    edit = _redacted(given.cleaned(max_bytes=limits.max_content, max_metadata=limits.max_metadata), limits)
    place = _place(namespace)
    said = {"id": record_id, "version": expected_version, "content": edit.content, "role": edit.role,
            "importance": edit.importance, "categories": edit.categories, "metadata": edit.metadata}  # fmt: skip
    new = operation(UPDATE, namespace, place, key, said)
    embed = factory.embedder(limits) is not None
    done, messages = opened.tier.change(
        [place.namespace_id],
        new.trace_id,
        lambda conn: tier_edit.update(
            conn,
            new,
            record_id,
            edit,
            opened.patience,
            expected_version=expected_version,
            embed=embed,
            now=datetime.now(UTC),
        ),
    )
    publish_after_commit(messages)
    if done.written:
        emit(RecordUpdated(done.reworded, done.lifted), operation_id=str(new.id), trace_id=str(new.trace_id))
    return done


def _redacted(edit: RecordEdit, limits: Settings) -> RecordEdit:
    redactor = factory.redactor(limits)
    content = None if edit.content is None else redactor.redact(edit.content)
    return replace(edit, content=content, metadata=redact_values(redactor, edit.metadata))


@counted("pin")
@of_owner
def pin(namespace: Namespace, ids: Sequence[str], *, key: str | None = None) -> Pinned:
    """Keep records at warm or hotter, untouched by passes; cold ones come back byte for byte, by the returned operation.

    Args: ids: 1 to 1,000.
    Raises: RejectedError when the namespace lacks one of them, or too many would be pinned; TransientError when PostgreSQL
    cannot be reached.
    """
    place, wanted = _place(namespace), ids_of(ids)
    opened = storage.open()
    new = operation(PIN, namespace, place, key, {"ids": wanted})
    done, messages = opened.tier.change(
        [],
        new.trace_id,
        lambda conn: tier_edit.pin(conn, new, place, wanted, opened.patience, most=opened.settings.max_pinned),
    )
    publish_after_commit(messages)
    if done.records:
        emit(RecordsPinned(done.records, done.restoring), operation_id=str(new.id), trace_id=str(new.trace_id))
    return done


@counted("unpin")
@of_owner
def unpin(namespace: Namespace, ids: Sequence[str], *, key: str | None = None) -> Pinned:
    """Let passes move records again. Args and Raises: as `pin`."""
    place, wanted = _place(namespace), ids_of(ids)
    opened = storage.open()
    new = operation(UNPIN, namespace, place, key, {"ids": wanted})
    done, messages = opened.tier.change(
        [], new.trace_id, lambda conn: tier_edit.unpin(conn, new, place, wanted, opened.patience)
    )
    publish_after_commit(messages)
    if done.records:
        emit(RecordsUnpinned(done.records), operation_id=str(new.id), trace_id=str(new.trace_id))
    return done


def operation(kind: str, namespace: Namespace, place: Place, key: str | None, body: dict[str, Any]) -> NewOperation:
    """An operation to be over one namespace; `body` is what a repeat with the same key must have in common with it."""
    return operation_over(kind, namespace, place, key, lambda: steps.input_hash(body))


def _place(namespace: Namespace) -> Place:
    storage.open()
    place = namespaces.find(namespace)
    if place is None:
        raise RejectedError("this namespace has no records")
    return place


def ids_of(ids: Sequence[str]) -> list[str]:
    """Each id once, in the order given. Raises: RejectedError for none, or more than 1,000."""
    wanted = list(dict.fromkeys(ids))
    if not 1 <= len(wanted) <= MAX_IDS:
        raise RejectedError(f"from 1 to {MAX_IDS} ids can be given at once, not {len(wanted)}")
    return wanted
