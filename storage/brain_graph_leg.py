"""The leg of a search that walks: from the best hits and from who is named, over edges, to what belongs with them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from isotherm.pipeline.brain import graph_rank, mentions
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_rank import EXPANDED, Neighborhood, Walked, Way, Ways
from isotherm.pipeline.brain.promotion import Hit, Promoted, in_order
from isotherm.pipeline.fusion import Share
from isotherm.storage.postgres import brain_walk
from isotherm.storage.postgres.brain_walk import Around
from isotherm.storage.postgres.pool import Connection

GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk to make: where, for which question, what it may find, and what age does to a score.

    Args: most: objects that are looked at again, None for all; what comes after those is not asked for.
    """

    namespace_id: int
    query: str
    filters: Filters
    decay: Decay
    now: datetime
    most: int | None = None

    def share(self, way: Way, best: float, updated_at: datetime) -> Share:
        """What the walk adds to an object. Args: best: score of any; updated_at: of the object."""
        added = self.decay.apply(graph_rank.WEIGHT * best * way.chance, updated_at, self.now)
        return Share(way.chance, way.rank, added)


def walked(conn: Connection, wanted: Walk, found: Sequence[Promoted]) -> tuple[list[Promoted], Walked]:
    """Objects in a new order, with those that only the walk found; what it leads nowhere from is left as it was."""
    known = [str(each.id) for each in found]
    hits = [(i, each.score) for i, each in zip(known[: graph_rank.SEEDS], found, strict=False)]
    near, met, told = _met(conn, wanted, hits)
    if not (told.edges or told.named):
        return list(found), told
    ways = near.ways(met)
    best = max((each.score for each in found), default=1.0)
    joined = [
        each if (way := ways.to(i)) is None else _raised(each, wanted.share(way, best, each.updated_at))
        for i, each in zip(known, found, strict=True)
    ]
    least = _least(joined, wanted.most) / (graph_rank.WEIGHT * best) if best > 0 else 0.0
    asked = _unseen(wanted, ways, set(known), least)
    fresh = brain_walk.allowed(conn, wanted.namespace_id, wanted.filters, list(asked)) if asked else []
    for i, object_id, updated_at in fresh:
        own = wanted.share(asked[i], best, updated_at)
        hit = Hit(object_id, None, own.added, updated_at, {GRAPH: own})
        joined.append(Promoted(object_id, own.added, updated_at, hit))
    return in_order(joined), told


def _least(joined: Sequence[Promoted], most: int | None) -> float:
    """The score below which nothing is looked at again."""
    if most is None or len(joined) < most:
        return 0.0
    return sorted((each.score for each in joined), reverse=True)[most - 1]


def _unseen(wanted: Walk, ways: Ways, known: Container[str], least: float) -> dict[str, Way]:
    """Objects that only the walk met and that may be answered, as age takes from a score and never adds to one."""
    # Filters may leave little of what is near, so then all of it is asked for.
    most = None if wanted.filters.narrow else graph_rank.FOUND
    unseen = islice((i for i in ways.likely(least) if i not in known), most)
    return {i: way for i in unseen if (way := ways.to(i)) is not None}


def _met(
    conn: Connection, wanted: Walk, hits: Sequence[tuple[str, float]]
) -> tuple[Neighborhood, graph_rank.Floats, Walked]:
    """Read edges around hits and names, then around where a walk over these is most, and walk over all."""
    near = Neighborhood()
    runs = mentions.phrases(wanted.query, graph_rank.QUERY_WORDS)
    first = [i for i, _ in hits]
    around = brain_walk.around(conn, wanted.namespace_id, first, names=runs, most=graph_rank.NAMED)
    named = _meant(wanted.query, around)
    bearers = {bearer for each in named.values() for bearer in each}
    truncated = _add(near, around, dict.fromkeys([*sorted(bearers), *first]))
    telling = {
        name: rest for name, each in named.items() if (rest := [i for i in each if near.place(i) not in near.hubs])
    }
    seeds = graph_rank.seeds_of(hits, telling, {i: near.into[near.place(i)] for i in bearers})
    following = near.unread(near.met(seeds), EXPANDED + 1)
    truncated |= len(following) > EXPANDED
    if following:
        following = following[:EXPANDED]
        truncated |= _add(near, brain_walk.around(conn, wanted.namespace_id, following), following)
    told = Walked(len(seeds), len(bearers), len(near.into), near.followed(), len(near.hubs), truncated)
    return near, near.met(seeds), told


def _meant(query: str, around: Mapping[str, Around]) -> dict[str, list[str]]:
    """Who bears the names that a question means, by name; names that too many bear are left out."""
    known: dict[str, list[str]] = {}
    for i, each in around.items():
        for name in each.names:
            known.setdefault(name, []).append(i)
    known = {name: bearers for name, bearers in known.items() if len(bearers) <= mentions.BEARERS}
    meant = graph_rank.longest_names(mentions.spoken(query)[: graph_rank.QUERY_WORDS], known)
    return {name: sorted(known[name]) for name in meant}


def _add(near: Neighborhood, around: Mapping[str, Around], ids: Iterable[str]) -> bool:
    """Add the edges of more objects; whether some have more than are read."""
    truncated = False
    for place, i in [(near.place(i), i) for i in ids]:
        near.add(place, around[i].coming, around[i].going)
        truncated |= len(around[i].going) > graph_rank.OUTGOING
    return truncated


def _raised(each: Promoted, own: Share) -> Promoted:
    best, score = each.best, each.score + own.added
    raised = Hit(best.id, best.parent_id, score, best.updated_at, {**best.shares, GRAPH: own})
    return Promoted(each.id, score, each.updated_at, raised, each.evidence)
