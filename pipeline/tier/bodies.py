"""Bodies of a composite's records: what their stores must do, and the pointers to them that the rows of the index hold."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import StoredRecord


class BodyStore(Protocol):
    """What a composite needs of the store of a tier's bodies; every `Store` is one."""

    @property
    def levels(self) -> frozenset[Tier]:
        """The tiers this store keeps."""
        ...

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a body as a record of its own id."""
        ...

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The body of an id."""
        ...

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a body; False when there is none."""
        ...

    def forget_all(self, namespace: Namespace) -> int:
        """Remove all that is kept of a namespace."""
        ...


@dataclass(frozen=True, slots=True)
class LostBody:
    """A record whose text cannot be read: its body is missing, or is not the one that was stored."""

    namespace: Namespace
    record_id: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class Body:
    """A body of a record. Args: id: its name in the store of its tier; sha256: of its text, hexadecimal; size: in bytes."""

    tier: Tier
    id: str
    sha256: str
    size: int

    @classmethod
    def of(cls, record: StoredRecord) -> Body:
        """A new body, under a name that no other has."""
        name = digest("body", record.id, secrets.token_bytes(16)).hex()
        return cls(record.tier, name, record.content_sha256.hex(), len(record.content.encode()))

    def is_of(self, record: StoredRecord) -> bool:
        """Whether this is the text of a record, in its tier."""
        return (self.tier, self.sha256) == (record.tier, record.content_sha256.hex())

    def stored(self, record: StoredRecord) -> StoredRecord:
        """The record that the store of the tier keeps of it: the text alone."""
        return StoredRecord(
            id=self.id,
            content=record.content,
            created_at=record.created_at,
            last_access_at=record.last_access_at,
            tier=record.tier,
        )


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a text is.

    Args: body: the one that counts; old: those before it that are to go, and mostly have gone.
    """

    body: Body
    old: tuple[Body, ...] = ()

    @classmethod
    def read(cls, row: StoredRecord) -> Pointer:
        """The pointer of a row whose text is one."""
        name, sha256, size, *rest = json.loads(row.content)
        return cls(Body(row.tier, name, sha256, size), tuple(map(_body, rest[0] if rest else ())))

    def written(self) -> str:
        """What `read` reads."""
        kept = [[body.tier.rank, body.id, body.sha256, body.size] for body in self.old]
        return json.dumps([self.body.id, self.body.sha256, self.body.size, *([kept] if kept else [])])


def _body(fields: Sequence[int | str]) -> Body:
    rank, name, sha256, size = fields
    return Body(Tier.from_rank(int(rank)), str(name), str(sha256), int(size))
