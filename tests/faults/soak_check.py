"""After a soak: the state beside the model that saw the same calls. Each finding is a sentence; none means all is well."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from brain_kit import check_brain
from inprocess import check_database
from soak_calls import Caller
from soak_interest import thing

from isotherm import storage
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.identity import Namespace
from isotherm.storage import brain_mirror, cold, health
from isotherm.storage.brain_mirror import Drift
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

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
_MESSAGES = """
SELECT count(*) FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id JOIN banks AS b ON b.id = n.bank_id
WHERE b.agent = %(agent)s AND n.session LIKE %(session)s"""
_PARTS = """
SELECT p.id, string_agg(c.content, E'\n' ORDER BY c.position) FROM brain_objects AS p
JOIN brain_objects AS c ON c.namespace_id = p.namespace_id AND c.parent_id = p.id AND c.deleted_at IS NULL
WHERE p.namespace_id = %(ns)s AND p.deleted_at IS NULL GROUP BY p.id"""
_LIVE = """
SELECT p.name, p.status FROM interest_points AS p JOIN banks AS b ON b.id = p.bank_id
WHERE b.agent = %(agent)s AND b.tenant IS NULL AND p.status <> 'archived'"""
_BARE = """
SELECT 'record', state, count(*) FROM (SELECT vector_state AS state FROM tier_records) AS r WHERE state <> 'done' GROUP BY 2
UNION ALL SELECT 'object', vector_state, count(*) FROM brain_objects WHERE deleted_at IS NULL AND vector_state <> 'done' GROUP BY 2"""
# Who was forgotten whole; of the others a session was, and the name of their agent stays.
_GUESTS = """
SELECT (SELECT count(*) FROM namespaces WHERE tenant LIKE 'tenant%')
     + (SELECT count(*) FROM banks WHERE tenant LIKE 'tenant%-2' OR tenant LIKE 'tenant%-3')"""

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


def check(callers: Sequence[Caller], found: Verdict, *, models: bool, unsaid: Collection[str] = ()) -> Verdict:
    """Compare everything, once nothing moves any more, and add to what was found before.

    Args: models: whether a model answered; what rules read out of a session is not asked about here; unsaid: topics that
        the model left out of an answer.
    """
    for caller in callers:
        found.lost += caller.wrong
        _operations(found, caller)
        _records(found, caller, caller.session, caller.records)
        _records(found, caller, caller.copied, caller.copies)
        _knowledge(found, caller)
        _files(found, caller)
        _messages(found, caller)
        if models:
            _interests(found, caller, {thing(topic) for topic in unsaid})
        _erased(found, caller)
    _stores(found, models=models)
    for look in (check_database, check_brain):
        try:
            look()
        except AssertionError as error:
            found.lost.append(f"{look.__name__}: {error}")
    return found


def _operations(found: Verdict, caller: Caller) -> None:
    asked = list(caller.operations | caller.gone)
    rows = {i: (state, error) for i, state, error in fetch_all(_STATES, {"ids": asked})}
    found.lost += [f"operation {i} was accepted and is gone" for i in caller.operations - rows.keys() - caller.gone]
    stopped = caller.cancelled | caller.gone
    bad = {i: row for i, row in rows.items() if row[0] != "done" and not (row[0] == "cancelled" and i in stopped)}
    found.stuck += [f"operation {i} is {state}: {error}" for i, (state, error) in bad.items()]


def _place(namespace: Namespace) -> int:
    place = namespaces.find(namespace)
    return -1 if place is None else place.namespace_id


def _records(found: Verdict, caller: Caller, where: Namespace, wanted: dict[str, str]) -> None:
    blobs, stored = storage.open().blobs, {}
    for record_id, content, summary, body, raw, sha, object_key, is_cold in fetch_all(_RECORDS, {"ns": _place(where)}):
        whole = cold.text(StoredBody(summary, body, raw, sha, object_key), blobs) if is_cold else (content or summary)
        stored[record_id] = whole
    _same(found, f"record of {where.session} of caller {caller.number}", wanted, stored)


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


def _files(found: Verdict, caller: Caller) -> None:
    """Each file has the text it was taken in with last, and no part of an earlier one."""
    parts = {i: text.strip() for i, text in fetch_all(_PARTS, {"ns": _place(caller.library)})}
    wanted = {i: text.partition("\n\n")[2] for i, text in caller.files.items()}
    _same(found, f"file of caller {caller.number}", wanted, parts)


def _interests(found: Verdict, caller: Caller, unsaid: set[str]) -> None:
    """Each thing that was said is one interest, or as many as a person made of it."""
    said = {thing(topic) for topics in caller.said.values() for topic in topics}
    there = Counter(thing(name) for name, _ in fetch_all(_LIVE, {"agent": caller.agent}))
    who = f"of caller {caller.number}"
    found.lost += [f"interest {name} {who} is gone" for name in _some(said - there.keys() - caller.forgotten - unsaid)]
    found.residue += [f"interest {name} {who} is there and should not be" for name in _some(there.keys() - said)]
    found.doubled += [f"interest {name} {who}: {n}" for name, n in there.items() if n > 1 + caller.undone[name]]


def _messages(found: Verdict, caller: Caller) -> None:
    for session, wanted in (("talk%", sum(map(len, caller.said.values()))), ("chat", caller.chats)):
        stored = fetch_all(_MESSAGES, {"agent": caller.agent, "session": session})[0][0]
        _difference(found, f"messages of caller {caller.number} in {session}", wanted, stored)


def _erased(found: Verdict, caller: Caller) -> None:
    """Receipts of what was forgotten say that a look everywhere finds nothing more of it."""
    for operation_id in caller.erasures:
        left = producers.forget_receipt(operation_id).left
        if left:
            found.residue.append(f"erasure {operation_id} left {left}")


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


def leftovers() -> Verdict:
    """What never goes while beat and workers go on."""
    found = Verdict()
    for what, query in (("steps or leases", _LEASES), ("messages in the outbox", "SELECT count(*) FROM outbox")):
        # Beat goes on: what it asks for comes and goes. Only what never goes is left over.
        deadline = time.monotonic() + _COMES_AND_GOES_S
        while (count := fetch_all(query)[0][0]) and time.monotonic() < deadline:
            time.sleep(0.05)
        if count:
            found.residue.append(f"{count} {what} left")
    return found


def _stores(found: Verdict, *, models: bool) -> None:
    """Vectors, names and blobs agree with the rows."""
    if models:
        found.lost += [f"{n} vectors of {what}s are {state}" for what, state, n in fetch_all(_BARE)]
    if guests := fetch_all(_GUESTS)[0][0]:
        found.residue.append(f"{guests} guests were forgotten and have names")
    objects = health.compare_objects(storage.open().blobs)
    if objects.missing:
        found.lost.append(f"{objects.missing} objects of the blob store")
    if objects.unknown:
        found.residue.append(f"{objects.unknown} objects of the blob store belong to nothing")
