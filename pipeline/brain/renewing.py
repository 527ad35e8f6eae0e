"""Newest wins among objects: edges that say which of two is the current one, and statements that renew an older one.

The rule for statements is that of recall (`isotherm.pipeline.tier.newest`): the later one of two that are about one thing, when
it says that something is new. It needs to be known when each was so (`source_time`); objects without are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain.links import fold_label
from isotherm.pipeline.tier import newest
from isotherm.pipeline.tier.newest import Pair
from isotherm.pipeline.tier.ranking import lexical_overlap

FROM_NEWER: Final = frozenset({"supersedes", "replaces", "updates"})
FROM_OLDER: Final = frozenset({"superseded_by", "replaced_by", "sequel"})
# Of two that contradict each other the later one counts.
EITHER: Final = frozenset({"contradicts"})
# The best that are compared with each other, as far as they are rated like the best one, and characters of each.
LOOKED_AT: Final = 10
LOOKED_CHARS: Final = 2_000
# Objects have no speaker whose later word counts more, so both their vectors and the sentences in question must be alike.
SAME_COSINE: Final = newest.SAME_COSINE
_SAME_WORDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Said:
    """What is read of an object that was found.

    Args: at: when it was so, None when nobody said; since: when it was last changed, or was so; kind: statements of one
        kind are compared; text: of the row that was found, its beginning.
    """

    id: UUID
    at: datetime | None
    since: datetime
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class EdgeFound:
    """A live edge of one of the kinds above."""

    source: UUID
    target: UUID
    label: str


def successors(edges: Iterable[EdgeFound], since: Mapping[UUID, datetime]) -> dict[UUID, set[UUID]]:
    """By older object the newer ones, as edges say. Args: since: of both ends of a contradiction, else it says nothing."""
    found: dict[UUID, set[UUID]] = {}
    for edge in edges:
        label, ends = fold_label(edge.label), (edge.source, edge.target)
        if label in EITHER:
            if not since.keys() >= set(ends) or since[edge.source] == since[edge.target]:
                continue
            older, newer = sorted(ends, key=lambda end: since[end])
        else:
            newer, older = ends if label in FROM_NEWER else ends[::-1]
        found.setdefault(older, set()).add(newer)
    return found


def latest(found: Mapping[UUID, set[UUID]]) -> list[tuple[UUID, UUID]]:
    """Pairs of each older object with every newer one that edges lead to, over several steps; none around a circle."""
    pairs = []
    for older in sorted(found):
        met, waiting = {older}, [older]
        while waiting:
            for newer in sorted(found.get(waiting.pop(), ())):
                if newer not in met:
                    met.add(newer)
                    waiting.append(newer)
        pairs += [(older, newer) for newer in sorted(met - {older})]
    known = set(pairs)
    return [(older, newer) for older, newer in pairs if (newer, older) not in known]


def statements(query: str, said: Sequence[Said]) -> list[newest.Statement]:
    """What texts say about a query, by their place; none when no later one says that something is new."""
    dated = [(place, one) for place, one in enumerate(said) if one.at is not None]
    news = [place for place, one in dated if newest.may_renew(one.text)]
    if len(dated) <= 1 or not news or not newest.asks_for_the_present(query):
        return []
    weights, hints = dict.fromkeys(text.terms(query), 1.0), newest.hints_of(query)
    first = [newest.statement_of(p, (said[p].since, ""), said[p].kind, said[p].text, weights, hints) for p in news]
    if not any(one.renews for one in first):
        return []
    rest = [(place, one) for place, one in dated if place not in set(news)]
    return first + [newest.statement_of(p, (one.since, ""), one.kind, one.text, weights, hints) for p, one in rest]


def alike(found: Sequence[newest.Statement], pairs: Iterable[Pair], cosines: Mapping[Pair, float]) -> list[Pair]:
    """Those pairs that are about one thing. Args: cosines: of the rows' vectors, as far as both have one."""
    words = {one.key: one.words for one in found}
    return [
        pair
        for pair in pairs
        if cosines.get(pair, 1.0) >= SAME_COSINE and lexical_overlap(words[pair[0]], words[pair[1]]) >= _SAME_WORDS
    ]
