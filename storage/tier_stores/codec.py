"""A record as bytes: JSON in one zstandard frame, which names its namespace and its id and is checked when it is read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import zstandard

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import CONTENT_MAX_BYTES, Tier
from isotherm.pipeline.tier.store import StoredRecord

_FORM = 1
_LEVEL = 3
# The largest record as JSON: a text of control characters takes six bytes for each, twice (content and summary).
MAX_JSON_BYTES = 14 * CONTENT_MAX_BYTES
# A frame never exceeds what it holds by more than this.
MAX_FRAME_BYTES = MAX_JSON_BYTES + 65_536


class DamagedError(RejectedError):
    """What is stored is not the record it should be; the message says how, never what."""


def encode(namespace: Namespace, record: StoredRecord) -> bytes:
    """A record of a namespace as bytes."""
    document = {
        "form": _FORM,
        "namespace": _parts(namespace),
        "sha256": record.content_sha256.hex(),
        "id": record.id,
        "content": record.content,
        "summary": record.summary,
        "role": record.role,
        "categories": record.categories,
        "metadata": record.metadata,
        "importance": record.importance,
        "tier": record.tier.rank,
        "pinned": record.pinned,
        "version": record.version,
        "access_count": record.access_count,
        "heat_log": record.heat_log,
        "value_log": record.value_log,
        "created_at": record.created_at.isoformat(),
        "last_access_at": record.last_access_at.isoformat(),
        "moved_at": record.moved_at.isoformat() if record.moved_at else None,
        "moved_from": record.moved_from.rank if record.moved_from else None,
    }
    raw = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(raw)


def decode(body: bytes, namespace: Namespace, record_id: str) -> StoredRecord:
    """The record of this namespace and id.

    Raises: DamagedError when the bytes are no record, claim to be larger than any (asked before memory is taken), or are
    a record of another namespace or id.
    """
    document = _document(body)
    try:
        if document["form"] != _FORM:
            raise DamagedError("a record of an unknown form")
        if document["namespace"] != _parts(namespace) or document["id"] != record_id:
            raise DamagedError("a record of another name")
        record = _record(document)
        if record.content_sha256.hex() != document["sha256"]:
            raise DamagedError("the text does not match its hash")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError("no whole record") from error
    return record


def named(body: bytes) -> tuple[Namespace, StoredRecord]:
    """A record whose name is not known, and its namespace. Raises: DamagedError."""
    try:
        document = _document(body)
        tenant, scope, agent, session, run = document["namespace"]
        namespace = Namespace.of(agent, session, scope, run=run, tenant=tenant)
        return namespace, decode(body, namespace, str(document["id"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError("no whole record") from error


def name_of(namespace: Namespace) -> str:
    """A namespace as text that `namespace_of` reads."""
    return json.dumps(_parts(namespace), ensure_ascii=False, separators=(",", ":"))


def namespace_of(name: str) -> Namespace:
    """The namespace of a text that `name_of` wrote."""
    tenant, scope, agent, session, run = json.loads(name)
    return Namespace.of(agent, session, scope, run=run, tenant=tenant)


def _document(body: bytes) -> dict[str, Any]:
    try:
        claimed = zstandard.frame_content_size(body)
        if not 0 <= claimed <= MAX_JSON_BYTES:
            raise DamagedError("larger than any record")
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=max(claimed, 1))
        document = json.loads(raw)
    except (zstandard.ZstdError, ValueError, RecursionError) as error:
        raise DamagedError("not readable") from error
    if not isinstance(document, dict):
        raise DamagedError("no record")
    return document


def _record(d: dict[str, Any]) -> StoredRecord:
    return StoredRecord(
        id=d["id"],
        content=d["content"],
        summary=d["summary"],
        role=d["role"],
        categories=tuple(d["categories"]),
        metadata=d["metadata"],
        importance=float(d["importance"]),
        tier=Tier.from_rank(d["tier"]),
        pinned=bool(d["pinned"]),
        version=int(d["version"]),
        access_count=int(d["access_count"]),
        heat_log=d["heat_log"],
        value_log=d["value_log"],
        created_at=_moment(d["created_at"]),
        last_access_at=_moment(d["last_access_at"]),
        moved_at=_moment(d["moved_at"]) if d["moved_at"] else None,
        moved_from=Tier.from_rank(d["moved_from"]) if d["moved_from"] else None,
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _parts(namespace: Namespace) -> list[str | None]:
    return [namespace.tenant, namespace.scope, namespace.agent, namespace.session, namespace.run]
