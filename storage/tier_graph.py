"""A walk from what a recall found: over names that records share with the agent's knowledge, and over what was learned.

Asked for per call. Five statements at most, each within limits; two when no name stands in the query or its best hits and
nothing was learned from these, and then the order stays exactly what it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from isotherm.pipeline import text
from isotherm.pipeline.brain import graph_rank, mentions
from isotherm.pipeline.brain.graph_rank import EXPANDED, Neighborhood, Walked
from isotherm.pipeline.tier import graph_leg
from isotherm.pipeline.tier.graph_leg import DAMPING
from isotherm.pipeline.tier.ranking import Candidate, Scored
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.storage.postgres import tier_walk
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_recall import Row
from isotherm.storage.postgres.tier_walk import Edge, Naming

# Words of the best hits in which names are looked for; a longer text is a document of its own.
_TERMS: Final = 512

Rows = Callable[[Sequence[int]], Mapping[int, Row]]
Ends = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk to make.

    Args: rows: reads records of the scope by row key, each once; tiers: what may be found.
    """

    scope: Scope
    query: str
    weights: RecallWeights
    now: datetime
    tiers: Sequence[Tier]
    rows: Rows


def walked(conn: Connection, wanted: Walk, ranked: Sequence[Scored]) -> tuple[list[Scored], Walked]:
    """Records in a new order, with those that only the walk found."""
    hits = graph_leg.seeds(ranked, graph_rank.SEEDS)
    seen = dict(wanted.rows([item.candidate.key for item in hits]))
    graph = _Graph.around(conn, wanted, seen)
    if graph.is_empty:
        return list(ranked), Walked(seeds=len(hits))
    graph.read(conn)
    best = [(_record(item.candidate.key), item.parts.semantic) for item in hits if item.candidate.key in seen]
    near, seeds = graph.neighborhood(best)
    likely = [key for i in near.in_order(near.met(seeds, DAMPING)) if (key := _key(i)) is not None and key not in seen]
    seen |= wanted.rows(likely[:EXPANDED])
    graph.settle(seen)
    near, seeds = graph.neighborhood(best)
    chances = {
        key: c
        for i, c in near.in_order(near.met(seeds, DAMPING)).items()
        if (key := _key(i)) is not None and key in seen
    }
    told = Walked(len(seeds), len(graph.meant), len(near.into), near.followed(), len(near.hubs), len(likely) > EXPANDED)
    if not told.edges:
        return list(ranked), told
    known = {item.candidate.key for item in ranked}
    further = [(key, seen[key]) for key in chances if key not in known]
    found = [_candidate(key, row) for key, row in further if Tier.from_rank(row.tier) in wanted.tiers]
    return graph_leg.joined(ranked, found, chances, wanted.weights, wanted.now), told


@dataclass(slots=True)
class _Graph:
    """What was read around the hits.

    Args: meant: bearers of each name in the query; bearers: of each name that may stand in a hit; learned: records by
        point; objects: edges between objects; naming: records that may have a name; texts: how often each name stands in
        records whose text was read.
    """

    scope: Scope
    meant: dict[str, list[str]]
    bearers: dict[str, list[str]]
    learned: dict[str, list[int]]
    objects: list[Edge] = field(default_factory=list)
    naming: list[Naming] = field(default_factory=list)
    texts: dict[int, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def around(cls, conn: Connection, wanted: Walk, seen: Mapping[int, Row]) -> _Graph:
        """Ask for the names in the query and in the hits, and for what was learned from these."""
        terms = [term for said in (wanted.query, *(r.text for r in seen.values())) for term in text.terms(said)]
        known = tier_walk.names(conn, wanted.scope, list(dict.fromkeys(terms))[:_TERMS]) if terms else {}
        known = {name: each for name, each in known.items() if len(each) <= mentions.BEARERS}
        meant = graph_rank.longest_names(mentions.spoken(wanted.query)[: graph_rank.QUERY_WORDS], known)
        learned = tier_walk.learned(conn, wanted.scope, list(seen)) if seen else {}
        lexicon = mentions.Lexicon(known)
        texts: dict[int, Mapping[str, int]] = {key: lexicon.mentioned(record.text) for key, record in seen.items()}
        named = {name for counts in texts.values() for name in counts} | set(meant)
        return cls(wanted.scope, {n: known[n] for n in meant}, {n: known[n] for n in named}, learned, texts=texts)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to walk over."""
        return not (self.bearers or self.learned)

    def read(self, conn: Connection) -> None:
        """Read the edges of the objects that are named, and the records that name them or what they lead to."""
        named = sorted({i for each in self.bearers.values() for i in each})[:EXPANDED]
        if named:
            self.objects = tier_walk.around(conn, self.scope, named)
            peers = dict.fromkeys([*named, *(edge.peer for edge in self.objects)])
            self.naming = tier_walk.naming(conn, self.scope, list(peers)[: 2 * EXPANDED])
            for one in self.naming:
                bearers = self.bearers.setdefault(one.name, [])
                if one.object_id not in bearers:
                    bearers.append(one.object_id)

    def settle(self, seen: Mapping[int, Row]) -> None:
        """Replace what the words of these records let expect by what their texts say."""
        lexicon = mentions.Lexicon(self.bearers)
        self.texts = {key: lexicon.mentioned(record.text) for key, record in seen.items()}

    def neighborhood(self, best: Sequence[tuple[str, float]]) -> tuple[Neighborhood, dict[str, float]]:
        """The graph as far as it is known, and where to begin. Args: best: hits with their likeness, best first."""
        near = Neighborhood()
        coming: dict[str, Ends] = defaultdict(list)
        going: dict[str, Ends] = defaultdict(list)
        for edge in self.objects:
            (coming if edge.is_incoming else going)[edge.own].append((edge.peer, edge.mentions))
        for record, counts in self._mentions().items():
            for object_id, count in counts.items():
                coming[object_id].append((_record(record), count))
        for point, keys in self.learned.items():
            coming[f"p:{point}"] = [(_record(key), 1) for key in keys]
        for own in {*coming, *going}:
            near.add(near.place(own), list(dict.fromkeys(coming[own])), going[own])
        for bearers in self.meant.values():
            for bearer in bearers:
                near.into.setdefault(near.place(bearer), 0)
        telling = {
            n: rest for n, each in self.meant.items() if (rest := [i for i in each if near.place(i) not in near.hubs])
        }
        into = {i: near.into[near.place(i)] for each in self.meant.values() for i in each}
        return near, graph_rank.seeds_of(best, telling, into)

    def _mentions(self) -> dict[int, dict[str, int]]:
        """How often each record names each object: as its text says where that was read, else as its words let expect."""
        found: dict[int, dict[str, int]] = defaultdict(dict)
        for one in self.naming:
            if one.key not in self.texts:
                found[one.key][one.object_id] = 1
        for key, counts in self.texts.items():
            for name, count in counts.items():
                for bearer in self.bearers.get(name, ()):
                    found[key][bearer] = max(count, found[key].get(bearer, 0))
        return found


def _candidate(key: int, row: Row) -> Candidate:
    """A record that only a walk found: it has no word of the query, and its vector was not compared."""
    return Candidate(key, row.id, Tier.from_rank(row.tier), row.created_at, row.importance)


def _record(key: int) -> str:
    return f"r:{key}"


def _key(node: str) -> int | None:
    return int(node[2:]) if node.startswith("r:") else None
