"""Candidates of a recall in process: every record of the wanted tiers is compared, so a good one is found however old it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from isotherm.pipeline import text
from isotherm.pipeline.errors import IsothermError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.likeness import REACH
from isotherm.pipeline.tier.outline import Outline, every, outlines_of, records_of
from isotherm.pipeline.tier.ranking import Candidate, Lexical, lexical_overlap, rarity_match, rarity_weight, spec_tokens
from isotherm.pipeline.tier.records import Tier, searchable_text
from isotherm.pipeline.tier.store import Store, StoredRecord

# Records compared for one query at most; beyond it the answer says that it is truncated.
MOST_COMPARED = 50_000
_SPLIT_TEXTS = 4_096


@dataclass(frozen=True, slots=True)
class Pool:
    """What there is to choose from, by the key of its candidate; `degraded` names tiers that were out of reach."""

    outlines: Sequence[Outline]
    degraded: tuple[str, ...] = ()
    truncated: bool = False


def pool(store: Store, namespace: Namespace, tiers: Sequence[Tier], most: int = MOST_COMPARED) -> Pool:
    """Read the records of some tiers. Cold ones are read without their texts where the store can, by their summaries.

    A cold tier that cannot be read is left out; others raise what the store raises.
    """
    reader = _Reader(store, namespace)
    found = list(islice(every(tiers, reader.read, reader.count, _id_of), most + 1))
    degraded = ("cold",) if reader.failed else ()
    return Pool(found[:most], degraded, truncated=len(found) > most)


def candidates(found: Pool, query: str, lexical: Lexical, summaries: Sequence[str] = ()) -> list[Candidate]:
    """Rate what was read. Args: summaries: ids that an index of summaries proposes. Returns: one for each, keys by place."""
    rows = [outline.record for outline in found.outlines]
    split = _spec_terms if lexical is Lexical.OVERLAP else _terms
    wanted, held = split(query), [split(found_by(row)) for row in rows]
    overlaps = _overlaps(wanted, held, lexical)
    proposed = frozenset(summaries)
    around = _around(rows) if lexical is Lexical.RARITY else {}
    return [
        Candidate(
            key=key,
            id=row.id,
            tier=row.tier,
            created_at=row.created_at,
            importance=row.importance,
            overlap=overlap,
            legs=_legs(row, overlap, proposed),
            turn_of=None if row.role is None else 0,
            around=around.get(key, ()),
        )
        for key, (row, overlap) in enumerate(zip(rows, overlaps, strict=True))
    ]


def found_by(record: StoredRecord) -> str:
    """The text a record is found by: what its owner says, else the summary of a cold one, else its text."""
    cold = record.summary if record.tier is Tier.COLD else None
    return searchable_text(record.content if cold is None else cold, record.metadata)


class _Reader:
    """Reads tiers, and goes on without cold when that fails."""

    def __init__(self, store: Store, namespace: Namespace) -> None:
        self._store = store
        self._namespace = namespace
        self.failed = False

    def read(self, tier: Tier) -> Iterator[Outline]:
        if tier is not Tier.COLD:
            yield from map(Outline.of, records_of(self._store, self._namespace, tier))
            return
        try:
            yield from self._cold()
        except IsothermError:
            self.failed = True

    def count(self, tier: Tier) -> int:
        try:
            return self._store.count(self._namespace, tier)
        except IsothermError:
            if tier is not Tier.COLD:
                raise
            self.failed = True
            return 0

    def _cold(self) -> Iterator[Outline]:
        for outline in outlines_of(self._store, self._namespace, Tier.COLD):
            if outline.record.content or outline.record.summary is not None:
                yield outline
            elif (whole := self._store.get(self._namespace, outline.record.id)) is not None:
                yield Outline.of(whole)


def _id_of(outline: Outline) -> str:
    return outline.record.id


def _overlaps(wanted: frozenset[int | str], held: Sequence[frozenset[int | str]], lexical: Lexical) -> Sequence[float]:
    if lexical is Lexical.OVERLAP:
        return [lexical_overlap(wanted, own) for own in held]
    shared = [wanted & own for own in held]
    having = Counter(term for terms in shared for term in terms)
    weights = {term: rarity_weight(having[term], len(held)) for term in wanted}
    sizes = np.array([len(own) for own in held], np.int64)
    counted = sizes[[bool(terms) for terms in shared]] if held else sizes
    typical = float(counted.mean()) if len(counted) else 1.0
    shared_weight = np.array([sum(weights[term] for term in terms) for terms in shared], np.float64)
    overlaps: list[float] = rarity_match(shared_weight, sum(weights.values()), sizes, typical).tolist()
    return overlaps


def _legs(record: StoredRecord, overlap: float, proposed: frozenset[str]) -> frozenset[str]:
    legs = {"recent"}
    if overlap > 0:
        legs.add("lexical")
    if record.tier is Tier.COLD and record.id in proposed:
        legs.add("summary")
    return frozenset(legs)


def _around(rows: Sequence[StoredRecord]) -> dict[int, list[tuple[int, int]]]:
    """The turns next to each turn, with their distance; the records are of one session."""
    ordered = sorted(range(len(rows)), key=lambda key: (rows[key].created_at, rows[key].id))
    found: dict[int, list[tuple[int, int]]] = {}
    for step in range(1, REACH + 1):
        for one, other in zip(ordered, ordered[step:], strict=False):
            if rows[one].role is not None and rows[other].role is not None:
                found.setdefault(one, []).append((other, step))
                found.setdefault(other, []).append((one, step))
    return found


@lru_cache(maxsize=_SPLIT_TEXTS)
def _terms(given: str) -> frozenset[int | str]:
    return frozenset(text.terms(given))


@lru_cache(maxsize=_SPLIT_TEXTS)
def _spec_terms(given: str) -> frozenset[int | str]:
    return frozenset(spec_tokens(given))
