"""The graph in HelixDB, with the extra `helix`: by URL, or embedded in the graph worker.

Every row that is answered names itself, every write is guarded by the revision inside its own transaction, and tenants are
partitions of the indexes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

from helixdb import dsl

from isotherm.pipeline.brain import drift
from isotherm.pipeline.brain.drift import Digest, Held, Holding
from isotherm.pipeline.brain.graph_port import (
    Counts,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    Tombstone,
)
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.storage.graph.helix_client import retried
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
)
from isotherm.storage.graph.helix_search import HelixSearches

_BATCH: Final = 200
_Where = dsl.SourcePredicate

T = TypeVar("T")


class HelixGraph(HelixSearches):
    """A `GraphPort` over a HelixDB; threads may share it."""

    def upsert(self, namespace: UUID, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Counts:
        """Write nodes and edges that are newer than what is there."""
        return self._write(namespace, nodes, edges)

    def remove(self, namespace: UUID, nodes: Sequence[Tombstone], edges: Sequence[EdgeTombstone] = ()) -> Counts:
        """Take out nodes and edges, unless something newer is there."""
        return self._write(namespace, nodes, edges)

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
        rows = self.client.send(batch.returning(["n", "e"]))
        there = [row for row in rows["n"] if row["revision"] != GHOST]
        return Holding(
            {UUID(row["object_id"]): Held(int(row["revision"]), bool(row["gone"])) for row in there},
            {edge_of(row): Held(int(row["revision"]), bool(row["gone"])) for row in rows["e"]},
        )

    def discard(self, namespace: UUID, nodes: Sequence[UUID], edges: Sequence[EdgeKey]) -> None:
        """Forget objects and edges without a trace. The edges of an object stay, so its node keeps its place."""
        self.bootstrap()
        for some in _batches(edges):
            known = [row["$id"] for row in self.edges(namespace, some).values()]
            if known:
                drop = dsl.g().drop_edge_by_id(dsl.EdgeRef.ids(known))
                self.client.send(dsl.write_batch().var_as("e", drop).returning(["e"]))
        for each in _batches(nodes):
            there = self.nodes(namespace, each)
            batch, names = dsl.write_batch(), list[str]()
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
                self.client.send(batch.returning(names))

    def namespaces(self) -> list[UUID]:
        """Every namespace of which something is held."""
        self.bootstrap()
        count = dsl.g().n_with_label(OBJECT).group_count("namespace_id")
        rows = self.client.send(dsl.read_batch().var_as("n", count).returning(["n"]))["n"]
        return sorted(UUID(row["namespace_id"]) for row in rows)

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace, batch by batch; its edges go with its nodes."""
        self.bootstrap()
        mine = _Where.eq("namespace_id", str(namespace))
        some = dsl.g().n_with_label_where(OBJECT, mine).limit(_BATCH)
        look = dsl.read_batch().var_as("n", some.value_map(["$id"])).returning(["n"])
        drop = dsl.write_batch().var_as("n", some.drop()).returning(["n"])
        while self.client.send(look)["n"]:
            self.client.send(drop)

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
                self.vector_field(node.vector_model, len(node.vector))
        done_nodes = sum(retried(lambda some=some: self._write_nodes(namespace, some)) for some in _batches(newest))  # type: ignore[misc]
        done_edges = sum(retried(lambda some=some: self._write_edges(namespace, some)) for some in _batches(latest))  # type: ignore[misc]
        return Counts(done_nodes, done_edges)

    def _write_nodes(self, namespace: UUID, nodes: Sequence[GraphNode | Tombstone]) -> int:
        known = self.nodes(namespace, [node.id for node in nodes])
        batch, names = dsl.write_batch(), list[str]()
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
        known = self.edges(namespace, [edge.key for edge in edges])
        missing = [edge for edge in edges if edge_key(namespace, edge.key) not in known]
        ends = self._ends(namespace, {end for edge in missing for end in (edge.key.source, edge.key.target)})
        batch, names = dsl.write_batch(), list[str]()
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
        rows = self.client.send(batch.returning(names))
        return sum(bool(rows[name]) for name in names)

    def _ends(self, namespace: UUID, ids: set[UUID]) -> dict[UUID, dsl.NodeRef]:
        """The nodes of objects; one that is not there yet is held a place for."""
        known = self.nodes(namespace, ids) if ids else {}
        new = sorted(each for each in ids if node_key(namespace, each) not in known)
        if new:
            batch = dsl.write_batch()
            for number, each in enumerate(new):
                batch = batch.var_as(f"n{number}", dsl.g().add_n(OBJECT, node_fields(namespace, each)))
            self.client.send(batch.returning(["n0"]))
            known |= self.nodes(namespace, new)
        return {each: dsl.NodeRef.id(known[node_key(namespace, each)]["$id"]) for each in ids}


def _batches(found: Iterable[T], size: int = _BATCH) -> Iterator[list[T]]:
    left = iter(found)
    while batch := list(islice(left, size)):
        yield batch
