"""Candidates of a recall in process: every record of the wanted tiers is compared, so a good one is found however old it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from isotherm.pipeline import text
from isotherm.pipeline.errors import IsothermError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.outline import Outline, outlines, records
from isotherm.pipeline.tier.ranking import Candidate, Lexical, lexical_overlap, rarity_match, rarity_weight, spec_tokens
from isotherm.pipeline.tier.records import Tier, searchable_text
from isotherm.pipeline.tier.store import Store, StoredRecord

# Records compared for one query at most; beyond it the answer says that it is truncated.
MOST_COMPARED = 50_000
_SPLIT_TEXTS = 4_096


@dataclass(slots=True)
class Pool:
    """What there is to choose from, by the key of its candidate; `degraded` names tiers that were out of reach."""

    outlines: list[Outline] = field(default_factory=list)
    degraded: tuple[str, ...] = ()
    truncated: bool = False


def pool(store: Store, namespace: Namespace, tiers: Sequence[Tier], most: int = MOST_COMPARED) -> Pool:
    """Read the records of some tiers. Cold ones are read without their texts where the store can, by their summaries.

    A cold tier that cannot be read is left out; others raise what the store raises.
    """
    found = Pool()
    seen: set[str] = set()
    for tier in tiers:
        try:
            for outline in islice(_of_tier(store, namespace, tier), most + 1):
                if outline.record.id not in seen:
                    seen.add(outline.record.id)
                    found.outlines.append(outline)
        except IsothermError:
            if tier is not Tier.COLD:
                raise
            found.degraded += ("cold",)
    found.truncated = len(found.outlines) > most
    del found.outlines[most:]
    return found


def candidates(found: Pool, query: str, lexical: Lexical, summaries: Sequence[str] = ()) -> list[Candidate]:
    """Rate what was read. Args: summaries: ids that an index of summaries proposes. Returns: one for each, keys by place."""
    rows = [outline.record for outline in found.outlines]
    split = _spec_terms if lexical is Lexical.OVERLAP else _terms
    wanted, held = split(query), [split(found_by(row)) for row in rows]
    overlaps = _overlaps(wanted, held, lexical)
    proposed = frozenset(summaries)
    return [
        Candidate(
            key=key,
            id=row.id,
            tier=row.tier,
            created_at=row.created_at,
            importance=row.importance,
            overlap=overlap,
            legs=_legs(row, overlap, proposed),
        )
        for key, (row, overlap) in enumerate(zip(rows, overlaps, strict=True))
    ]


def found_by(record: StoredRecord) -> str:
    """The text a record is found by: what its owner says, else the summary of a cold one, else its text."""
    cold = record.summary if record.tier is Tier.COLD else None
    return searchable_text(record.content if cold is None else cold, record.metadata)


def _of_tier(store: Store, namespace: Namespace, tier: Tier) -> Iterator[Outline]:
    if tier is not Tier.COLD:
        yield from map(Outline.of, records(store, namespace, tier))
        return
    for outline in outlines(store, namespace, tier):
        if outline.record.content or outline.record.summary is not None:
            yield outline
        elif (whole := store.get(namespace, outline.record.id)) is not None:
            yield Outline.of(whole)


def _overlaps(wanted: frozenset[int | str], held: Sequence[frozenset[int | str]], lexical: Lexical) -> Sequence[float]:
    if lexical is Lexical.OVERLAP:
        return [lexical_overlap(wanted, own) for own in held]
    shared = [wanted & own for own in held]
    having = Counter(term for terms in shared for term in terms)
    weights = {term: rarity_weight(having[term], len(held)) for term in wanted}
    sizes = [len(own) for own, terms in zip(held, shared, strict=True) if terms]
    typical = sum(sizes) / len(sizes) if sizes else 1.0
    total = sum(weights.values())
    return [
        rarity_match(sum(weights[term] for term in terms), total, len(own), typical)
        for own, terms in zip(held, shared, strict=True)
    ]


def _legs(record: StoredRecord, overlap: float, proposed: frozenset[str]) -> frozenset[str]:
    legs = {"recent"}
    if overlap > 0:
        legs.add("lexical")
    if record.tier is Tier.COLD and record.id in proposed:
        legs.add("summary")
    return frozenset(legs)


@lru_cache(maxsize=_SPLIT_TEXTS)
def _terms(given: str) -> frozenset[int | str]:
    return frozenset(text.terms(given))


@lru_cache(maxsize=_SPLIT_TEXTS)
def _spec_terms(given: str) -> frozenset[int | str]:
    return frozenset(spec_tokens(given))
