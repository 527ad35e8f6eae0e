"""Forgetting, in the database: names at once, rows in batches that each commit by themselves.

The first transaction takes the names away: no query finds what is below them any more, whoever asks by a name, and a name
that is used again begins anew. Whoever writes at that moment is waited for; whoever kept the old ids is refused. Then the
operations of the scope go, and with them every step, so that a runner in the middle of one rolls back. Then the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.stages import BRAIN_MIRROR
from isotherm.pipeline.tier.blobs import owner_prefix
from isotherm.pipeline.tier.erasure import SINGLE, ErasureScope, Level
from isotherm.storage.postgres.forget_objects import Taken
from isotherm.storage.postgres.interest_mirror import graph_of
from isotherm.storage.postgres.namespaces import EACH_ID, Scope, predicate
from isotherm.storage.postgres.pool import Connection

# No name that passes the door holds this character, so nobody can ask for such a row.
_NAMELESS = "chr(1) || %(operation)s::text"

_BANKS_OF = """SELECT b.id FROM banks AS b
    WHERE b.tenant IS NOT DISTINCT FROM %(tenant)s::text AND (%(agent)s::text IS NULL OR b.agent = %(agent)s)"""
_BANKS = f"{_BANKS_OF} ORDER BY b.id FOR UPDATE"

_NAMESPACES = """
SELECT id, bank_id, tenant, scope, agent, session, run FROM namespaces AS r
WHERE {which} AND r.forgotten_at IS NULL ORDER BY r.id FOR UPDATE"""
_OF_SESSION = "r.tenant IS NOT DISTINCT FROM %(tenant)s::text AND r.agent = %(agent)s AND r.session = %(session)s"

_WITH_OBJECTS = """
SELECT id FROM unnest(%s::bigint[]) AS g (id) WHERE EXISTS (SELECT 1 FROM brain_objects AS o WHERE o.namespace_id = g.id)"""

_TAKE_NAMES = f"""
UPDATE namespaces SET tenant = {_NAMELESS}, scope = '', agent = id::text, session = NULL, run = NULL, due_at = NULL,
    forgotten_at = now() WHERE id = ANY(%(ids)s)"""
# A pass over a whole tenant names it.
_QUOTA_PASSES = """
DELETE FROM operations AS o USING operation_steps AS s
WHERE o.namespace_id IS NULL AND o.bank_id IS NULL AND s.operation_id = o.id AND s.input ->> 'tenant' = %(tenant)s"""
_TAKE_BANK_NAMES = f"""
UPDATE banks SET tenant = {_NAMELESS}, agent = id::text, forgotten_at = now() WHERE id = ANY(%(ids)s)"""

_BEGIN = """
INSERT INTO erasures (operation_id, level, scope_sha256, bank_ids, namespace_ids, record_keys, graphs, blobs, counts,
    objects, object_keys, edges, interests)
VALUES (%(operation)s, %(level)s, %(sha256)s, %(banks)s, %(namespaces)s, %(keys)s, %(graphs)s, %(blobs)s, %(counts)s,
    %(objects)s, %(object_keys)s, %(edges)s, %(interests)s)"""

_GET = """
SELECT operation_id, level, scope_sha256, bank_ids, namespace_ids, record_keys, graphs, blobs, counts, requested_at, finished_at,
       objects, object_keys, edges, interests
FROM erasures WHERE operation_id = %s"""

_COUNT = """
UPDATE erasures SET counts = counts || (
    SELECT coalesce(jsonb_object_agg(g.kind, coalesce((counts ->> g.kind)::bigint, 0) + g.n::bigint), '{}')
    FROM jsonb_each_text(%(counts)s::jsonb) AS g (kind, n))
WHERE operation_id = %(operation)s"""
_FINISH = "UPDATE erasures SET finished_at = coalesce(finished_at, now()), edges = '[]' WHERE operation_id = %s"

# Runners that write to the graph cannot be rolled back: their end is waited for. An upload has a row of its own.
_RUNNING = """
SELECT count(*) FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE (o.namespace_id = ANY(%(namespaces)s) OR (%(whole)s AND o.bank_id = ANY(%(banks)s)))
  AND s.stage = ANY(%(stages)s) AND s.state = 'running' AND s.lease_until > now()"""

_OPERATIONS = """
WITH gone AS (
    SELECT o.id FROM operations AS o
    WHERE o.namespace_id = ANY(%(namespaces)s) OR (%(whole)s AND o.bank_id = ANY(%(banks)s))
    ORDER BY o.id LIMIT %(limit)s FOR UPDATE
), messages AS (
    DELETE FROM outbox AS m USING gone WHERE m.operation_id = gone.id RETURNING 1
), turns AS (
    UPDATE interest_banks SET turn_of = NULL, taken_at = NULL WHERE turn_of IN (SELECT id FROM gone)
), logged AS (
    DELETE FROM interest_log AS l USING gone WHERE l.operation_id = gone.id RETURNING 1
), steps AS (
    SELECT count(*) AS n FROM operation_steps AS s JOIN gone ON gone.id = s.operation_id
), operations AS (
    DELETE FROM operations AS o USING gone WHERE o.id = gone.id RETURNING 1
)
SELECT (SELECT count(*) FROM operations), (SELECT n FROM steps), (SELECT count(*) FROM messages), (SELECT count(*) FROM logged)"""

# Locked first and deleted by the next statement, which sees what those wrote that were waited for.
_LOCK_RECORDS = """
SELECT key FROM tier_records WHERE namespace_id = ANY(%(namespaces)s)
ORDER BY namespace_id, id LIMIT %(limit)s FOR UPDATE"""
_LOCK_BY_ID = f"""
SELECT r.key FROM {EACH_ID} CROSS JOIN LATERAL (
    SELECT key FROM tier_records AS r WHERE r.namespace_id = %(ns)s AND r.id = g.id LIMIT 1 FOR UPDATE) AS r"""

# Live objects by the bodies that refer to them; of the others there are few, with an index of their own, which the planner
# takes where it cannot take that of the namespace.
_BLOBS = """
SELECT object_key FROM (
    SELECT o.id, o.object_key FROM cold_bodies AS b JOIN cold_blobs AS o ON o.id = b.blob_id
    WHERE b.record_key = ANY(%(keys)s) AND o.namespace_id + 0 = %(ns)s
    UNION
    SELECT id, object_key FROM cold_blobs
    WHERE state <> 'live' AND record_key = ANY(%(keys)s) AND namespace_id + 0 = %(ns)s) AS objects
ORDER BY id"""

_RECORDS = """
WITH words AS (
    DELETE FROM tier_postings AS p
    USING (SELECT r.key, r.bank_id, r.namespace_id, u.term FROM tier_records AS r, unnest(r.terms) AS u (term)
        WHERE r.key = ANY(%(keys)s)) AS d
    WHERE (p.bank_id, p.term, p.namespace_id, p.record_key) = (d.bank_id, d.term, d.namespace_id, d.key) RETURNING 1
), gone AS (
    DELETE FROM tier_records WHERE key = ANY(%(keys)s) RETURNING summary IS NOT NULL AS summarized
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM gone WHERE summarized),
       (SELECT count(*) FROM words)
       + (SELECT coalesce(sum(cardinality(words) - 1), 0)::bigint FROM cold_words WHERE record_key = ANY(%(keys)s)),
       (SELECT count(*) FROM cold_bodies WHERE record_key = ANY(%(keys)s)),
       (SELECT count(*) FROM cold_bodies WHERE record_key = ANY(%(keys)s) AND blob_id IS NOT NULL),
       (SELECT count(*) FROM tier_vectors WHERE record_key = ANY(%(keys)s)),
       (SELECT count(*) FROM tier_moves WHERE record_key = ANY(%(keys)s))"""

_LOCK_OBJECTS = """
SELECT key FROM brain_objects WHERE namespace_id = ANY(%(namespaces)s)
ORDER BY parent_id IS NULL, namespace_id, id LIMIT %(limit)s FOR UPDATE"""
_OBJECTS = """
WITH words AS (
    DELETE FROM brain_postings AS p
    USING (SELECT o.key, o.namespace_id, u.term FROM brain_objects AS o, unnest(o.terms) AS u (term) WHERE o.key = ANY(%(keys)s)) AS d
    WHERE p.namespace_id = d.namespace_id AND p.term = d.term AND p.object_key = d.key
), edges AS (
    DELETE FROM brain_edges AS e USING brain_objects AS o
    WHERE o.key = ANY(%(keys)s) AND e.namespace_id = o.namespace_id AND o.id IN (e.source, e.target) RETURNING e.key
)
SELECT (SELECT count(DISTINCT key) FROM edges)"""
_DELETE_OBJECTS = "DELETE FROM brain_objects WHERE key = ANY(%(keys)s)"

_STATISTICS = ("tier_depth", "brain_postings", "brain_stats_deltas", "brain_stats", "brain_terms")

_NAMES_LEFT = "SELECT id FROM namespaces WHERE id = ANY(%(namespaces)s) ORDER BY id LIMIT %(limit)s FOR UPDATE"


@dataclass(frozen=True, slots=True)
class Erasure:
    """What was asked to be forgotten, by row ids, and what was erased of it so far.

    Args: scope_sha256: hash of the names; graphs: namespaces in the graph; blobs: keys in the blob store, and what keys began
        with, which end with a slash; counts: by kind; finished_at: None until a check
        found nothing; objects, object_keys: single objects by id and by row; edges: what identifies those the graph has
        to forget with them, until it has; interests: single interests.
    """

    operation_id: UUID
    level: Level
    scope_sha256: bytes
    bank_ids: list[int]
    namespace_ids: list[int]
    record_keys: list[int]
    graphs: list[UUID]
    blobs: list[str]
    counts: dict[str, int]
    requested_at: datetime
    finished_at: datetime | None
    objects: list[UUID] = field(default_factory=list)
    object_keys: list[int] = field(default_factory=list)
    edges: list[list[str]] = field(default_factory=list)
    interests: list[UUID] = field(default_factory=list)

    @property
    def whole_banks(self) -> bool:
        """Whether nothing of the banks stays."""
        return self.level in {Level.AGENT, Level.TENANT}

    @property
    def scope(self) -> dict[str, Any]:
        """Parameters of statements over the scope; single things have no namespace to erase."""
        namespaces = [] if self.level in SINGLE else self.namespace_ids
        return {"namespaces": namespaces, "banks": self.bank_ids, "whole": self.whole_banks}


def take_names(conn: Connection, operation_id: UUID, scope: ErasureScope) -> list[int]:
    """Make what is below the names of a scope unreachable by them, and note what is to be erased.

    Returns: the namespaces, by id.
    """
    values = {"operation": operation_id, "tenant": scope.tenant, "agent": scope.agent, "session": scope.session}
    banks = banks_of(conn, scope) if scope.whole_banks else []
    which, params = _which(scope)
    rows = conn.execute(_NAMESPACES.format(which=which), {**values, **params}).fetchall()
    ids = [int(row[0]) for row in rows]
    with_objects = {int(row[0]) for row in conn.execute(_WITH_OBJECTS, (ids,)).fetchall()}
    graphs = [namespace_uuid(_named(row[2:])) for row in rows if int(row[0]) in with_objects]
    conn.execute(_TAKE_NAMES, {**values, "ids": ids})
    conn.execute(_TAKE_BANK_NAMES, {**values, "ids": banks})
    if scope.level is Level.TENANT:
        conn.execute(_QUOTA_PASSES, values)
    # What a late runner brings to the graph goes there under the name that the namespace has now.
    nameless = [
        namespace_uuid(Namespace(tenant=f"\x01{operation_id}", scope="", agent=str(i))) for i in sorted(with_objects)
    ]
    graphs += [graph_of(bank_id) for bank_id in banks]  # of the interests
    blobs = [owner_prefix(_named(row[2:])) for row in rows]
    owners = banks or sorted({int(row[1]) for row in rows})
    begin(conn, operation_id, scope, owners, ids, graphs=[*graphs, *nameless], blobs=blobs)
    return ids


def banks_of(conn: Connection, scope: ErasureScope) -> list[int]:
    """Lock the banks of a scope's agents; returns their ids."""
    values = {"tenant": scope.tenant, "agent": scope.agent}
    return [int(row[0]) for row in conn.execute(_BANKS, values).fetchall()]


def namespaces_of(conn: Connection, scope: ErasureScope, limit: int) -> list[int]:
    """Namespaces of a scope by id, at most so many of them; nothing is locked."""
    which, params = _which(scope)
    values = {"tenant": scope.tenant, "agent": scope.agent, "session": scope.session, "limit": limit, **params}
    sql = f"SELECT r.id FROM namespaces AS r WHERE {which} AND r.forgotten_at IS NULL LIMIT %(limit)s"
    return [int(row[0]) for row in conn.execute(sql, values).fetchall()]


def begin(
    conn: Connection,
    operation_id: UUID,
    scope: ErasureScope,
    bank_ids: Sequence[int],
    namespace_ids: Sequence[int],
    *,
    keys: Sequence[int] = (),
    graphs: Sequence[UUID] = (),
    blobs: Sequence[str] = (),
    counts: Mapping[str, int] | None = None,
    taken: Taken | None = None,
) -> None:
    """Note what is to be erased. Args: taken: single objects or interests."""
    single = taken or Taken()
    conn.execute(
        _BEGIN,
        {
            "operation": operation_id,
            "level": scope.level.value,
            "sha256": scope.sha256,
            "banks": list(bank_ids),
            "namespaces": list(namespace_ids),
            "keys": list(keys),
            "graphs": list(graphs),
            "blobs": list(blobs),
            "counts": Jsonb(dict(counts or {})),
            "objects": single.ids,
            "object_keys": single.keys,
            "edges": Jsonb(single.edges),
            "interests": single.interests,
        },
    )


def get(conn: Connection, operation_id: UUID) -> Erasure | None:
    """An erasure by its operation; it outlives that."""
    row = conn.execute(_GET, (operation_id,)).fetchone()
    return None if row is None else Erasure(row[0], Level(row[1]), bytes(row[2]), *row[3:])


def count(conn: Connection, erasure: Erasure, counts: Mapping[str, int]) -> None:
    """Add to what was erased, in the transaction that erases it."""
    found = {kind: n for kind, n in counts.items() if n}
    if found:
        conn.execute(_COUNT, {"operation": erasure.operation_id, "counts": Jsonb(found)})


def finish(conn: Connection, erasure: Erasure) -> None:
    """Note that nothing is left."""
    conn.execute(_FINISH, (erasure.operation_id,))


def running_outside(conn: Connection, erasure: Erasure) -> int:
    """Runners of the scope, or of where single things were, that are writing to the graph now."""
    values = {**erasure.scope, "namespaces": erasure.namespace_ids, "stages": [BRAIN_MIRROR]}
    row = conn.execute(_RUNNING, values).fetchone()
    return int(row[0]) if row else 0


def operations(conn: Connection, erasure: Erasure, limit: int) -> int:
    """Erase operations of the scope with their steps, answers, keys and messages; returns how many."""
    row = conn.execute(_OPERATIONS, {**erasure.scope, "limit": limit}).fetchone() or (0, 0, 0, 0)
    kinds = ("operations", "steps", "messages", "log_entries")
    count(conn, erasure, dict(zip(kinds, map(int, row), strict=True)))
    return int(row[0])


def lock_records(conn: Connection, erasure: Erasure, limit: int) -> list[int]:
    """Lock records of the scope; returns their keys."""
    return lock_of(conn, erasure.scope["namespaces"], limit)


def lock_of(conn: Connection, namespace_ids: Sequence[int], limit: int) -> list[int]:
    """Lock records of namespaces; returns their keys."""
    rows = conn.execute(_LOCK_RECORDS, {"namespaces": list(namespace_ids), "limit": limit}).fetchall()
    return [int(row[0]) for row in rows]


def lock_by_id(conn: Connection, namespace_id: int, ids: Sequence[str]) -> list[int]:
    """Lock records of a namespace; returns the keys of those that are there."""
    rows = conn.execute(_LOCK_BY_ID, {"ns": namespace_id, "ids": list(ids)}).fetchall()
    return [int(row[0]) for row in rows]


def blobs_of(conn: Connection, namespace_id: int, keys: Sequence[int]) -> list[str]:
    """Where the bodies of records are in the blob store."""
    return [str(row[0]) for row in conn.execute(_BLOBS, {"ns": namespace_id, "keys": list(keys)}).fetchall()]


def delete_records(conn: Connection, keys: Sequence[int]) -> dict[str, int]:
    """Delete locked records with all that hangs on them; returns counts by kind."""
    row = conn.execute(_RECORDS, {"keys": list(keys)}).fetchone() or (0,) * 7
    kinds = ("records", "summaries", "words", "cold_bodies", "blobs", "vectors", "moves")
    return dict(zip(kinds, map(int, row), strict=True))


def objects(conn: Connection, erasure: Erasure, limit: int) -> int:
    """Erase objects of the knowledge base, parts first, with their edges; returns how many."""
    locked = conn.execute(_LOCK_OBJECTS, {**erasure.scope, "limit": limit}).fetchall()
    keys = {"keys": [int(row[0]) for row in locked]}
    if not locked:
        return 0
    edges = conn.execute(_OBJECTS, keys).fetchone() or (0,)
    gone = conn.execute(_DELETE_OBJECTS, keys).rowcount
    count(conn, erasure, {"objects": gone, "edges": int(edges[0])})
    return gone


def statistics(conn: Connection, erasure: Erasure) -> None:
    """Erase what was counted of the scope's records and objects, once these are gone."""
    for table in _STATISTICS:
        conn.execute(f"DELETE FROM {table} WHERE namespace_id = ANY(%(namespaces)s)", erasure.scope)


def names(conn: Connection, erasure: Erasure, limit: int) -> int:
    """Erase rows of namespaces, and at the end those of banks; returns how many.

    An operation that came meanwhile, from somebody who kept the old ids, goes with them.
    """
    rows = conn.execute(_NAMES_LEFT, {**erasure.scope, "limit": limit}).fetchall()
    ids = [int(row[0]) for row in rows]
    if ids:
        conn.execute("DELETE FROM operations WHERE namespace_id = ANY(%s)", (ids,))
        conn.execute("DELETE FROM tier_depth WHERE namespace_id = ANY(%s)", (ids,))
        conn.execute("DELETE FROM namespaces WHERE id = ANY(%s)", (ids,))
        count(conn, erasure, {"namespaces": len(ids)})
    elif erasure.whole_banks:
        conn.execute("DELETE FROM operations WHERE bank_id = ANY(%(banks)s)", erasure.scope)
        gone = conn.execute("DELETE FROM banks WHERE id = ANY(%(banks)s)", erasure.scope).rowcount
        count(conn, erasure, {"banks": gone})
    return len(ids)


def _which(scope: ErasureScope) -> tuple[str, dict[str, Any]]:
    """The predicate of a scope's namespaces, on `namespaces AS r`."""
    if scope.whole_banks:
        return f"r.bank_id IN ({_BANKS_OF})", {}
    if scope.namespace is not None:
        within, params = predicate(Scope(namespace=scope.namespace))
        return within.replace("r.namespace_id", "r.id"), params
    return _OF_SESSION, {}


def _named(row: Sequence[Any]) -> Namespace:
    tenant, scope, agent, session, run = row
    return Namespace(tenant=tenant, scope=scope, agent=agent, session=session, run=run)
