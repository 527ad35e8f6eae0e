"""Writes of the knowledge base: rows, words, statistics, steps and messages in one transaction, one statement per table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.brain import writing
from isotherm.pipeline.brain.errors import ObjectNotFoundError, RevisionConflictError
from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.brain.writing import Change, PutPlan, StoredRow
from isotherm.pipeline.errors import RacedError
from isotherm.pipeline.stages import BRAIN_EMBED, BRAIN_MENTION, BRAIN_MIRROR
from isotherm.storage.postgres import brain_mirror, brain_vectors, brain_words, operations, outbox, steps
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.steps import FOR_EVER, NewStep
from isotherm.storage.postgres.tier_write import Patience

# One step of embedding takes seconds, so that a killed worker loses little.
EMBED_BATCH = 64
MENTION_BATCH = 250
_MOST_COUNTED = 32_767  # of a word in a text, as the column holds it
_COLUMNS = """r.key, r.id, r.kind, r.title, r.summary, r.content, r.content_type, r.properties, r.parent_id, r.position,
              r.revision, r.index_sha256, r.terms, r.length, r.vector_state, r.deleted_at IS NOT NULL, r.source_time"""
_NAMES = ("key", "id", "kind", "title", "summary", "content", "content_type", "properties", "parent_id", "position",
          "revision", "index_sha256", "terms", "length", "vector_state", "deleted", "source_time")  # fmt: skip

# Objects before parts and both by id: writers that meet wait for each other instead of deadlocking.
_ORDER = "ORDER BY r.parent_id IS NOT NULL, r.id FOR NO KEY UPDATE"
_LOCK = f"SELECT {_COLUMNS} FROM brain_objects AS r WHERE r.namespace_id = %(ns)s AND r.id = ANY(%(ids)s) {_ORDER}"
_LOCK_PARTS = f"""
SELECT {_COLUMNS} FROM brain_objects AS r
WHERE r.namespace_id = %(ns)s AND r.parent_id = ANY(%(ids)s) AND r.deleted_at IS NULL {_ORDER}"""
_LOCK_ALL_PARTS = f"""
SELECT {_COLUMNS} FROM brain_objects AS r WHERE r.namespace_id = %(ns)s AND r.parent_id = ANY(%(ids)s) {_ORDER}"""

# A row that is there must still have the revision that was read; a vector is kept as long as its text is.
_UPSERT = """
INSERT INTO brain_objects AS r (
    namespace_id, bank_id, id, kind, title, summary, content, content_type, properties, parent_id, position, revision,
    index_sha256, terms, counts, length, vector_state, created_at, updated_at, source_time)
SELECT %(ns)s, %(bank)s, g.id, g.kind, g.title, g.summary, g.content, g.content_type, g.properties, g.parent_id, g.position,
       g.revision, decode(g.index_sha256, 'hex'), g.terms, g.counts, g.length, %(vector_state)s, %(now)s, %(now)s,
       g.source_time
FROM json_to_recordset(%(rows)s) AS g (
    id uuid, kind text, title text, summary text, content text, content_type text, properties jsonb, parent_id uuid,
    position integer, revision bigint, index_sha256 text, terms bigint[], counts smallint[], length integer,
    source_time timestamptz)
ORDER BY g.parent_id IS NOT NULL, g.id
ON CONFLICT (namespace_id, id) DO UPDATE SET
    kind = excluded.kind, title = excluded.title, summary = excluded.summary, content = excluded.content,
    content_type = excluded.content_type, properties = excluded.properties, parent_id = excluded.parent_id,
    position = excluded.position, revision = excluded.revision, index_sha256 = excluded.index_sha256,
    terms = excluded.terms, counts = excluded.counts, length = excluded.length, updated_at = excluded.updated_at,
    deleted_at = NULL, source_time = excluded.source_time,
    vector = CASE WHEN r.index_sha256 = excluded.index_sha256 THEN r.vector END,
    vector_model = CASE WHEN r.index_sha256 = excluded.index_sha256 THEN r.vector_model END,
    vector_dim = CASE WHEN r.index_sha256 = excluded.index_sha256 THEN r.vector_dim END,
    vector_state = CASE WHEN r.index_sha256 = excluded.index_sha256 AND r.vector_state = 'done' THEN 'done'
        ELSE excluded.vector_state END
WHERE r.revision = excluded.revision - 1
RETURNING r.id, r.key, r.vector_state"""

# A part is found by other words, but nothing of its own changed: neither its revision nor its time.
_REWORD = """
UPDATE brain_objects AS r
SET index_sha256 = decode(g.index_sha256, 'hex'), terms = g.terms, length = g.length, vector = NULL, vector_model = NULL,
    vector_dim = NULL, vector_state = %(vector_state)s
FROM json_to_recordset(%(rows)s) AS g (key bigint, index_sha256 text, terms bigint[], length integer)
WHERE r.key = g.key"""

_DELETE = """
UPDATE brain_objects
SET deleted_at = %(now)s, updated_at = %(now)s, revision = revision + 1, terms = '{}', counts = NULL, length = 0
WHERE key = ANY(%(keys)s)"""


@dataclass(frozen=True, slots=True)
class Put:
    """What a put needs.

    Args: place: where; objects: cleaned, each id once; replace_parts: take out parts that are not given again; embeds:
        whether anything makes vectors; now: the time of the write; vectors: those that are made already, of unit length, by
        the hash of their index text, and the model that made them; keep_times: leave alone what differs only in the time of
        its source.
    """

    place: Place
    objects: Sequence[NewObject]
    replace_parts: bool
    embeds: bool
    now: datetime
    vectors: Mapping[bytes, NDArray[np.float16]] = field(default_factory=dict)
    model: str = ""
    keep_times: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of a write: its operation, whether this call made it, messages to publish, and what changed."""

    operation_id: UUID
    new: bool
    messages: tuple[Message, ...] = ()
    written: int = 0
    removed: int = 0


def put(conn: Connection, new: NewOperation, wanted: Put, patience: Patience) -> Written:
    """Store objects under one operation; an object that is there unchanged is left alone.

    Raises: RejectedError as `plan_put` does, or when the operation's key was used with another body; RacedError.
    """
    operation, fresh = operations.create(conn, new)
    return store(conn, new, wanted, patience) if fresh else Written(operation.id, new=False)


def store(conn: Connection, new: NewOperation, wanted: Put, patience: Patience, *, unit: str = "") -> Written:
    """Store objects under an operation that is there already.

    Args: unit: what tells the steps of this write from others of the operation. Raises: as `put`, for the objects.
    """
    ns = wanted.place.namespace_id
    stored = {row.id: row for row in _locked(conn, _LOCK, ns, _ids_and_parents(wanted.objects))}
    known = [n.id for n in wanted.objects if n.parent_id is None and n.id in stored]
    parents = known if wanted.replace_parts else writing.retitled(wanted.objects, stored)
    parts = _locked(conn, _LOCK_PARTS, ns, parents) if parents else []
    plan = writing.plan_put(
        wanted.objects, stored, parts, replace_parts=wanted.replace_parts, keep_times=wanted.keep_times
    )
    unembedded = _write(conn, wanted, plan)
    if wanted.vectors:
        unembedded = brain_vectors.write_known(conn, ns, unembedded, wanted.vectors, wanted.model)
    first_class = [n.id for n in wanted.objects if n.parent_id is None]
    following = _put_steps(unembedded if wanted.embeds else [], first_class, _touched(plan), unit)
    messages = _begin(conn, new, following, patience)
    return Written(new.id, new=True, messages=messages, written=len(plan.changes), removed=len(plan.removed))


def soft_delete(
    conn: Connection,
    new: NewOperation,
    place: Place,
    ids: Sequence[UUID],
    patience: Patience,
    *,
    expected_revision: int | None,
    now: datetime,
) -> Written:
    """Take objects and their parts out of every search; their rows and edges stay, and a put brings them back.

    Raises: RejectedError when one of them is not there, or has not the expected revision.
    """
    operation, fresh = operations.create(conn, new)
    if not fresh:
        return Written(operation.id, new=False)
    rows = [row for row in _locked(conn, _LOCK, place.namespace_id, list(ids)) if not row.deleted]
    if missing := set(ids) - {row.id for row in rows}:
        raise ObjectNotFoundError(f"no object {min(missing)} in this namespace")
    if expected_revision is not None and any(row.revision != expected_revision for row in rows):
        raise RevisionConflictError(f"object {rows[0].id} has revision {rows[0].revision}, not {expected_revision}")
    first_class = [row.id for row in rows if row.parent_id is None]
    named = {row.id for row in rows}
    rows += [row for row in _locked(conn, _LOCK_PARTS, place.namespace_id, first_class) if row.id not in named]
    plan = PutPlan(removed=tuple(rows))
    _remove(conn, plan, now)
    brain_words.replace(conn, place.namespace_id, brain_words.gone(plan.removed), [])
    brain_words.add_statistics(conn, place.namespace_id, writing.statistics(plan))
    messages = _begin(conn, new, _put_steps([], first_class, _touched(plan)), patience)
    return Written(new.id, new=True, messages=messages, removed=len(rows))


def take_out(conn: Connection, place: Place, ids: Sequence[UUID]) -> list[StoredRow]:
    """Lock objects and all their parts, and take their words out of the index and the statistics; returns their rows.

    The rows are the caller's to delete, in the same transaction.
    """
    rows = _locked(conn, _LOCK, place.namespace_id, list(ids))
    named = {row.id for row in rows}
    rows += [row for row in _locked(conn, _LOCK_ALL_PARTS, place.namespace_id, list(named)) if row.id not in named]
    plan = PutPlan(removed=tuple(row for row in rows if not row.deleted))
    brain_words.replace(conn, place.namespace_id, brain_words.gone(plan.removed), [])
    brain_words.add_statistics(conn, place.namespace_id, writing.statistics(plan))
    return rows


def begin_embedding(
    conn: Connection, new: NewOperation, keys: Sequence[int], patience: Patience
) -> tuple[Message, ...]:
    """Write an operation that gives rows their vectors, and its messages."""
    operations.create(conn, new)
    return _begin(conn, new, _embed_steps(keys), patience)


def begin_mentions(conn: Connection, new: NewOperation, ids: Sequence[UUID], patience: Patience) -> tuple[Message, ...]:
    """Write an operation that links texts of objects with what they mention, and its messages."""
    operations.create(conn, new)
    return _begin(conn, new, _mention_steps(ids), patience)


def begin_mirror(conn: Connection, new: NewOperation, edge_keys: Sequence[int], patience: Patience) -> Written:
    """Write the step and message that bring edges to the graph."""
    step = NewStep(BRAIN_MIRROR, {"ids": [], "edges": list(edge_keys)})
    return Written(new.id, new=True, messages=_begin(conn, new, [step], patience), written=len(edge_keys))


def _ids_and_parents(objects: Iterable[NewObject]) -> list[UUID]:
    return list(dict.fromkeys(i for n in objects for i in (n.id, n.parent_id) if i is not None))


def _locked(conn: Connection, sql: str, namespace_id: int, ids: Sequence[UUID]) -> list[StoredRow]:
    rows = conn.execute(sql, {"ns": namespace_id, "ids": list(ids)}).fetchall()
    return [StoredRow(**dict(zip(_NAMES, row, strict=True))) for row in rows]


def _write(conn: Connection, wanted: Put, plan: PutPlan) -> list[int]:
    """Apply a plan; returns the keys of rows that need a vector."""
    state = "pending" if wanted.embeds else "none"
    keys, unembedded = _upsert(conn, wanted, plan.changes, state)
    if plan.reworded:
        rows = [{"key": r.stored.key, **_word_columns(r.words)} for r in plan.reworded]
        conn.execute(_REWORD, {"rows": _json(rows), "vector_state": state})
    if plan.removed:
        _remove(conn, plan, wanted.now)
    ns = wanted.place.namespace_id
    stale = [c.stored for c in plan.changes if c.stored is not None and c.reworded]
    stale += [r.stored for r in plan.reworded]
    fresh = [(keys[c.new.id], c.words) for c in plan.changes if c.reworded]
    fresh += [(r.stored.key, r.words) for r in plan.reworded]
    brain_words.replace(conn, ns, brain_words.gone([*stale, *plan.removed]), fresh)
    brain_words.add_statistics(conn, ns, writing.statistics(plan))
    return unembedded + [r.stored.key for r in plan.reworded] + [row.key for row in plan.unembedded]


def _upsert(conn: Connection, wanted: Put, changes: Sequence[Change], state: str) -> tuple[dict[UUID, int], list[int]]:
    if not changes:
        return {}, []
    values = {
        "ns": wanted.place.namespace_id,
        "bank": wanted.place.bank_id,
        "rows": _json([_row(c) for c in changes]),
        "vector_state": state,
        "now": wanted.now,
    }
    rows = conn.execute(_UPSERT, values).fetchall()
    if len(rows) != len(changes):
        raise RacedError("another writer stored one of these objects first")
    return {row[0]: int(row[1]) for row in rows}, [int(key) for _, key, found in rows if found != "done"]


def _row(change: Change) -> dict[str, Any]:
    new = change.new
    return {
        "id": str(new.id),
        "kind": new.kind,
        "title": new.title,
        "summary": new.summary,
        "content": new.content,
        "content_type": new.content_type,
        "properties": new.properties,
        "parent_id": None if new.parent_id is None else str(new.parent_id),
        "position": new.position,
        "source_time": None if new.source_time is None else new.source_time.isoformat(),
        "revision": 1 if change.stored is None else change.stored.revision + 1,
        "counts": _counts_of_node(change),
        **_word_columns(change.words),
    }


def _counts_of_node(change: Change) -> list[int] | None:
    """How often the object has each of its terms, if its node has all of them."""
    words = change.words
    if change.new.parent_id is not None or len(change.new.content) > brain_mirror.CHARS or words.length > _MOST_COUNTED:
        return None
    return [words.counts[term] for term in sorted(words.counts)]


def _word_columns(words: writing.Words) -> dict[str, Any]:
    return {"index_sha256": words.sha256.hex(), "terms": sorted(words.counts), "length": words.length}


def _json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def _remove(conn: Connection, plan: PutPlan, now: datetime) -> None:
    conn.execute(_DELETE, {"now": now, "keys": [row.key for row in plan.removed]})


def _touched(plan: PutPlan) -> list[UUID]:
    """Whole objects whose texts or names a plan changes."""
    own = [c.new.parent_id or c.new.id for c in plan.changes] + [row.parent_id or row.id for row in plan.removed]
    return list(dict.fromkeys(own))


def _put_steps(
    unembedded: Sequence[int], first_class: Sequence[UUID], touched: Sequence[UUID], unit: str = ""
) -> list[NewStep]:
    """The mirror always runs, since a repeated put repairs a graph that lost something."""
    mirror = NewStep(BRAIN_MIRROR, {"ids": [str(i) for i in first_class], "edges": []}, unit)
    below = unit and f"{unit}/"
    return [*_embed_steps(unembedded, below), mirror, *_mention_steps(touched, below)]


def _mention_steps(touched: Sequence[UUID], unit: str = "") -> list[NewStep]:
    batches = [touched[at : at + MENTION_BATCH] for at in range(0, len(touched), MENTION_BATCH)]
    return [NewStep(BRAIN_MENTION, {"ids": [str(i) for i in some]}, f"{unit}{n}") for n, some in enumerate(batches)]


def _embed_steps(keys: Sequence[int], unit: str = "") -> list[NewStep]:
    batches = [list(keys[at : at + EMBED_BATCH]) for at in range(0, len(keys), EMBED_BATCH)]
    return [NewStep(BRAIN_EMBED, {"keys": batch}, f"{unit}{number}") for number, batch in enumerate(batches)]


def _begin(conn: Connection, new: NewOperation, wanted: Sequence[NewStep], patience: Patience) -> tuple[Message, ...]:
    messages = []
    for stage, retry_for in (
        (BRAIN_EMBED, patience.retry_for),
        (BRAIN_MIRROR, FOR_EVER),
        (BRAIN_MENTION, patience.retry_for),
    ):
        mine = [step for step in wanted if step.stage == stage]
        if not mine:
            continue
        ids = steps.add(conn, new.id, mine, retry_for=retry_for, nudge_after=patience.nudge_after)
        messages += [
            outbox.announce(conn, stage, step_id, operation_id=new.id, trace_id=new.trace_id, delay=patience.grace)
            for step_id in ids
        ]
    return tuple(messages)
