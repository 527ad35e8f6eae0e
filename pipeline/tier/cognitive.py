"""Plain memories: records without tiers, as hosts hand them over and get them back, and an index of them in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from isotherm.pipeline import text
from isotherm.pipeline.clean import clean_name
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.ranking import Candidate, Lexical, lexical_overlap, rank
from isotherm.pipeline.tier.records import NewRecord, Record, Tier
from isotherm.pipeline.tier.weights import RecallWeights


@dataclass(frozen=True, slots=True)
class CognitiveRecord:
    """A memory without a tier. Args: as of `NewRecord`; importance: None means by role."""

    id: str
    content: str
    created_at: datetime
    categories: tuple[str, ...] = ()
    importance: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> bytes:
        """32 bytes, different for records that differ in anything."""
        rest = [list(self.categories), self.importance, self.metadata, self.created_at.isoformat()]
        return digest("cognitive", self.id, self.content, json.dumps(rest, sort_keys=True))

    def new(self, tier: Tier = Tier.HOT) -> NewRecord:
        """As a record to remember."""
        return NewRecord(
            id=self.id,
            content=self.content,
            created_at=self.created_at,
            importance=self.importance,
            categories=self.categories,
            metadata=self.metadata,
            tier=tier,
        )


class CognitiveIndex(Protocol):
    """Keeps a copy of memories to be found by, beside the store that they are in."""

    def remember(self, namespace: Namespace, record: CognitiveRecord) -> None:
        """Keep a memory, or replace the one with its id."""
        ...

    def recall(self, namespace: Namespace, query: str, limit: int) -> Sequence[CognitiveRecord]:
        """The best memories for a query, best first."""
        ...

    def forget(self, namespace: Namespace, record_id: str) -> None:
        """Remove a memory; it is no error when there is none."""
        ...

    def fingerprints(self, namespace: Namespace) -> Mapping[str, bytes]:
        """What is kept, by id, so that it can be compared."""
        ...


def cognitive(record: Record) -> CognitiveRecord:
    """A stored record without its lifecycle; a cold one whose text was not asked for gives its summary."""
    return CognitiveRecord(
        id=record.id,
        content=record.text,
        created_at=record.created_at,
        categories=record.categories,
        importance=record.importance,
        metadata=record.metadata,
    )


class MemoryIndex:
    """A `CognitiveIndex` in the memory of this process, by the words of its memories.

    Args: weights: what counts.
    """

    def __init__(self, weights: RecallWeights | None = None) -> None:
        self._weights = weights or RecallWeights()
        self._held: dict[Namespace, dict[str, CognitiveRecord]] = {}
        self._lock = threading.Lock()

    def remember(self, namespace: Namespace, record: CognitiveRecord) -> None:
        """Keep a memory. Raises: RejectedError for an id that is blank or cannot be stored."""
        clean_name(record.id, field="id")
        with self._lock:
            self._held.setdefault(namespace, {})[record.id] = record

    def recall(self, namespace: Namespace, query: str, limit: int) -> Sequence[CognitiveRecord]:
        """Memories that share a word with the query, best first; the newest ones for a query without words."""
        with self._lock:
            rows = list(self._held.get(namespace, {}).values())
        wanted = text.terms(query)
        newest = max((row.created_at for row in rows), default=None)
        if newest is None or limit <= 0:
            return ()
        rated = [
            Candidate(
                key=key,
                id=row.id,
                tier=Tier.WARM,
                created_at=row.created_at,
                importance=0.5 if row.importance is None else row.importance,
                overlap=lexical_overlap(wanted, text.terms(row.content)),
            )
            for key, row in enumerate(rows)
        ]
        best = rank(rated, self._weights, newest, Lexical.OVERLAP)
        kept = [item for item in best if not wanted or item.parts.overlap > 0]
        return [rows[item.candidate.key] for item in kept[:limit]]

    def forget(self, namespace: Namespace, record_id: str) -> None:
        """Remove a memory."""
        with self._lock:
            held = self._held.get(namespace, {})
            held.pop(record_id, None)
            if not held:
                self._held.pop(namespace, None)

    def fingerprints(self, namespace: Namespace) -> Mapping[str, bytes]:
        """What is kept, by id."""
        with self._lock:
            return {row.id: row.fingerprint for row in self._held.get(namespace, {}).values()}
