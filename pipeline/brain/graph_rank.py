"""Ranking by a walk over edges: personalized PageRank from what was found and from who is named in the question.

A walk starts at a seed, follows edges in either direction, and begins again at a seed every other step. Where it is met
most is near to the seeds by more than one way: a document that no word of the question is in, but that two good ones speak
of. What everybody speaks of is near to nothing, so edges into an object weigh less the more there are, and beyond a limit
nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np

# Chance to follow an edge instead of beginning again.
DAMPING: Final = 0.5
_STEPS: Final = 16
# Hits that seed a walk; the best one weighs far more than one that is half as good.
SEEDS: Final = 10
_PEAK: Final = 4
# Objects whose edges are read besides those of the seeds, edges read of each in either direction, and names looked up.
EXPANDED: Final = 64
HUB: Final = 32
OUTGOING: Final = 64
NAMED: Final = 32
QUERY_WORDS: Final = 64
# What the walk adds to the best score at most: it sees what the other legs cannot, and has their order within it.
WEIGHT: Final = 4.0


@dataclass(frozen=True, slots=True)
class Link:
    """An edge of the neighborhood; `mentions` is how often the source's text names the target, 1 for one made by hand."""

    source: UUID
    target: UUID
    mentions: int = 1


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


def seeds_of(
    hits: Sequence[tuple[UUID, float]], named: Mapping[str, Sequence[UUID]], into: Mapping[UUID, int]
) -> dict[UUID, float]:
    """Where walks begin, with chances that sum to 1: at the best hits, and as much at who is named.

    Args: hits: objects and scores, best first; named: bearers by name; one that several bear counts as one; into: edges
        into those who are named, which tell less of the question the more there are.
    """
    best = hits[0][1] if hits else 0.0
    found: dict[UUID, float] = {}
    _share(found, {i: (score / best) ** _PEAK for i, score in hits[:SEEDS] if score > 0})
    called: dict[UUID, float] = {}
    for bearers in named.values():
        for bearer in bearers:
            weight = 1 / len(bearers) / math.sqrt(max(into.get(bearer, 0), 1))
            called[bearer] = max(called.get(bearer, 0.0), weight)
    _share(found, called, at_least=1.0)
    total = sum(found.values())
    return {i: chance / total for i, chance in found.items()}


def rank(seeds: Mapping[UUID, float], links: Collection[Link], known: Mapping[UUID, int]) -> dict[UUID, float]:
    """How often a walk is at each object, in relation to where it is most; empty without seeds.

    Args: links: each once; known: edges into an object, where they were counted; the others have those that are given.
    Cost: linear in the edges, for each of 16 steps.
    """
    if not seeds:
        return {}
    met = Counter(link.target for link in links)
    into = {target: known.get(target, count) for target, count in met.items()}
    weights = {
        (link.source, link.target): math.log1p(max(link.mentions, 1)) / math.sqrt(max(into[link.target], 1))
        for link in links
    }
    nodes = list(dict.fromkeys([*seeds, *(end for pair in weights for end in pair)]))
    place = {node: number for number, node in enumerate(nodes)}
    start = np.array([seeds.get(node, 0.0) for node in nodes])
    one, other = (np.array([place[pair[side]] for pair in weights], dtype=np.intp) for side in (0, 1))
    here, there = np.concatenate([one, other]), np.concatenate([other, one])
    weight = np.tile(np.fromiter(weights.values(), dtype=np.float64, count=len(weights)), 2)
    chance = weight / np.bincount(here, weight, minlength=len(nodes))[here]
    at = start
    for _ in range(_STEPS):
        moved = np.bincount(there, at[here] * chance, minlength=len(nodes))
        # What has no edges begins again.
        at = (1 - DAMPING) * start + DAMPING * (moved + start * (1 - moved.sum()))
    return dict(zip(nodes, (at / at.max()).tolist(), strict=True))


def most_met(ranked: Mapping[UUID, float], done: Collection[UUID], limit: int) -> list[UUID]:
    """Whose edges to read next: the objects where a walk is most often, of those not read yet."""
    left = sorted((-chance, i) for i, chance in ranked.items() if i not in done)
    return [i for _, i in left[:limit]]


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


def _share(found: dict[UUID, float], weights: Mapping[UUID, float], at_least: float = 0.0) -> None:
    total = max(sum(weights.values()), at_least)
    for i, weight in weights.items():
        found[i] = found.get(i, 0.0) + weight / total
