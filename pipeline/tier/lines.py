"""Stored records of the library as the lines that every export of this project is made of, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat, portable
from isotherm.pipeline.tier.outline import outlines
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Store, StoredRecord

# A version counts the writes of one store and means nothing in another.
_FIRST_VERSION = 1


def write_line(namespace: Namespace, record: StoredRecord) -> str:
    """A record as one line with its end. A cold record without a summary is found by its text, which is its summary."""
    cold = record.tier is Tier.COLD
    value = record.value_log
    return portable.write_line(
        {
            "tenant": namespace.tenant,
            "agent": namespace.agent,
            "session": namespace.session,
            "scope": namespace.scope,
            "run": namespace.run,
            "id": record.id,
            "created_at": record.created_at,
            "content": record.content,
            "sha256": record.content_sha256.hex(),
            "role": record.role,
            "categories": record.categories,
            "metadata": dict(record.metadata),
            "importance": record.importance,
            "tier": record.tier,
            "pinned": record.pinned,
            "summary": (record.summary or record.content) if cold else None,
            "version": _FIRST_VERSION,
            "access_count": record.access_count,
            "heat_log": record.heat_log,
            "value_log": heat.value_log(record.importance, record.last_access_at) if value is None else value,
            "last_access_at": record.last_access_at,
            "moved_at": record.moved_at,
            "moved_from": record.moved_from,
        }
    )


def read_line(line: str) -> tuple[Namespace, StoredRecord]:
    """Whose record a line is, and the record. Raises: RejectedError that names what is wrong and repeats nothing of it."""
    read = portable.read_line(line.encode(errors="surrogatepass"))
    record = StoredRecord(
        id=read.id,
        content=read.content,
        created_at=read.created_at,
        last_access_at=read.last_access_at,
        tier=read.tier,
        role=read.role,
        importance=read.importance,
        categories=read.categories,
        metadata=read.metadata,
        pinned=read.pinned,
        access_count=read.access_count,
        heat_log=read.heat_log,
        value_log=read.value_log,
        moved_at=read.moved_at,
        moved_from=read.moved_from,
        summary=read.summary,
    )
    return read.namespace, record.cleaned()


def read_lines(lines: Iterable[str]) -> Iterator[tuple[Namespace, StoredRecord]]:
    """The records of lines and whose they are, as they are asked for; blank ones are left out.

    Raises: RejectedError naming the line that is no record.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield read_line(line)
            except RejectedError as error:
                raise RejectedError(f"line {number}: {error}") from None


def exported(store: Store, namespace: Namespace) -> Iterator[str]:
    """Every record as its line, in order of (created_at, id)."""
    rows = [outline.record for outline in outlines(store, namespace)]
    for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
        record = store.get(namespace, row.id)
        if record is not None:
            yield write_line(namespace, record)
