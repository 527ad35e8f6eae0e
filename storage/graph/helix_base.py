"""What every call to HelixDB needs: indexes that serve, and rows found by what identifies them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from helixdb import dsl

from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.graph.helix_client import HelixClient, retried
from isotherm.storage.graph.helix_rows import OBJECT, RELATION, edge_key, node_key, vector_field

_INDEX_WAIT_S: Final = 30.0
_INDEX_LOOK_S: Final = 0.05
_Where = dsl.SourcePredicate
_INDEXES = (
    dsl.IndexSpec.node_unique_equality(OBJECT, "key"),
    dsl.IndexSpec.node_equality(OBJECT, "namespace_id"),
    dsl.IndexSpec.edge_equality(RELATION, "key"),
    dsl.IndexSpec.edge_equality(RELATION, "namespace_id"),
    dsl.IndexSpec.node_text(OBJECT, "terms", "namespace_id"),
    dsl.IndexSpec.edge_text(RELATION, "terms", "namespace_id"),
)


class HelixBase:
    """A HelixDB with its indexes; threads may share it."""

    def __init__(self, client: HelixClient) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._ready = False
        self._vectors: set[str] = set()

    own_search = True

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
        self.client.close()
        self._ready = False

    def nodes(self, namespace: UUID, ids: Iterable[UUID]) -> dict[str, Mapping[str, Any]]:
        """Nodes by key: row id, revision, whether they are gone, and the names of their properties."""
        keys = dsl.PropertyValue.string_array([node_key(namespace, each) for each in ids])
        step = dsl.g().n_with_label_where(OBJECT, _Where.is_in("key", keys))
        return self._by_key(step.value_map(["$id", "key", "revision", "gone", "fields"]))

    def edges(self, namespace: UUID, found: Iterable[EdgeKey]) -> dict[str, Mapping[str, Any]]:
        """Edges by key: row id and revision."""
        keys = dsl.PropertyValue.string_array([edge_key(namespace, each) for each in found])
        step = dsl.g().e_with_label_where(RELATION, _Where.is_in("key", keys))
        return self._by_key(step.value_map(["$id", "key", "revision"]))

    def _by_key(self, step: dsl.Traversal) -> dict[str, Mapping[str, Any]]:
        rows = self.client.send(dsl.read_batch().var_as("r", step).returning(["r"]))["r"]
        return {row["key"]: row for row in rows}

    def gone(self, namespace: UUID, ids: set[UUID]) -> set[UUID]:
        """Those of the objects that are known to be gone."""
        known = self.nodes(namespace, ids) if ids else {}
        return {each for each in ids if (row := known.get(node_key(namespace, each))) is not None and row["gone"]}

    def _is_ready(self) -> bool:
        try:
            self.bootstrap()
        except (UnavailableError, RejectedError):
            return False
        return True

    def vector_field(self, model: str, dimension: int) -> str:
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
            receipt = retried(lambda made=made: self.client.send(made))["i"]  # type: ignore[misc]
            if receipt.get("kind") != "already_active":
                waiting.append(receipt["operation_id"])
        for operation in waiting:
            look = dsl.read_batch().var_as("s", dsl.g().get_index_operation(operation)).returning(["s"])
            while (state := self.client.send(look)["s"]["status"]) != "succeeded":
                if state == "aborted" or time.monotonic() > deadline:
                    raise UnavailableError(f"HelixDB: an index is {state}")
                time.sleep(_INDEX_LOOK_S)
