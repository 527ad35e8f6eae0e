"""Looking for what was erased: by id, over every table, the graph, keys of Redis and the blob store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.erasure import Level
from isotherm.storage import health
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import forget_objects, interest_mirror, tier_forget, tier_forget_check
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.postgres.tier_forget import Erasure

_IDS = {
    "banks": "bank_ids",
    "namespaces": "namespace_ids",
    "records": "record_keys",
    "graphs": "graphs",
    "blobs": "blobs",
    "objects": "objects",
    "rows": "object_keys",
    "interests": "interests",
}


def left(opened: Storage, erasure: Erasure) -> dict[str, int]:
    """What is left of an erasure, by where; nothing when all is gone. Raises: TransientError when a server is away."""
    with system(), connection() as conn:
        found = dict(tier_forget_check.left_in_tables(conn, erasure))
        living = alive(conn, erasure)
        due = 0 if erasure.whole_banks else interest_mirror.gone_and_due(conn, erasure.bank_ids)
    if erasure.level is Level.OBJECTS:
        found["graph"] = _in_graph(opened, erasure)
    else:
        graphs = [graph for graph in erasure.graphs if graph not in living]
        found["graph"] = sum(len(opened.brain.graph.revisions(graph)) for graph in graphs) + due
    keys = erasure.record_keys if erasure.level is Level.RECORDS else None
    found["hot copies"] = sum(opened.tail.holds(i, keys) for i in erasure.namespace_ids)
    found["touches"] = opened.touches.holds(erasure.record_keys)
    found["blobs"] = sum(_objects(opened, name) for name in erasure.blobs)
    return {where: n for where, n in found.items() if n}


def _in_graph(opened: Storage, erasure: Erasure) -> int:
    """Single objects that the graph still has, but for those that were put again."""
    with system(), connection() as conn:
        again, _ = forget_objects.alive(conn, erasure.namespace_ids, erasure.objects)
    gone = set(erasure.objects) - set(again)
    return sum(len(gone & opened.brain.graph.revisions(graph).keys()) for graph in erasure.graphs)


def _objects(opened: Storage, name: str) -> int:
    """Objects under a key or a prefix; those that rows know belong to a namespace that was made under the same name."""
    if not name.endswith("/"):
        return int(opened.blobs.get(name) is not None)
    keys = list(opened.blobs.keys(name))
    with system(), connection() as conn:
        known = health.known_objects(conn, keys)
    return sum(key not in known and opened.blobs.get(key) is not None for key in keys)


def alive(conn: Connection, erasure: Erasure) -> dict[UUID, Namespace]:
    """Namespaces that were made since, by their names in the graph: they may have the names of those that are gone."""
    rows = tier_forget_check.names_since(conn, erasure)
    named = [Namespace(tenant=t, scope=scope, agent=a, session=s, run=run) for t, scope, a, s, run in rows]
    return {namespace_uuid(namespace): namespace for namespace in named}


def ids_of(erasure: Erasure) -> dict[str, list[Any]]:
    """What a receipt says was erased, by kind: numbers of rows, names in the graph, places in the blob store."""
    found = {kind: list(getattr(erasure, name)) for kind, name in _IDS.items()}
    return {kind: [str(i) if isinstance(i, UUID) else i for i in ids] for kind, ids in found.items() if ids}


def of_receipt(receipt: Mapping[str, Any]) -> Erasure:
    """An erasure as its receipt tells it, for a database that does not know of it, such as one that was restored.

    Raises: RejectedError for what is no receipt.
    """
    try:
        ids = {kind: list(found) for kind, found in receipt["ids"].items()}
        return Erasure(
            operation_id=UUID(str(receipt["operation"])),
            level=Level(receipt["level"]),
            scope_sha256=bytes.fromhex(receipt["scope_sha256"]),
            bank_ids=[int(i) for i in ids.get("banks", ())],
            namespace_ids=[int(i) for i in ids.get("namespaces", ())],
            record_keys=[int(i) for i in ids.get("records", ())],
            graphs=[UUID(str(i)) for i in ids.get("graphs", ())],
            blobs=[str(i) for i in ids.get("blobs", ())],
            counts={},
            objects=[UUID(str(i)) for i in ids.get("objects", ())],
            object_keys=[int(i) for i in ids.get("rows", ())],
            interests=[UUID(str(i)) for i in ids.get("interests", ())],
            requested_at=datetime.fromisoformat(receipt["requested_at"]),
            finished_at=None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RejectedError("this is no receipt, as `forget --json` prints it") from None


def known(operation_id: UUID) -> Erasure | None:
    """An erasure by its operation, None when this database does not know of it."""
    with system(), connection() as conn:
        return tier_forget.get(conn, operation_id)
