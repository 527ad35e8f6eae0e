"""The leg of a search that walks: from the best hits and from who is named, over edges, to what belongs with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from isotherm.pipeline.brain import graph_rank, mentions
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_rank import EXPANDED, Neighborhood, Walked
from isotherm.pipeline.brain.promotion import Hit, Promoted, in_order
from isotherm.pipeline.fusion import Share
from isotherm.storage.postgres import brain_names, brain_walk
from isotherm.storage.postgres.brain_walk import Met
from isotherm.storage.postgres.pool import Connection

GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk to make: where, for which question, what it may find, and what age does to a score."""

    namespace_id: int
    query: str
    filters: Filters
    decay: Decay
    now: datetime


def walked(conn: Connection, wanted: Walk, found: Sequence[Promoted]) -> tuple[list[Promoted], Walked]:
    """Objects in a new order, with those that only the walk found; what it leads nowhere from is left as it was."""
    named = _named(conn, wanted)
    known = [str(each.id) for each in found]
    hits = [(i, each.score) for i, each in zip(known[: graph_rank.SEEDS], found, strict=False)]
    near, met, told = _met(conn, wanted.namespace_id, hits, named)
    if not (told.edges or named):
        return list(found), told
    chances = near.in_order(met)
    seen = set(known)
    unseen = [i for i in chances if i not in seen]
    # Filters may leave little of what is near, so then all of it is asked for.
    asked = unseen if wanted.filters.narrow else unseen[: graph_rank.FOUND]
    fresh = brain_walk.allowed(conn, wanted.namespace_id, wanted.filters, asked) if asked else []
    return _joined(wanted, dict(zip(known, found, strict=True)), chances, fresh), told


def _named(conn: Connection, wanted: Walk) -> dict[str, list[str]]:
    words = graph_rank.QUERY_WORDS
    runs = mentions.phrases(wanted.query, words)
    known = brain_names.by_name(conn, wanted.namespace_id, runs, graph_rank.NAMED) if runs else {}
    meant = graph_rank.longest_names(mentions.spoken(wanted.query)[:words], known)
    return {name: list(map(str, known[name])) for name in meant}


def _met(
    conn: Connection, namespace_id: int, hits: Sequence[tuple[str, float]], named: Mapping[str, Sequence[str]]
) -> tuple[Neighborhood, graph_rank.Floats, Walked]:
    """Read edges around hits and names, then around where a walk over these is most, and walk over all."""
    near = Neighborhood()
    bearers = {bearer for each in named.values() for bearer in each}
    first = [near.place(i) for i in dict.fromkeys([*sorted(bearers), *(i for i, _ in hits)])]
    truncated = _read(conn, namespace_id, near, first)
    telling = {
        name: rest for name, each in named.items() if (rest := [i for i in each if near.place(i) not in near.hubs])
    }
    seeds = graph_rank.seeds_of(hits, telling, {i: near.into[near.place(i)] for i in bearers})
    following = near.unread(near.met(seeds), EXPANDED + 1)
    truncated |= len(following) > EXPANDED
    truncated |= _read(conn, namespace_id, near, following[:EXPANDED])
    told = Walked(len(seeds), len(bearers), len(near.into), near.followed(), len(near.hubs), truncated)
    return near, near.met(seeds), told


def _read(conn: Connection, namespace_id: int, near: Neighborhood, places: Sequence[int]) -> bool:
    """Read the edges of more objects; whether some have more than are read."""
    if not places:
        return False
    truncated = False
    around = brain_walk.around(conn, namespace_id, near.named(places))
    for place, (coming, going) in zip(places, around, strict=True):
        near.add(place, coming, going)
        truncated |= len(going) > graph_rank.OUTGOING
    return truncated


def _joined(
    wanted: Walk, found: Mapping[str, Promoted], chances: Mapping[str, float], fresh: Sequence[Met]
) -> list[Promoted]:
    most = graph_rank.WEIGHT * max((each.score for each in found.values()), default=1.0)
    rank = dict(zip(chances, range(len(chances)), strict=True))

    def share(i: str, updated_at: datetime) -> Share | None:
        chance = chances.get(i)
        if chance is None:
            return None
        return Share(chance, rank[i], wanted.decay.apply(most * chance, updated_at, wanted.now))

    joined = [_raised(each, share(i, each.updated_at)) for i, each in found.items()]
    for i, object_id, updated_at in fresh:
        own = share(i, updated_at)
        if own is not None:
            hit = Hit(object_id, None, own.added, updated_at, {GRAPH: own})
            joined.append(Promoted(object_id, own.added, updated_at, hit))
    return in_order(joined)


def _raised(each: Promoted, own: Share | None) -> Promoted:
    if own is None:
        return each
    best, score = each.best, each.score + own.added
    raised = Hit(best.id, best.parent_id, score, best.updated_at, {**best.shares, GRAPH: own})
    return Promoted(each.id, score, each.updated_at, raised, each.evidence)
