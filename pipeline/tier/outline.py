"""Records without their texts, for stores whose texts lie elsewhere: what a pass and a list of a namespace need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import MOST_LISTED, Position, Store, StoredRecord


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


def outlines(store: Store, namespace: Namespace, tier: Tier) -> Iterator[Outline]:
    """Every record of a tier, page by page, the newest access first; one that moves meanwhile may be missed or come twice."""
    after: Position | None = None
    while True:
        page = _page(store, namespace, tier, after)
        yield from page
        if len(page) < MOST_LISTED:
            return
        after = page[-1].record.position


def records(store: Store, namespace: Namespace, tier: Tier) -> Iterator[StoredRecord]:
    """Every record of a tier with its text; otherwise as `outlines`."""
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
