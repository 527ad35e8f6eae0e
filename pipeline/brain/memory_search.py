"""Searches over objects in this process: the words, scores, fusion, age and promotion of the engine over PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline import fusion as joining
from isotherm.pipeline import text
from isotherm.pipeline.brain import bm25
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.legs import QUERY_TERMS
from isotherm.pipeline.brain.legs import ranked as ranked_leg
from isotherm.pipeline.brain.matching import same
from isotherm.pipeline.brain.objects import Object, canonical_uuid
from isotherm.pipeline.brain.promotion import Hit
from isotherm.pipeline.fusion import Fusion, Ranked

_ALIKE: Final = 0.45
_TITLE_CHARS, _TEXT_CHARS, _QUERY_CHARS = 96, 40, 256

Vector = NDArray[np.float32]
Scores = Mapping[UUID, float]


@dataclass(frozen=True, slots=True)
class Indexed:
    """An object as searches see it: how often it has which words, and its vector when there is one; key: order of writes."""

    key: int
    object: Object
    counts: Mapping[int, int]
    vector: Vector | None

    @property
    def as_of(self) -> datetime:
        """By which its age is counted."""
        return self.object.source_time or self.object.updated_at


def lexical(query: str, every: Iterable[Indexed], inside: Iterable[Indexed]) -> Scores:
    """BM25 of the objects inside the filters; how much a word tells is counted over every live object of the namespace."""
    found = bm25.scores(text.terms(query, QUERY_TERMS), {each.object.id: each.counts for each in every})
    return {each.object.id: found[each.object.id] for each in inside if each.object.id in found}


def nearest(vector: Vector, inside: Iterable[Indexed]) -> Scores:
    """Cosines of the objects that have a vector, negative ones too: they are the field that the others stand out of."""
    with_vector = [each for each in inside if each.vector is not None]
    if not with_vector:
        return {}
    cosines = np.stack([each.vector for each in with_vector if each.vector is not None]) @ vector
    return {each.object.id: cosine for each, cosine in zip(with_vector, cosines.tolist(), strict=True)}


def alike(query: str, inside: Iterable[Indexed]) -> Scores:
    """The share of the query's trigrams that a title, or the beginning of a text, has; only from a share that means something."""
    wanted = _trigrams(query)
    if not wanted or len(query) > _QUERY_CHARS:
        return {}
    shares = {each.object.id: len(wanted & _trigrams(_shown(each.object))) / len(wanted) for each in inside}
    return {key: share for key, share in shares.items() if share >= _ALIKE}


def equal(query: str, inside: Iterable[Indexed], fields: Sequence[str]) -> list[Indexed]:
    """Objects whose title is the query whatever its case, whose id it is, or one of whose declared properties it is.

    Args: fields: names of the declared properties. An id that is there answers alone.
    """
    named, as_id = query.strip(), canonical_uuid(query.strip())
    rows = list(inside)
    if as_id is not None and (own := [each for each in rows if each.object.id == as_id]):
        return own
    return [
        each
        for each in rows
        if each.object.title.strip().lower() == named.lower()
        or any(same(each.object.properties.get(name), value) for name in fields for value in _values(named))
    ]


def joined(
    legs: Mapping[str, Scores],
    rows: Mapping[UUID, Indexed],
    k: int,
    words: int,
    fusion: Fusion,
    rrf_k: int,
    decay: Decay,
    now: datetime,
) -> list[Hit]:
    """Join the k best of each leg; for sums every leg scores what another one proposed, ranks are of what it proposed itself.

    Args: words: of the query.
    """
    ordered = {name: sorted(found, key=lambda i: (-found[i], rows[i].key)) for name, found in legs.items()}
    proposed = {i for found in ordered.values() for i in found[:k]}
    ranked: dict[str, Ranked[UUID]] = {}
    for name, found in ordered.items():
        by_rank = [i for i in found[:k] if legs[name][i] > 0]
        shown = by_rank if fusion is Fusion.RRF else [i for i in found if i in proposed]
        hits = [(i, legs[name][i]) for i in shown]
        ranked[name] = ranked_leg(name, hits, words)
    return [
        Hit(row.object.id, row.object.parent_id, decay.apply(one.score, row.as_of, now), row.as_of, one.shares)
        for one in joining.fuse(ranked, fusion, rrf_k=rrf_k)
        for row in (rows[one.key],)
    ]


def _shown(each: Object) -> str:
    beginning = each.summary or each.content or ""
    return f"{each.title[:_TITLE_CHARS]}\n{beginning[:_TEXT_CHARS]}"


def _trigrams(said: str) -> set[str]:
    """Three letters each, of words with two blanks before and one behind."""
    padded = ["  " + word + " " for word in "".join(c if c.isalnum() else " " for c in said.lower()).split()]
    return {word[at : at + 3] for word in padded for at in range(len(word) - 2)}


def _values(query: str) -> list[str | float]:
    """The query as text, and as the number that it spells."""
    try:
        return [query, float(query)]
    except ValueError:
        return [query]
