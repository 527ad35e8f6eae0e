"""After a soak: the state beside the model that saw the same calls. Each finding is a sentence; none means all is well."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from brain_kit import check_brain
from inprocess import check_database
from soak_calls import Caller

from isotherm import storage
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.identity import Namespace
from isotherm.storage import brain_mirror, cold, health
from isotherm.storage.brain_mirror import Drift
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.pool import fetch_all

_RECORDS = """
SELECT r.id, r.content, r.summary, b.body, b.raw_bytes, r.content_sha256, o.object_key, b.record_key IS NOT NULL
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE r.namespace_id = %(ns)s"""
_OBJECTS = "SELECT id, title, content FROM brain_objects WHERE namespace_id = %(ns)s AND deleted_at IS NULL"
_EDGES = """
SELECT e.source, e.target, e.label, e.note FROM brain_edges AS e
JOIN brain_objects AS a ON a.namespace_id = e.namespace_id AND a.id = e.source AND a.deleted_at IS NULL
JOIN brain_objects AS b ON b.namespace_id = e.namespace_id AND b.id = e.target AND b.deleted_at IS NULL
WHERE e.namespace_id = %(ns)s AND e.deleted_at IS NULL"""
_STATES = "SELECT id, state, error FROM operations WHERE id = ANY(%(ids)s)"
_LEASES = "SELECT count(*) FROM operation_steps WHERE state IN ('pending', 'running') OR lease_until IS NOT NULL"
_MESSAGES = (
    "SELECT count(*) FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id WHERE n.session LIKE 'talk%%'"
)


_COMES_AND_GOES_S = 20.0


@dataclass
class Verdict:
    """What was found, by what it would mean."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    drift: list[str] = field(default_factory=list)
    residue: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not any((self.lost, self.doubled, self.stuck, self.drift, self.residue))


def check(callers: Sequence[Caller]) -> Verdict:
    """Compare everything."""
    found = Verdict()
    for caller in callers:
        found.lost += caller.wrong
        _operations(found, caller)
        _records(found, caller)
        _knowledge(found, caller)
    messages, stored = sum(c.messages for c in callers), fetch_all(_MESSAGES)[0][0]
    _difference(found, "messages of sessions", messages, stored)
    _leftovers(found)
    check_database()
    check_brain()
    return found


def _operations(found: Verdict, caller: Caller) -> None:
    rows = {i: (state, error) for i, state, error in fetch_all(_STATES, {"ids": list(caller.operations)})}
    found.lost += [f"operation {i} was accepted and is gone" for i in caller.operations - rows.keys()]
    found.stuck += [f"operation {i} is {state}: {error}" for i, (state, error) in rows.items() if state != "done"]


def _place(namespace: Namespace) -> int:
    place = namespaces.find(namespace)
    return -1 if place is None else place.namespace_id


def _records(found: Verdict, caller: Caller) -> None:
    blobs, stored = storage.open().blobs, {}
    for record_id, content, summary, body, raw, sha, object_key, is_cold in fetch_all(
        _RECORDS, {"ns": _place(caller.session)}
    ):
        whole = cold.text(StoredBody(summary, body, raw, sha, object_key), blobs) if is_cold else (content or summary)
        stored[record_id] = whole
    _same(found, f"record of caller {caller.number}", caller.records, stored)


def _knowledge(found: Verdict, caller: Caller) -> None:
    namespace_id = _place(caller.knowledge)
    objects = {i: (title, content) for i, title, content in fetch_all(_OBJECTS, {"ns": namespace_id})}
    _same(found, f"object of caller {caller.number}", caller.objects, objects)
    shown = {
        edge: note for edge, note in caller.edges.items() if edge[0] in caller.objects and edge[1] in caller.objects
    }
    edges = {
        (UUID(str(a)), UUID(str(b)), str(label)): note for a, b, label, note in fetch_all(_EDGES, {"ns": namespace_id})
    }
    _same(found, f"edge of caller {caller.number}", shown, edges)
    if objects:
        differs = brain_mirror.compare(storage.open().brain.graph, namespace_id, namespace_uuid(caller.knowledge))
        if differs != Drift():
            found.drift.append(f"graph of caller {caller.number}: {differs}")


def _same(found: Verdict, what: str, wanted: dict, stored: dict) -> None:
    found.lost += [f"{what} {i} is gone" for i in _some(wanted.keys() - stored.keys())]
    found.residue += [f"{what} {i} is there and should not be" for i in _some(stored.keys() - wanted.keys())]
    changed = [i for i in wanted.keys() & stored.keys() if wanted[i] != stored[i]]
    found.lost += [f"{what} {i} is not what was stored last" for i in _some(changed)]


def _some(ids: object) -> Iterator[object]:
    yield from sorted(map(str, ids))[:20]  # type: ignore[call-overload]


def _difference(found: Verdict, what: str, wanted: int, stored: int) -> None:
    if stored < wanted:
        found.lost.append(f"{what}: {wanted - stored}")
    elif stored > wanted:
        found.doubled.append(f"{what}: {stored - wanted}")


def _leftovers(found: Verdict) -> None:
    for what, query in (("steps or leases", _LEASES), ("messages in the outbox", "SELECT count(*) FROM outbox")):
        # Beat goes on: what it asks for comes and goes. Only what never goes is left over.
        deadline = time.monotonic() + _COMES_AND_GOES_S
        while (count := fetch_all(query)[0][0]) and time.monotonic() < deadline:
            time.sleep(0.05)
        if count:
            found.residue.append(f"{count} {what} left")
    objects = health.compare_objects(storage.open().blobs)
    if objects.missing:
        found.lost.append(f"{objects.missing} objects of the blob store")
    if objects.unknown:
        found.residue.append(f"{objects.unknown} objects of the blob store belong to nothing")
