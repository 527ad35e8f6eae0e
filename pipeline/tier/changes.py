"""How a stored record changes: remembered again, edited, moved. Each rule returns another record and writes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.outline import Outline
from isotherm.pipeline.tier.plan import State
from isotherm.pipeline.tier.records import NewRecord, Reason, Record, Tier
from isotherm.pipeline.tier.store import StoredRecord


def stored(new: NewRecord) -> StoredRecord:
    """A cleaned record as it is stored the first time; until it is accessed, its last access is its creation."""
    importance = new.importance or 0.0
    return StoredRecord(
        id=new.id,
        content=new.content,
        created_at=new.created_at,
        last_access_at=new.created_at,
        tier=new.tier,
        role=new.role,
        importance=importance,
        categories=new.categories,
        metadata=new.metadata,
        pinned=new.pinned,
        value_log=heat.value_log(importance, new.created_at),
    )


def remembered_again(
    known: StoredRecord, new: StoredRecord, now: datetime, levels: frozenset[Tier] = frozenset(Tier)
) -> StoredRecord:
    """A record whose id is remembered once more.

    The same text keeps its tier and its summary; another one starts anew in the tier it asks for. What was learned of its
    use stays in both cases, and so does a pin; a pinned record does not start below warm.

    Args: levels: the tiers of its store, which may have no warm.
    """
    told = replace(
        known,
        role=new.role,
        importance=new.importance,
        categories=new.categories,
        metadata=new.metadata,
        pinned=known.pinned or new.pinned,
    )
    if known.content == new.content:
        return kept_up(told, now, levels)
    values = [value for value in (known.value_log, new.value_log) if value is not None]
    told = replace(
        told,
        content=new.content,
        last_access_at=max(known.last_access_at, new.last_access_at),
        value_log=max(values, default=None),
    )
    target = Tier.WARM if told.pinned and new.tier is Tier.COLD and Tier.WARM in levels else new.tier
    summary = new.summary if target is Tier.COLD else None
    if target is known.tier:
        return replace(told, summary=summary)
    return moved(told, target, now, Reason.RESTORE, summary=summary)


def pinned(record: StoredRecord, now: datetime, levels: frozenset[Tier]) -> StoredRecord:
    """A record that is pinned, and not below warm in a store that has one."""
    return kept_up(replace(record, pinned=True), now, levels)


def kept_up(record: StoredRecord, now: datetime, levels: frozenset[Tier]) -> StoredRecord:
    """A record that is lifted to warm if it is pinned and below, in a store that has one."""
    sunken = record.pinned and record.tier is Tier.COLD and Tier.WARM in levels
    return moved(record, Tier.WARM, now, Reason.PIN) if sunken else record


def edited(record: StoredRecord, edit: RecordEdit, now: datetime) -> StoredRecord:
    """A record with some parts replaced; a cold one that gets another text is warm afterwards."""
    changed = replace(
        record,
        role=record.role if edit.role is None else edit.role,
        importance=record.importance if edit.importance is None else edit.importance,
        categories=record.categories if edit.categories is None else edit.categories,
        metadata=record.metadata if edit.metadata is None else edit.metadata,
    )
    if edit.content is None or edit.content == record.content:
        return changed
    changed = replace(changed, content=edit.content, summary=None)
    return moved(changed, Tier.WARM, now, Reason.RESTORE) if record.tier is Tier.COLD else changed


def moved(
    record: StoredRecord, target: Tier, now: datetime, reason: Reason, *, summary: str | None = None
) -> StoredRecord:
    """A record in another tier. Its text is unchanged; a summary stands beside it only in cold.

    Args: reason: for the log of moves of a store that has one.
    """
    return replace(record, tier=target, moved_at=now, moved_from=record.tier, moved_reason=reason, summary=summary)


def state(key: int, record: StoredRecord) -> State:
    """A record as a pass sees it. Args: key: tells it from others within the pass."""
    value = record.value_log
    return State(
        key=key,
        id=record.id,
        tier=record.tier,
        version=record.version,
        pinned=record.pinned,
        heat_log=record.heat_log,
        value_log=heat.value_log(record.importance, record.last_access_at) if value is None else value,
        importance=record.importance,
        created_at=record.created_at,
        last_access_at=record.last_access_at,
        moved_at=record.moved_at,
        moved_from=record.moved_from,
    )


def shown(namespace: Namespace, outline: Outline, now: datetime, *, whole: bool) -> Record:
    """A record as programs see it, heat as of `now`.

    Args: whole: whether a cold record that has a summary shows its text too.
    """
    record = outline.record
    hidden = record.tier is Tier.COLD and record.summary is not None and not whole
    return Record(
        id=record.id,
        namespace=namespace,
        content=None if hidden else record.content,
        summary=record.summary,
        tier=record.tier,
        pinned=record.pinned,
        version=record.version,
        importance=record.importance,
        access_count=record.access_count,
        heat=heat.heat(record.heat_log, now),
        created_at=record.created_at,
        last_access_at=record.last_access_at,
        moved_at=record.moved_at,
        size_bytes=outline.size_bytes,
        metadata=record.metadata,
        categories=record.categories,
        content_sha256=outline.content_sha256,
    )
