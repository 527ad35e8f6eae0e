"""Records without their texts, for stores whose texts lie elsewhere: what a pass and a list of a namespace need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, runtime_checkable

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import MOST_LISTED, Position, Store, StoredRecord

T = TypeVar("T")
# How often tiers are read again when records move all the time; by then each was met in one of its places.
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Outline:
    """A record whose content may be left out (empty), with the size in bytes and the SHA-256 of its real content."""

    record: StoredRecord
    size_bytes: int
    content_sha256: str

    @classmethod
    def of(cls, record: StoredRecord) -> Self:
        """The outline of a record that has its content."""
        return cls(record, len(record.content.encode()), record.content_sha256.hex())


@runtime_checkable
class OutlineStore(Protocol):
    """A store that can list its records without reading their texts."""

    def outline(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[Outline]:
        """A page as `Store.list` gives it."""
        ...


def outlines(store: Store, namespace: Namespace, tiers: Sequence[Tier] = tuple(Tier)) -> Iterator[Outline]:
    """Every record of some tiers, the warmest tier first, each from the newest access on; each record once.

    A record that moves meanwhile is not missed: tiers are read downwards, and once more when the counts do not agree with
    what was found, as after a record went up behind the reader.
    """
    return every(
        tiers,
        lambda tier: outlines_of(store, namespace, tier),
        lambda tier: store.count(namespace, tier),
        lambda outline: outline.record.id,
    )


def records(store: Store, namespace: Namespace) -> Iterator[StoredRecord]:
    """Every record with its text; otherwise as `outlines`."""
    return every(
        tuple(Tier),
        lambda tier: records_of(store, namespace, tier),
        lambda tier: store.count(namespace, tier),
        lambda record: record.id,
    )


def every(
    tiers: Sequence[Tier],
    read: Callable[[Tier], Iterator[T]],
    count: Callable[[Tier], int],
    id_of: Callable[[T], str],
) -> Iterator[T]:
    """What the readers of some tiers give, each id once, as `outlines` describes."""
    seen: set[str] = set()
    for _ in range(_LOOKS):
        before, known = [count(tier) for tier in tiers], len(seen)
        for tier in tiers:
            for item in read(tier):
                if id_of(item) not in seen:
                    seen.add(id_of(item))
                    yield item
        # A store that leaves out what it cannot read counts more than it gives; a second look settles that.
        agrees = sum(before) == len(seen) or known == len(seen)
        if agrees and before == [count(tier) for tier in tiers]:
            return


def outlines_of(store: Store, namespace: Namespace, tier: Tier) -> Iterator[Outline]:
    """The records of a tier, page by page; one that moves meanwhile may be missed."""
    after: Position | None = None
    while True:
        page = _page(store, namespace, tier, after)
        yield from page
        if len(page) < MOST_LISTED:
            return
        after = page[-1].record.position


def records_of(store: Store, namespace: Namespace, tier: Tier) -> Iterator[StoredRecord]:
    """The records of a tier with their texts, page by page; one that moves meanwhile may be missed."""
    after: Position | None = None
    while True:
        page = store.list(namespace, tier, MOST_LISTED, after)
        yield from page
        if len(page) < MOST_LISTED:
            return
        after = page[-1].position


def _page(store: Store, namespace: Namespace, tier: Tier, after: Position | None) -> Sequence[Outline]:
    if isinstance(store, OutlineStore):
        return store.outline(namespace, tier, MOST_LISTED, after)
    return [Outline.of(record) for record in store.list(namespace, tier, MOST_LISTED, after)]
