"""What producers share: the operation that a call becomes, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from isotherm.pipeline.clean import clean_name
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer of a producer.

    Args: operation_id: what to ask about later; ids: of the records, in the order given; new: False when the call
    repeated an earlier one; written: records that are new or changed.
    """

    operation_id: UUID
    ids: tuple[str, ...] = ()
    new: bool = True
    written: int = 0


def operation_over(
    kind: str, namespace: Namespace, place: Place, key: str | None, fingerprint: Callable[[], bytes]
) -> NewOperation:
    """An operation to be over one namespace.

    Args: key: the caller's, which makes the call safe to repeat; fingerprint: what a repeat must have in common with the
    first call, asked for only when there is a key.
    Raises: RejectedError for a key that is no name.
    """
    checked = None if key is None else clean_name(key, field="key")
    return NewOperation(
        id=uuid7(),
        kind=kind,
        trace_id=uuid4(),
        bank_id=place.bank_id,
        namespace_id=place.namespace_id,
        key=None if checked is None else digest("operation", kind, namespace.key, checked),
        fingerprint=None if checked is None else fingerprint(),
    )
