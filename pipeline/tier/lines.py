"""A stored record as one line of JSON, with everything that is kept of it; written and read again it is the same."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, Field, ValidationError

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import StoredRecord


class _Line(FrozenModel):
    """What a line holds. Its own field names are the format: a changed meaning is another `form`."""

    form: Literal[1] = 1
    tenant: str | None
    scope: str
    agent: str
    session: str | None
    run: str | None
    id: str
    content: str
    summary: str | None
    role: str | None
    categories: tuple[str, ...]
    metadata: dict[str, Any]
    importance: float = Field(ge=0, le=1)
    tier: Tier
    pinned: bool
    access_count: int = Field(ge=0)
    heat_log: float | None = Field(allow_inf_nan=False)
    value_log: float | None = Field(allow_inf_nan=False)
    created_at: AwareDatetime
    last_access_at: AwareDatetime
    moved_at: AwareDatetime | None
    moved_from: Tier | None
    content_sha256: str


def write_line(namespace: Namespace, record: StoredRecord) -> str:
    """A record as one line without its end. The version is left out: it is the store's."""
    line = _Line(
        tenant=namespace.tenant,
        scope=namespace.scope,
        agent=namespace.agent,
        session=namespace.session,
        run=namespace.run,
        id=record.id,
        content=record.content,
        summary=record.summary,
        role=record.role,
        categories=record.categories,
        metadata=dict(record.metadata),
        importance=record.importance,
        tier=record.tier,
        pinned=record.pinned,
        access_count=record.access_count,
        heat_log=record.heat_log,
        value_log=record.value_log,
        created_at=record.created_at,
        last_access_at=record.last_access_at,
        moved_at=record.moved_at,
        moved_from=record.moved_from,
        content_sha256=record.content_sha256.hex(),
    )
    return line.model_dump_json()


def read_line(line: str) -> tuple[Namespace, StoredRecord]:
    """The record of a line and whose it is.

    Raises: RejectedError when the line is no record, or its text does not match its hash; the message names fields only.
    """
    try:
        read = _Line.model_validate_json(line)
    except ValidationError as error:
        names = sorted({".".join(map(str, fault["loc"])) or "line" for fault in error.errors(include_input=False)})
        raise RejectedError(f"not a record: {', '.join(names)}") from None
    record = StoredRecord(
        id=read.id,
        content=read.content,
        summary=read.summary,
        role=read.role,
        categories=read.categories,
        metadata=read.metadata,
        importance=read.importance,
        tier=read.tier,
        pinned=read.pinned,
        access_count=read.access_count,
        heat_log=read.heat_log,
        value_log=read.value_log,
        created_at=read.created_at,
        last_access_at=read.last_access_at,
        moved_at=read.moved_at,
        moved_from=read.moved_from,
    ).cleaned()
    if record.content_sha256.hex() != read.content_sha256:
        raise RejectedError("not a record: its text does not match its hash")
    owner = Namespace.of(read.agent, read.session, read.scope, run=read.run, tenant=read.tenant)
    return owner, record
