"""What the rows of a composite hold in place of a text: where the body is, and which older ones may still be there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.pipeline.hashing import digest
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import StoredRecord


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
    """Args: body: the one that counts; old: those before it that are to go, and mostly have gone."""

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
