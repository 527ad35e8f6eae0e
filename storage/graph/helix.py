"""The graph in HelixDB, with the extra `helix`: by URL, or embedded in the graph worker.

Every row that is answered names itself, every write is guarded by the revision inside its own transaction, and tenants are
partitions of the indexes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar
from uuid import UUID

from helixdb import dsl

from isotherm.pipeline.brain import drift
from isotherm.pipeline.brain.drift import Digest, Held, Holding
from isotherm.pipeline.brain.graph_port import (
    Budget,
    Counts,
    Direction,
    EdgeHit,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    Neighbor,
    NodeHit,
    Tombstone,
    Walked,
)
from isotherm.pipeline.brain.links import EdgeKey, fold_label
from isotherm.pipeline.brain.walk import walk_by_hops
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.graph.helix_client import HelixClient, retried
from isotherm.storage.graph.helix_rows import (
    GHOST,
    OBJECT,
    RELATION,
    changed,
    cleared,
    edge_fields,
    edge_key,
    edge_of,
    node_fields,
    node_key,
    query_tokens,
    vector_field,
)

_BATCH: Final = 200
_INDEX_WAIT_S: Final = 30.0
_INDEX_LOOK_S: Final = 0.05
# Steps read from one object at most, before they are put in order and cut.
_STEPS: Final = 10_000
_ORDER = {Direction.OUT: 0, Direction.IN: 1}
_Where = dsl.SourcePredicate
_INDEXES = (
    dsl.IndexSpec.node_unique_equality(OBJECT, "key"),
    dsl.IndexSpec.node_equality(OBJECT, "namespace_id"),
    dsl.IndexSpec.edge_equality(RELATION, "key"),
    dsl.IndexSpec.edge_equality(RELATION, "namespace_id"),
    dsl.IndexSpec.node_text(OBJECT, "terms", "namespace_id"),
    dsl.IndexSpec.edge_text(RELATION, "terms", "namespace_id"),
)

T = TypeVar("T")


class HelixGraph:
    """A `GraphPort` over a HelixDB; threads may share it."""

    def __init__(self, client: HelixClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._ready = False
        self._vectors: set[str] = set()

    @property
    def object_search(self) -> bool:
        """Whether its indexes are built."""
        return self._is_ready()

    @property
    def edge_search(self) -> bool:
        """Whether its indexes are built."""
        return self._is_ready()

    def bootstrap(self) -> None:
        """Build the indexes and wait until they serve; what is there already is left alone.

        Raises: RejectedError when an index is there with another definition; TransientError when HelixDB is away, or not
        done in time.
        """
        with self._lock:
            if not self._ready:
                self._ready = False
                self._build(_INDEXES)
                self._ready = True

    def close(self) -> None:
        """Let go of the engine."""
        self._client.close()
        self._ready = False

    def upsert(self, namespace: UUID, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Counts:
        """Write nodes and edges that are newer than what is there."""
        return self._write(namespace, nodes, edges)

    def remove(self, namespace: UUID, nodes: Sequence[Tombstone], edges: Sequence[EdgeTombstone] = ()) -> Counts:
        """Take out nodes and edges, unless something newer is there."""
        return self._write(namespace, nodes, edges)

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
        batch, names = dsl.read_batch(), []
        for number, seed in enumerate(seeds):
            for way in ways:
                names.append(f"{way.value}{number}")
                batch = batch.var_as(names[-1], _step(namespace, seed, way, wanted))
        rows = self._client.send(batch.returning(names))
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
        field, asked = self._vector_field(model, len(vector)), [float(x) for x in vector]
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
            gone = self._gone(namespace, {end for key in keys for end in (key.source, key.target)})
            hits = [
                EdgeHit(key, float(row["score"]))
                for key, row in zip(keys, rows, strict=True)
                if key.source not in gone and key.target not in gone
            ]
            if len(hits) >= limit or len(rows) < wanted:
                ordered = sorted(hits, key=lambda h: (-h.score, h.key.source.bytes, h.key.target.bytes, h.key.label))
                return ordered[:limit]
            wanted *= 4

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that is not gone."""
        held = self.held(namespace, range(drift.BUCKETS)).nodes
        return {key: each.revision for key, each in held.items() if not each.gone}

    def digest(self, namespace: UUID) -> Digest:
        """What is held, as one number for each bucket."""
        return drift.digest(self.held(namespace, range(drift.BUCKETS)))

    def held(self, namespace: UUID, buckets: Sequence[int]) -> Holding:
        """What is held of the objects and edges in these buckets."""
        self.bootstrap()
        chosen = dsl.Predicate.is_in("bucket", dsl.PropertyValue.i64_array(list(buckets)))
        mine = _Where.eq("namespace_id", str(namespace))
        nodes = dsl.g().n_with_label_where(OBJECT, mine).where(chosen).value_map(["object_id", "revision", "gone"])
        edges = dsl.g().e_with_label_where(RELATION, mine).where(chosen)
        batch = dsl.read_batch().var_as("n", nodes)
        batch = batch.var_as("e", edges.value_map(["source", "target", "label", "revision", "gone"]))
        rows = self._client.send(batch.returning(["n", "e"]))
        there = [row for row in rows["n"] if row["revision"] != GHOST]
        return Holding(
            {UUID(row["object_id"]): Held(int(row["revision"]), bool(row["gone"])) for row in there},
            {edge_of(row): Held(int(row["revision"]), bool(row["gone"])) for row in rows["e"]},
        )

    def discard(self, namespace: UUID, nodes: Sequence[UUID], edges: Sequence[EdgeKey]) -> None:
        """Forget objects and edges without a trace. The edges of an object stay, so its node keeps its place."""
        self.bootstrap()
        for some in _batches(edges):
            known = [row["$id"] for row in self._edges(namespace, some).values()]
            if known:
                drop = dsl.g().drop_edge_by_id(dsl.EdgeRef.ids(known))
                self._client.send(dsl.write_batch().var_as("e", drop).returning(["e"]))
        for each in _batches(nodes):
            there = self._nodes(namespace, each)
            batch, names = dsl.write_batch(), []
            for object_id in each:
                if (row := there.get(node_key(namespace, object_id))) is not None:
                    fields = node_fields(namespace, object_id)
                    step = dsl.g().n(dsl.NodeRef.id(row["$id"]))
                    for name in cleared(fields, json.loads(row["fields"])):
                        step = step.remove_property(name)
                    for name, value in fields.items():
                        step = step.set_property(name, value)
                    names.append(f"n{len(names)}")
                    batch = batch.var_as(names[-1], step)
            if names:
                self._client.send(batch.returning(names))

    def namespaces(self) -> list[UUID]:
        """Every namespace of which something is held."""
        self.bootstrap()
        count = dsl.g().n_with_label(OBJECT).group_count("namespace_id")
        rows = self._client.send(dsl.read_batch().var_as("n", count).returning(["n"]))["n"]
        return sorted(UUID(row["namespace_id"]) for row in rows)

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace, batch by batch; its edges go with its nodes."""
        self.bootstrap()
        mine = _Where.eq("namespace_id", str(namespace))
        some = dsl.g().n_with_label_where(OBJECT, mine).limit(_BATCH)
        look = dsl.read_batch().var_as("n", some.value_map(["$id"])).returning(["n"])
        drop = dsl.write_batch().var_as("n", some.drop()).returning(["n"])
        while self._client.send(look)["n"]:
            self._client.send(drop)

    def _write(
        self,
        namespace: UUID,
        nodes: Sequence[GraphNode | Tombstone],
        edges: Sequence[GraphEdge | EdgeTombstone],
    ) -> Counts:
        self.bootstrap()
        newest = list({node.id: node for node in sorted(nodes, key=lambda n: n.revision)}.values())
        latest = list({edge.key: edge for edge in sorted(edges, key=lambda e: e.revision)}.values())
        for node in newest:
            if isinstance(node, GraphNode) and node.vector is not None:
                self._vector_field(node.vector_model, len(node.vector))
        done_nodes = sum(retried(lambda some=some: self._write_nodes(namespace, some)) for some in _batches(newest))  # type: ignore[misc]
        done_edges = sum(retried(lambda some=some: self._write_edges(namespace, some)) for some in _batches(latest))  # type: ignore[misc]
        return Counts(done_nodes, done_edges)

    def _write_nodes(self, namespace: UUID, nodes: Sequence[GraphNode | Tombstone]) -> int:
        known = self._nodes(namespace, [node.id for node in nodes])
        batch, names = dsl.write_batch(), []
        for node in nodes:
            fields = node_fields(namespace, node)
            row = known.get(fields["key"])
            if row is None:
                step = dsl.g().add_n(OBJECT, fields)
            elif row["revision"] < node.revision:
                step = changed(
                    dsl.g().n(dsl.NodeRef.id(row["$id"])), fields, cleared(fields, json.loads(row["fields"]))
                )
            else:
                continue
            names.append(f"n{len(names)}")
            batch = batch.var_as(names[-1], step)
        return self._sent(batch, names)

    def _write_edges(self, namespace: UUID, edges: Sequence[GraphEdge | EdgeTombstone]) -> int:
        known = self._edges(namespace, [edge.key for edge in edges])
        missing = [edge for edge in edges if edge_key(namespace, edge.key) not in known]
        ends = self._ends(namespace, {end for edge in missing for end in (edge.key.source, edge.key.target)})
        batch, names = dsl.write_batch(), []
        for edge in edges:
            fields = edge_fields(namespace, edge)
            row = known.get(fields["key"])
            if row is None:
                source, target = ends[edge.key.source], ends[edge.key.target]
                # Writing to the node too makes two writers of one new edge collide, instead of both adding it.
                batch = batch.var_as(f"s{len(names)}", dsl.g().n(source).set_property("edges_at", time.time_ns()))
                step = dsl.g().n(source).add_e(RELATION, target, fields)
            elif row["revision"] < edge.revision:
                step = changed(dsl.g().e(dsl.EdgeRef.id(row["$id"])), fields, cleared(fields))
            else:
                continue
            names.append(f"e{len(names)}")
            batch = batch.var_as(names[-1], step)
        return self._sent(batch, names)

    def _sent(self, batch: dsl.WriteBatch, names: Sequence[str]) -> int:
        """Send a write; how many of its parts changed something, the others found something newer."""
        if not names:
            return 0
        rows = self._client.send(batch.returning(names))
        return sum(bool(rows[name]) for name in names)

    def _nodes(self, namespace: UUID, ids: Iterable[UUID]) -> dict[str, Mapping[str, Any]]:
        keys = dsl.PropertyValue.string_array([node_key(namespace, each) for each in ids])
        step = dsl.g().n_with_label_where(OBJECT, _Where.is_in("key", keys))
        return self._by_key(step.value_map(["$id", "key", "revision", "gone", "fields"]))

    def _edges(self, namespace: UUID, found: Iterable[EdgeKey]) -> dict[str, Mapping[str, Any]]:
        keys = dsl.PropertyValue.string_array([edge_key(namespace, each) for each in found])
        step = dsl.g().e_with_label_where(RELATION, _Where.is_in("key", keys))
        return self._by_key(step.value_map(["$id", "key", "revision"]))

    def _by_key(self, step: dsl.Traversal) -> dict[str, Mapping[str, Any]]:
        rows = self._client.send(dsl.read_batch().var_as("r", step).returning(["r"]))["r"]
        return {row["key"]: row for row in rows}

    def _ends(self, namespace: UUID, ids: set[UUID]) -> dict[UUID, dsl.NodeRef]:
        """The nodes of objects; one that is not there yet is held a place for."""
        known = self._nodes(namespace, ids) if ids else {}
        new = sorted(each for each in ids if node_key(namespace, each) not in known)
        if new:
            batch = dsl.write_batch()
            for number, each in enumerate(new):
                batch = batch.var_as(f"n{number}", dsl.g().add_n(OBJECT, node_fields(namespace, each)))
            self._client.send(batch.returning(["n0"]))
            known |= self._nodes(namespace, new)
        return {each: dsl.NodeRef.id(known[node_key(namespace, each)]["$id"]) for each in ids}

    def _gone(self, namespace: UUID, ids: set[UUID]) -> set[UUID]:
        known = self._nodes(namespace, ids) if ids else {}
        return {each for each in ids if (row := known.get(node_key(namespace, each))) is not None and row["gone"]}

    def _hits(self, search: dsl.Traversal, score: str, alias: str) -> list[Mapping[str, Any]]:
        shown = [dsl.PropertyProjection.new("object_id"), dsl.PropertyProjection.renamed(score, alias)]
        rows: list[Mapping[str, Any]] = self._client.send(
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
        rows: list[Mapping[str, Any]] = self._client.send(dsl.read_batch().var_as("h", search).returning(["h"]))["h"]
        return rows

    def _is_ready(self) -> bool:
        try:
            self.bootstrap()
        except (UnavailableError, RejectedError):
            return False
        return True

    def _vector_field(self, model: str, dimension: int) -> str:
        """The property of a model's vectors, with its index."""
        field = vector_field(model, dimension)
        with self._lock:
            if field not in self._vectors:
                metric = dsl.VectorDistanceMetric.COSINE
                # Not by tenant: the engine fails to drop a node without a vector from a tenant that has none. Searches
                # start from the tenant's nodes instead.
                self._build([dsl.IndexSpec.node_vector(OBJECT, field, dimension, metric)])
                self._vectors.add(field)
        return field

    def _build(self, indexes: Iterable[dsl.IndexSpec]) -> None:
        """Indexes are built in the background: each is asked for, then waited for."""
        deadline, waiting = time.monotonic() + _INDEX_WAIT_S, list[str]()
        for spec in indexes:
            made = dsl.write_batch().var_as("i", dsl.g().create_index_if_not_exists(spec)).returning(["i"])
            receipt = retried(lambda made=made: self._client.send(made))["i"]  # type: ignore[misc]
            if receipt.get("kind") != "already_active":
                waiting.append(receipt["operation_id"])
        for operation in waiting:
            look = dsl.read_batch().var_as("s", dsl.g().get_index_operation(operation)).returning(["s"])
            while (state := self._client.send(look)["s"]["status"]) != "succeeded":
                if state == "aborted" or time.monotonic() > deadline:
                    raise UnavailableError(f"HelixDB: an index is {state}")
                time.sleep(_INDEX_LOOK_S)


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


def _batches(found: Iterable[T], size: int = _BATCH) -> Iterator[list[T]]:
    left = iter(found)
    while batch := list(islice(left, size)):
        yield batch
