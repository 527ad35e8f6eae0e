"""Reads of HelixDB: steps from objects, objects by words and by vector, edges by the words of their notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from helixdb import dsl

from isotherm.pipeline.brain.graph_port import Budget, Direction, EdgeHit, Neighbor, NodeHit, Walked
from isotherm.pipeline.brain.links import fold_label
from isotherm.pipeline.brain.walk import walk_by_hops
from isotherm.storage.graph.helix_base import HelixBase
from isotherm.storage.graph.helix_rows import OBJECT, RELATION, edge_of, node_key, query_tokens

# Steps read from one object at most, before they are put in order and cut.
_STEPS: Final = 10_000
_ORDER = {Direction.OUT: 0, Direction.IN: 1}
_Where = dsl.SourcePredicate


class HelixSearches(HelixBase):
    """The reads of a graph in HelixDB."""

    def neighbors(
        self,
        namespace: UUID,
        ids: Sequence[UUID],
        labels: Sequence[str] | None = None,
        direction: Direction = Direction.BOTH,
        limit: int = 50,
    ) -> list[Neighbor]:
        """One step from each of the objects, in one request."""
        self.bootstrap()
        wanted = None if labels is None else list(dict.fromkeys(map(fold_label, labels)))
        seeds = list(dict.fromkeys(ids))
        if wanted == [] or limit <= 0 or not seeds:
            return []
        ways = [way for way in (Direction.OUT, Direction.IN) if direction in {Direction.BOTH, way}]
        batch, names = dsl.read_batch(), list[str]()
        for number, seed in enumerate(seeds):
            for way in ways:
                names.append(f"{way.value}{number}")
                batch = batch.var_as(names[-1], _step(namespace, seed, way, wanted))
        rows = self.client.send(batch.returning(names))
        found = []
        for number, seed in enumerate(seeds):
            steps = [_neighbor(seed, way, row) for way in ways for row in rows[f"{way.value}{number}"]]
            found += sorted(steps, key=lambda step: _place(wanted, step))[:limit]
        return found

    def walk(
        self,
        namespace: UUID,
        seeds: Sequence[UUID],
        labels: Sequence[str] | None,
        direction: Direction,
        budget: Budget,
    ) -> Walked:
        """Steps from the seeds, and from where they lead, in one request for each hop."""

        def ask(ids: Sequence[UUID], limit: int) -> list[Neighbor]:
            return self.neighbors(namespace, ids, labels, direction, limit)

        return walk_by_hops(ask, seeds, budget)

    def search_text(self, namespace: UUID, query: str, limit: int, kinds: Sequence[str] | None = None) -> list[NodeHit]:
        """Objects with words of the query, by the engine's own BM25."""
        self.bootstrap()
        tokens = query_tokens(query)
        if not tokens or limit <= 0 or kinds == []:
            return []
        if kinds is None:
            search = dsl.g().text_search_nodes(OBJECT, "terms", tokens, limit, str(namespace))
        else:
            search = _live(namespace, kinds).text_search(OBJECT, "terms", tokens, limit, str(namespace))
        hits = [NodeHit(UUID(row["object_id"]), float(row["score"])) for row in self._hits(search, "$score", "score")]
        return sorted(hits, key=lambda hit: (-hit.score, hit.id.bytes))

    def search_vector(
        self, namespace: UUID, vector: Sequence[float], model: str, limit: int, kinds: Sequence[str] | None = None
    ) -> list[NodeHit]:
        """Objects whose vector of the same model is near."""
        self.bootstrap()
        if limit <= 0 or kinds == [] or not any(vector):
            return []
        field, asked = self.vector_field(model, len(vector)), [float(x) for x in vector]
        search = _live(namespace, kinds).vector_search(OBJECT, field, asked, limit)
        # The engine's distance goes from 0 to 1 as the cosine goes from 1 to -1.
        rows = [
            (UUID(row["object_id"]), 1 - 2 * float(row["distance"]))
            for row in self._hits(search, "$distance", "distance")
        ]
        hits = [NodeHit(key, score) for key, score in rows if score > 0]
        return sorted(hits, key=lambda hit: (-hit.score, hit.id.bytes))

    def search_edges(self, namespace: UUID, label: str, query: str, limit: int) -> list[EdgeHit]:
        """Edges of a label whose note has words of the query; more are asked for until enough have both ends."""
        self.bootstrap()
        tokens = query_tokens(query)
        if not tokens or limit <= 0:
            return []
        wanted = limit
        while True:
            rows = self._notes(namespace, label, tokens, wanted)
            keys = [edge_of(row) for row in rows]
            gone = self.gone(namespace, {end for key in keys for end in (key.source, key.target)})
            hits = [
                EdgeHit(key, float(row["score"]))
                for key, row in zip(keys, rows, strict=True)
                if key.source not in gone and key.target not in gone
            ]
            if len(hits) >= limit or len(rows) < wanted:
                ordered = sorted(hits, key=lambda h: (-h.score, h.key.source.bytes, h.key.target.bytes, h.key.label))
                return ordered[:limit]
            wanted *= 4

    def _hits(self, search: dsl.Traversal, score: str, alias: str) -> list[Mapping[str, Any]]:
        shown = [dsl.PropertyProjection.new("object_id"), dsl.PropertyProjection.renamed(score, alias)]
        rows: list[Mapping[str, Any]] = self.client.send(
            dsl.read_batch().var_as("h", search.project(shown)).returning(["h"])
        )["h"]
        return rows

    def _notes(self, namespace: UUID, label: str, tokens: str, limit: int) -> list[Mapping[str, Any]]:
        mine = dsl.g().e_with_label_where(RELATION, _Where.eq("namespace_id", str(namespace)))
        live = mine.where(
            dsl.Predicate.and_([dsl.Predicate.eq("folded", fold_label(label)), dsl.Predicate.eq("gone", False)])
        )
        shown = [dsl.PropertyProjection.new(name) for name in ("source", "target", "label")]
        search = live.text_search(RELATION, "terms", tokens, limit, str(namespace)).project(
            [*shown, dsl.PropertyProjection.renamed("$score", "score")]
        )
        rows: list[Mapping[str, Any]] = self.client.send(dsl.read_batch().var_as("h", search).returning(["h"]))["h"]
        return rows


def _live(namespace: UUID, kinds: Sequence[str] | None) -> dsl.Traversal:
    step = dsl.g().n_with_label_where(OBJECT, _Where.eq("namespace_id", str(namespace)))
    return (
        step if kinds is None else step.where(dsl.Predicate.is_in("kind", dsl.PropertyValue.string_array(list(kinds))))
    )


def _step(namespace: UUID, seed: UUID, way: Direction, wanted: list[str] | None) -> dsl.Traversal:
    """Live edges of a live object to live objects, each row with the edge it tells of."""
    here = dsl.Predicate.eq("gone", False)
    tests = [here]
    if wanted is not None:
        tests.append(dsl.Predicate.is_in("folded", dsl.PropertyValue.string_array(wanted)))
    start = dsl.g().n_with_label_where(OBJECT, _Where.eq("key", node_key(namespace, seed))).where(here)
    edges = start.out_e(RELATION) if way is Direction.OUT else start.in_e(RELATION)
    edges = edges.where(dsl.Predicate.and_(tests)).bind("e")
    peers = edges.out_n() if way is Direction.OUT else edges.in_n()  # the end that the edge goes out to, or comes from
    shown = [dsl.BindingProjection.binding("e", name, name) for name in ("source", "target", "label")]
    return peers.where(here).limit(_STEPS).project_bindings(shown)


def _neighbor(seed: UUID, way: Direction, row: Mapping[str, Any]) -> Neighbor:
    key = edge_of(row)
    return Neighbor(seed, key.target if way is Direction.OUT else key.source, key.label, way, key)


def _place(wanted: list[str] | None, step: Neighbor) -> tuple[int, str, int, bytes, str]:
    folded = fold_label(step.label)
    asked = 0 if wanted is None else wanted.index(folded)
    return asked, folded, _ORDER[step.direction], step.peer.bytes, step.label
