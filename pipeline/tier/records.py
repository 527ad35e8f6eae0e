"""What a tier keeps: records as they come in, and as they are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from isotherm.pipeline.clean import (
    METADATA_MAX_BYTES,
    NAME_MAX_BYTES,
    are_plain,
    are_plain_names,
    aware,
    clean_metadata,
    clean_name,
    clean_text,
)
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace

CONTENT_MAX_BYTES = 16 * 1024 * 1024
CATEGORIES_MAX = 64
_ROLE_IMPORTANCE = {"user": 0.7, "assistant": 0.6, "tool": 0.4}
_OTHER_IMPORTANCE = 0.5


class Tier(StrEnum):
    """Where a record is kept; the rank orders the tiers and is what rows store."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"

    @property
    def rank(self) -> int:
        """Hot 3, warm 2, cold 1."""
        return _RANKS[self]

    @classmethod
    def from_rank(cls, rank: int) -> "Tier":
        """Return the tier of a rank. Raises RejectedError for a rank that no tier has."""
        tier = _BY_RANK.get(rank)
        if tier is None:
            raise RejectedError(f"tier rank {rank} is unknown")
        return tier


_RANKS = {Tier.HOT: 3, Tier.WARM: 2, Tier.COLD: 1}
_BY_RANK = {rank: tier for tier, rank in _RANKS.items()}


class Reason(StrEnum):
    """Why a record moved: `restore` also when another text of it was written, into another tier."""

    CAPACITY = "capacity"
    TTL = "ttl"
    IDLE = "idle"
    ACCESS = "access"
    PIN = "pin"
    RESTORE = "restore"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to remember; `cleaned` makes it fit to store.

    Args: id: unique in its namespace; content: the text that is searched and summarized; role: who said it;
        importance: None means by role; created_at: aware; tier: where it starts; pinned: kept warm or hotter, and
        never moved by a pass.
    """

    id: str
    content: str
    created_at: datetime
    role: str | None = None
    importance: float | None = None
    categories: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tier: Tier = Tier.HOT
    pinned: bool = False

    @property
    def weight(self) -> float:
        """The importance to store, by role where none is given. Raises RejectedError for one that is no number."""
        return importance_of(self.importance, self.role)

    def cleaned(self, *, max_bytes: int = CONTENT_MAX_BYTES, max_metadata: int = METADATA_MAX_BYTES) -> Self:
        """Return the record as it will be stored: text scrubbed, importance a number in [0, 1], times in UTC.

        A pinned record that asks for cold starts warm, since pinned means never below warm.

        Raises: RejectedError naming the field that cannot be stored.
        """
        if self.categories and len(self.categories) > CATEGORIES_MAX:
            raise RejectedError(f"categories: {len(self.categories)} given, the limit is {CATEGORIES_MAX}")
        return type(self)(  # `replace` takes twice as long
            id=clean_name(self.id, field="id"),
            content=clean_text(self.content, field="content", max_bytes=max_bytes),
            created_at=aware(self.created_at, "created_at"),
            role=None if self.role is None else clean_text(self.role, field="role", max_bytes=512),
            importance=importance_of(self.importance, self.role),
            categories=tuple(clean_text(name, field="categories", max_bytes=512) for name in self.categories)
            if self.categories
            else (),
            metadata=clean_metadata(self.metadata, max_metadata) if self.metadata else {},
            tier=Tier.WARM if self.pinned and self.tier is Tier.COLD else self.tier,
            pinned=self.pinned,
        )


def cleaned_records(
    records: Sequence[NewRecord], *, max_bytes: int = CONTENT_MAX_BYTES, max_metadata: int = METADATA_MAX_BYTES
) -> list[NewRecord]:
    """Clean the records of a call, each as `NewRecord.cleaned` does, or leave them where that would change nothing.

    Raises: RejectedError as that does.
    """
    if _are_plain(records, max_bytes):
        return list(records)  # to make them again takes longer than all that is looked at here
    return [record.cleaned(max_bytes=max_bytes, max_metadata=max_metadata) for record in records]


def _are_plain(records: Sequence[NewRecord], max_bytes: int) -> bool:
    """Whether their cleaning would change nothing but to write down an importance that follows from the role."""
    return (
        all(
            record.pinned is False
            and record.categories == ()
            and record.metadata == {}
            and type(record.created_at) is datetime
            and record.created_at.tzinfo is UTC
            and (record.importance is None or _is_plain_share(record.importance))
            for record in records
        )
        and are_plain([record.content for record in records], max_bytes)
        and are_plain([record.role for record in records if record.role is not None], NAME_MAX_BYTES)
        and are_plain_names([record.id for record in records])
    )


def _is_plain_share(importance: object) -> bool:
    return type(importance) is float and 0.0 <= importance <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as stored and returned.

    Args: content: None only when the body is cold and was not asked for; summary: present when it went cold;
        version: raised by every change of content or place; heat: accesses decayed to the time of the answer;
        moved_at: the last change of tier, None when there was none; size_bytes: of the content in UTF-8;
        content_sha256: of the content in UTF-8, hexadecimal.
    """

    id: str
    namespace: Namespace
    content: str | None
    summary: str | None
    tier: Tier
    pinned: bool
    version: int
    importance: float
    access_count: int
    heat: float
    created_at: datetime
    last_access_at: datetime
    moved_at: datetime | None
    size_bytes: int
    metadata: Mapping[str, Any]
    categories: tuple[str, ...]
    content_sha256: str

    @property
    def text(self) -> str:
        """What there is to read: the content, else the summary."""
        return self.content if self.content is not None else (self.summary or "")


def importance_for_role(role: str | None) -> float:
    """Return user 0.7, assistant 0.6, tool 0.4, anything else 0.5; case and outer spaces do not matter."""
    known = _ROLE_IMPORTANCE.get(role or "")  # as it mostly is
    return _ROLE_IMPORTANCE.get((role or "").strip().lower(), _OTHER_IMPORTANCE) if known is None else known


def importance_of(importance: float | None, role: str | None) -> float:
    """Return the importance to store, in [0, 1]: the given one clamped, or by role when None.

    Raises: RejectedError for NaN and for what is no number.
    """
    if importance is None:
        return importance_for_role(role)
    given: object = importance  # whatever its caller made of it
    if not isinstance(given, int | float) or given != given:  # noqa: PLR0124 - NaN; a large integer is no float to ask
        raise RejectedError("importance: must be a number")
    return float(min(1.0, max(0.0, importance)))  # clamped first: a large integer is no float


def searchable_text(content: str, metadata: Mapping[str, Any]) -> str:
    """Return the text that search and summaries see: `metadata["searchable"]` when it is text and not blank."""
    given = metadata.get("searchable")
    if isinstance(given, str) and given.strip():
        return given.strip()
    return content
