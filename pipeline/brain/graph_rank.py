"""Ranking by a walk over edges: personalized PageRank from what was found and from who is named in the question.

A walk starts at a seed, follows edges in either direction, and begins again at a seed every other step. Where it is met
most is near to the seeds by more than one way: a document that no word of the question is in, but that two good ones speak
of. What everybody speaks of is near to nothing, so edges into an object weigh less the more there are, and beyond a limit
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Chance to follow an edge instead of beginning again.
DAMPING: Final = 0.5
_STEPS: Final = 12
# Hits that seed a walk; the best one weighs far more than one that is half as good.
SEEDS: Final = 10
_PEAK: Final = 4
# Objects whose edges are read besides those of the seeds, edges read of each in either direction, and names looked up.
EXPANDED: Final = 64
HUB: Final = 32
OUTGOING: Final = 64
NAMED: Final = 32
QUERY_WORDS: Final = 64
# Objects that only a walk found and that may be answered, for a page of any length that is usual.
FOUND: Final = 64
# What the walk adds to the best score at most: it sees what the other legs cannot, and has their order within it.
WEIGHT: Final = 8.0
# An edge as one number: its source's place above these bits, its target's within them.
_TARGET: Final = 32
_TARGET_MASK: Final = (1 << _TARGET) - 1

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk read, for the answer.

    Args: seeds: where it began; named: of them, those that the question names; expanded: objects whose edges were read;
        edges: that it followed; hubs: objects whose edges were left out because there are so many; truncated: whether a
        limit kept it from edges within two steps of its seeds.
    """

    seeds: int = 0
    named: int = 0
    expanded: int = 0
    edges: int = 0
    hubs: int = 0
    truncated: bool = False


class Way(NamedTuple):
    """How often a walk is at an object, in relation to where it is most, and how many objects come before it."""

    chance: float
    rank: int


@dataclass(frozen=True, slots=True)
class Ways:
    """What a walk made of objects. Args: places: by object; chances, ranks: by place; order: places, nearest first."""

    places: Mapping[str, int]
    chances: Sequence[float]
    order: Sequence[int]
    ranks: Sequence[int]

    def to(self, node: str) -> Way | None:
        """How near an object is, None for one that the walk is never at."""
        place = self.places.get(node)
        if place is None or self.chances[place] <= 0:
            return None
        return Way(self.chances[place], self.ranks[place])

    def likely(self, least: float = 0.0) -> Iterator[str]:
        """The objects that the walk is ever at, nearest first. Args: least: chance below which none is named."""
        nodes = list(self.places)
        for place in self.order:
            if self.chances[place] <= 0 or self.chances[place] < least:
                return
            yield nodes[place]


@dataclass(slots=True)
class Neighborhood:
    """Objects, by any name, and the edges between them as far as they were read.

    Args: edges: counts of mentions by places of source and target, in one number; into: edges into those objects whose
        edges were read; hubs: places of those that too many edges lead to.
    """

    edges: dict[int, int] = field(default_factory=dict)
    into: dict[int, int] = field(default_factory=dict)
    hubs: set[int] = field(default_factory=set)
    _places: dict[str, int] = field(default_factory=dict)

    def place(self, node: str) -> int:
        """The place of an object, which it gets when it comes first."""
        return self._places.setdefault(node, len(self._places))

    def named(self, places: Sequence[int]) -> list[str]:
        """The objects at some places. Cost: linear in all of them."""
        nodes = list(self._places)
        return [nodes[place] for place in places]

    def add(self, own: int, coming: Sequence[tuple[str, int]] | None, going: Sequence[tuple[str, int]]) -> None:
        """The edges of one object.

        Args: coming, going: the other end and the mentions of each, one more than are read; None come for those of a hub.
        """
        edges, places = self.edges, self._places
        self.into[own] = HUB + 1 if coming is None else len(coming)
        if coming is None or len(coming) > HUB:
            self.hubs.add(own)
        else:
            for peer, count in coming:
                edges[places.setdefault(peer, len(places)) << _TARGET | own] = count
        source = own << _TARGET
        for peer, count in going[:OUTGOING]:
            edges[source | places.setdefault(peer, len(places))] = count

    def followed(self) -> int:
        """How many edges a walk follows."""
        return len(self._followed()[0])

    def _followed(self) -> tuple[NDArray[np.int64], Floats]:
        """Edges that do not lead to hubs, and their counts."""
        pairs = np.fromiter(self.edges, dtype=np.int64, count=len(self.edges))
        counts = np.fromiter(self.edges.values(), dtype=np.float64, count=len(self.edges))
        telling = np.ones(len(self._places), dtype=bool)
        telling[list(self.hubs)] = False
        kept = telling[pairs & _TARGET_MASK]
        return pairs[kept], counts[kept]

    def met(self, seeds: Mapping[str, float], damping: float = DAMPING) -> Floats:
        """How often a walk from the seeds is at each object, in relation to where it is most.

        Args: seeds: chances that sum to 1; damping: chance to follow an edge instead of beginning again. Returns: shape (n,), object by object; all 0 without seeds.
        Cost: linear in the edges, for each of 12 steps.
        """
        places = [self.place(seed) for seed in seeds]
        size = len(self._places)
        start = np.zeros(size)
        start[places] = list(seeds.values())
        pairs, counts = self._followed()
        one, other = pairs >> _TARGET, pairs & _TARGET_MASK
        into = np.bincount(other, minlength=size).astype(np.float64)
        into[list(self.into)] = list(self.into.values())
        weight = np.tile(np.log1p(np.maximum(counts, 1)) / np.sqrt(np.maximum(into[other], 1)), 2)
        here, there = np.concatenate([one, other]), np.concatenate([other, one])
        chance = damping * weight / np.bincount(here, weight, minlength=size)[here]
        at = start
        for _ in range(_STEPS):
            moved = np.bincount(there, at.take(here) * chance, minlength=size)
            # What follows no edge, by chance or as there is none, begins again.
            at = moved + start * (1 - moved.sum())
        most = at.max(initial=0.0)
        found: Floats = at / most if most > 0 else at
        return found

    def in_order(self, met: Floats) -> dict[str, float]:
        """The objects that a walk is ever at, where it is most first."""
        ways = self.ways(met)
        return {i: ways.chances[self._places[i]] for i in ways.likely()}

    def ways(self, met: Floats) -> Ways:
        """The same, for those who ask for few of them."""
        order = np.argsort(-met, kind="stable")
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order))
        return Ways(self._places, met.tolist(), order.tolist(), ranks.tolist())

    def unread(self, met: Floats, limit: int) -> list[str]:
        """Whose edges to read next: the objects where a walk is most often, of those not read yet."""
        order = np.argsort(-met, kind="stable").tolist()
        return self.named(list(islice((place for place in order if place not in self.into), limit)))


def seeds_of(
    hits: Sequence[tuple[str, float]], named: Mapping[str, Sequence[str]], into: Mapping[str, int]
) -> dict[str, float]:
    """Where walks begin, with chances that sum to 1: at the best hits, and as much at who is named.

    Args: hits: objects and scores, best first; named: bearers by name; one that several bear counts as one; into: edges
        into those who are named, which tell less of the question the more there are.
    """
    best = hits[0][1] if hits else 0.0
    found: dict[str, float] = {}
    _share(found, {i: (score / best) ** _PEAK for i, score in hits[:SEEDS] if score > 0})
    called: dict[str, float] = {}
    for bearers in named.values():
        for bearer in bearers:
            weight = 1 / len(bearers) / math.sqrt(max(into.get(bearer, 0), 1))
            called[bearer] = max(called.get(bearer, 0.0), weight)
    _share(found, called, at_least=1.0)
    total = sum(found.values())
    return {i: chance / total for i, chance in found.items()}


def longest_names(words: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names in a question that stand in no longer one; of a name inside a name only the longer is meant.

    Args: words: the question's; known: names whose words follow each other in it.
    """
    spans = sorted(
        (at, -len(name), " ".join(name))
        for name in {tuple(one.split(" ")) for one in known}
        for at in range(len(words) - len(name) + 1)
        if tuple(words[at : at + len(name)]) == name
    )
    found, end = [], 0
    for at, length, name in spans:
        if at - length > end:
            end = at - length
            found.append(name)
    return list(dict.fromkeys(found))


def _share(found: dict[str, float], weights: Mapping[str, float], at_least: float = 0.0) -> None:
    total = max(sum(weights.values()), at_least)
    for i, weight in weights.items():
        found[i] = found.get(i, 0.0) + weight / total
