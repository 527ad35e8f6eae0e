"""Producers that take in files: each file is a step of one operation, run side by side by the workers.

from isotherm.tasks.produce_import import import_files
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.brain.documents import Document, total_bytes
from isotherm.pipeline.brain.objects import TITLE_MAX_BYTES, clean_id
from isotherm.pipeline.clean import clean_text
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.payloads import FanOut, StepRef
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_imports, namespaces, operations, outbox, steps
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import of_owner
from isotherm.storage.postgres.steps import NewStep
from isotherm.tasks.accepted import Accepted, operation_over
from isotherm.tasks.brain_import import KIND
from isotherm.tasks.canvas import FAN_OUT
from isotherm.tasks.publish import publish_after_commit

# Files of one call: as many as one chord takes, and as much as one transaction should hold.
MOST_FILES: Final = 500
MOST_BYTES: Final = 64 * 1024 * 1024


@of_owner
def import_files(namespace: Namespace, documents: Sequence[Document], *, key: str | None = None) -> Accepted:
    """Take in files as objects with parts; they are durable when this returns, and found once the workers had them.

    A file that cannot be stored fails its own step, which names it; the others are stored, and the operation is `partial`.
    Taking in the same file again changes what changed in it, and takes out parts that are gone.

    Args: documents: 1 to 500, at most 64 MiB of text, each id and each name once; key: makes the call safe to repeat.
    Raises: RejectedError for other numbers, and for text that cannot be stored; TransientError when PostgreSQL cannot be
    reached.
    """
    if not 1 <= len(documents) <= MOST_FILES or total_bytes(documents) > MOST_BYTES:
        raise RejectedError(f"from 1 to {MOST_FILES} files of {MOST_BYTES} bytes together can be taken in at once")
    if min(len({each.id for each in documents}), len({each.name for each in documents})) < len(documents):
        raise RejectedError("two files have one id or one name")
    cleaned = [_cleaned(each) for each in documents]
    return namespaces.again_if_erased(lambda: _import(namespace, cleaned, key))


def _cleaned(document: Document) -> Document:
    redactor = factory.redactor(storage.open().settings)
    text = clean_text(document.text, field="text", max_bytes=MOST_BYTES)
    return replace(
        document,
        id=clean_id(document.id, "id"),
        name=clean_text(document.name, field="name", max_bytes=TITLE_MAX_BYTES),
        text=redactor.redact(text),
        title=None if document.title is None else redactor.redact(_title(document.title)),
    )


def _title(given: str) -> str:
    return clean_text(given, field="title", max_bytes=TITLE_MAX_BYTES)


def _import(namespace: Namespace, documents: list[Document], key: str | None) -> Accepted:
    place, ids = namespaces.resolve(namespace), tuple(str(each.id) for each in documents)

    def said() -> bytes:
        return digest(
            "import", *(part for d in documents for part in (str(d.id), d.name, d.kind, d.title or "", d.text))
        )

    new = operation_over(KIND, namespace, place, key, said)
    with connection() as conn:
        operation, fresh = operations.create(conn, new)
        if not fresh:
            return Accepted(operation.id, ids, new=False)
        message = _fan_out(conn, new, documents)
    publish_after_commit([message])
    return Accepted(new.id, ids, written=len(documents))


def _fan_out(conn: Connection, new: NewOperation, documents: list[Document]) -> Message:
    """A step for each file side by side, and the one that sums up after them."""
    patience = storage.open().patience
    keys = brain_imports.add(conn, new, documents)
    wanted = [
        NewStep(stages.BRAIN_IMPORT, {"file": row, "name": each.name}, each.name)
        for row, each in zip(keys, documents, strict=True)
    ]
    wanted.append(NewStep(stages.BRAIN_IMPORT_REPORT, {}, waits_for=(stages.BRAIN_IMPORT,)))
    ids = steps.add(conn, new.id, wanted, retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    payload = FanOut(
        trace_id=new.trace_id,
        operation_id=new.id,
        header=[[StepRef(step_id=step_id, stage=stages.BRAIN_IMPORT)] for step_id in ids[:-1]],
        body=StepRef(step_id=ids[-1], stage=stages.BRAIN_IMPORT_REPORT),
    )
    return outbox.enqueue(conn, FAN_OUT, payload.model_dump(mode="json"), operation_id=new.id, delay=patience.grace)
