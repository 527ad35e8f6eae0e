"""The leg of a search that walks: from the best hits and from who is named, over edges, to what belongs with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

from isotherm.pipeline.brain import graph_rank, mentions
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_rank import Link, Walked
from isotherm.pipeline.brain.promotion import Hit, Promoted
from isotherm.pipeline.fusion import Share
from isotherm.storage.postgres import brain_names, brain_walk
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
    read = _Edges(conn, wanted.namespace_id)
    bearers = {i for each in named.values() for i in each}
    hits = [(each.id, each.score) for each in found]
    read.around(list(dict.fromkeys([*bearers, *(i for i, _ in hits[: graph_rank.SEEDS])])))
    telling = {name: [i for i in each if i not in read.hubs] for name, each in named.items()}
    seeds = graph_rank.seeds_of(hits, {name: each for name, each in telling.items() if each}, read.into)
    ranked = read.ranked(seeds)
    following = graph_rank.most_met(ranked, read.into, graph_rank.EXPANDED + 1)
    read.around(following[: graph_rank.EXPANDED])
    ranked = read.ranked(seeds)
    left = len(following) > graph_rank.EXPANDED
    told = Walked(len(seeds), len(bearers), len(read.into), len(read.links), len(read.hubs), read.truncated or left)
    if not ranked or not (told.edges or named):
        return list(found), told
    unseen = sorted(ranked.keys() - {each.id for each in found})
    times = brain_walk.allowed(conn, wanted.namespace_id, wanted.filters, unseen) if unseen else {}
    return _joined(wanted, found, ranked, times), told


class _Edges:
    """The neighborhood as far as it was read."""

    def __init__(self, conn: Connection, namespace_id: int) -> None:
        self._conn, self._namespace_id = conn, namespace_id
        self.links: dict[tuple[UUID, UUID], Link] = {}
        self.into: dict[UUID, int] = {}
        self.hubs: set[UUID] = set()
        self.truncated = False

    def around(self, ids: Sequence[UUID]) -> None:
        """Read the edges of more objects."""
        if not ids:
            return
        more = brain_walk.around(self._conn, self._namespace_id, ids)
        self.into |= more.into
        self.hubs |= more.hubs
        self.truncated |= more.truncated
        links = self.links | {(link.source, link.target): link for link in more.links}
        self.links = {pair: link for pair, link in links.items() if link.target not in self.hubs}

    def ranked(self, seeds: Mapping[UUID, float]) -> dict[UUID, float]:
        """Where walks from these seeds are, over what was read."""
        return graph_rank.rank(seeds, list(self.links.values()), self.into)


def _named(conn: Connection, wanted: Walk) -> Mapping[str, Sequence[UUID]]:
    words = graph_rank.QUERY_WORDS
    runs = mentions.phrases(wanted.query, words)
    known = brain_names.by_name(conn, wanted.namespace_id, runs, graph_rank.NAMED) if runs else {}
    meant = graph_rank.longest_names(mentions.spoken(wanted.query)[:words], known)
    return {name: known[name] for name in meant}


def _joined(
    wanted: Walk, found: Sequence[Promoted], ranked: Mapping[UUID, float], times: Mapping[UUID, datetime]
) -> list[Promoted]:
    most = graph_rank.WEIGHT * max((each.score for each in found), default=1.0)
    places = {i: place for place, (i, _) in enumerate(sorted(ranked.items(), key=lambda each: (-each[1], each[0])))}

    def share(i: UUID, updated_at: datetime) -> Share:
        return Share(ranked[i], places[i], wanted.decay.apply(most * ranked[i], updated_at, wanted.now))

    joined = [_raised(each, share(each.id, each.updated_at)) if each.id in ranked else each for each in found]
    for i, updated_at in times.items():
        own = share(i, updated_at)
        hit = Hit(i, None, own.added, updated_at, MappingProxyType({GRAPH: own}))
        joined.append(Promoted(i, own.added, updated_at, hit))
    return sorted(joined, key=lambda each: (-each.score, -each.updated_at.timestamp(), each.id.bytes))


def _raised(each: Promoted, own: Share) -> Promoted:
    score = each.score + own.added
    return replace(each, score=score, best=replace(each.best, score=score, shares={**each.best.shares, GRAPH: own}))
