"""Memory out of one installation and into another: records as lines of JSON, equal bytes for equal memories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from uuid import uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import RecordsImported
from isotherm.pipeline.identity import Bank, Namespace, check_names
from isotherm.pipeline.ports import Redactor
from isotherm.pipeline.redact import redact_values
from isotherm.pipeline.tier.portable import PortableRecord, write_line
from isotherm.storage import cold
from isotherm.storage.models import factory
from isotherm.storage.postgres import namespaces, tier_export, tier_list
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import reaching, system
from isotherm.storage.postgres.tier_export import Loaded
from isotherm.tasks.accepted import Accepted
from isotherm.tasks.observe import counted, emit
from isotherm.tasks.publish import publish_after_commit

MAX_BATCH = 1_000
_NAMESPACES = 1_000


def export(scope: Namespace | Bank | None, *, tenant: str | None = None, session: str | None = None) -> Iterator[str]:
    """Records as lines of JSON, in order of their namespaces' names and then of (created_at, id).

    Bodies of cold records are included; vectors are not, since they are made again from the texts. A line whose content is
    null is one whose stored body is missing or damaged.

    Args: scope: one namespace or one bank; None means all banks of `tenant`, which may be None for those that belong to no
    tenant; session: only this one, of a bank or a tenant.
    Raises: RejectedError for a blank name; TransientError when a server cannot be reached.
    """
    opened = storage.open()
    for namespace in _namespaces(scope, tenant, session):
        for found in tier_export.export(namespace):
            fields = found.fields
            if found.stored is not None:
                fields = {**fields, "content": cold.text(found.stored, opened.blobs)}
            yield write_line(fields)


def _namespaces(scope: Namespace | Bank | None, tenant: str | None, session: str | None) -> Iterator[Namespace]:
    if isinstance(scope, Namespace):
        yield scope
        return
    owner, agent = (tenant, None) if scope is None else (scope.tenant, scope.agent)
    if scope is not None:
        scope.check()  # an agent that is missing must not mean the whole tenant
    check_names(tenant=owner, session=session)
    after: Namespace | None = None
    while True:
        with system(), connection() as conn:
            found = tier_list.namespaces(
                conn, tenant=owner, agent=agent, session=session, after=after, limit=_NAMESPACES
            )
        yield from found
        if len(found) < _NAMESPACES:
            return
        after = found[-1]


@counted("import")
def import_records(records: Sequence[PortableRecord]) -> Accepted:
    """Store records of one bank as another installation had them; doing it again changes nothing.

    A record that is there already stays as it is.

    Args: records: 1 to 1,000.
    Raises: RejectedError for records of several banks, or more than that; TransientError when PostgreSQL cannot be reached.
    """
    if not 1 <= len(records) <= MAX_BATCH:
        raise RejectedError(f"from 1 to {MAX_BATCH} records can be imported at once, not {len(records)}")
    if len({record.namespace.bank for record in records}) > 1:
        raise RejectedError("the records of one call belong to one bank")
    return namespaces.again_if_erased(lambda: _import(records))


def _import(records: Sequence[PortableRecord]) -> Accepted:
    opened = storage.open()
    redactor = factory.redactor(opened.settings)
    rows = [(namespaces.resolve(record.namespace), _redacted(record, redactor)) for record in records]
    places = sorted({place.namespace_id for place, _ in rows})
    embed = factory.embedder(opened.settings) is not None
    # An import that is made again looks again: a record may have been forgotten or evicted since.
    new = NewOperation(uuid7(), tier_export.KIND, uuid4(), rows[0][0].bank_id, places[0] if len(places) == 1 else None)
    with reaching(records[0].namespace.bank):
        done, messages = opened.tier.change(
            places, new.trace_id, lambda conn: tier_export.load(conn, new, rows, opened.patience, embed=embed)
        )
    publish_after_commit(messages)
    _tell(new, done)
    return Accepted(done.operation_id, tuple(record.id for record in records), new=done.new, written=done.written)


def _redacted(record: PortableRecord, redactor: Redactor) -> PortableRecord:
    content = redactor.redact(record.content)
    return record.model_copy(
        update={
            "content": content,
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "summary": None if record.summary is None else redactor.redact(record.summary),
            "metadata": redact_values(redactor, record.metadata),
        }
    )


def _tell(new: NewOperation, done: Loaded) -> None:
    if done.written:
        emit(RecordsImported(done.written), operation_id=str(new.id), trace_id=str(new.trace_id))
