"""Records changed by their caller: a compare-and-swap on the version, and pins. What was found by the old text is found anew."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from isotherm.pipeline.errors import RejectedError, VersionConflictError
from isotherm.pipeline.stages import INDEX, RESTORE, TIER_EMBED
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.storage.postgres import operations, outbox, steps, tier_index, tier_move
from isotherm.storage.postgres.namespaces import EACH_ID, Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.postgres.tier_write import Patience

_LOCK = """
SELECT r.key, r.version, r.tier, r.summary, r.content_sha256, r.metadata, r.role, r.categories, r.importance, r.heat_log,
       r.value_log, r.last_access_at
FROM tier_records AS r WHERE r.namespace_id = %(ns)s AND r.id = %(id)s FOR NO KEY UPDATE"""

_UPDATE = """
WITH edited AS (
    UPDATE tier_records AS r SET
        content = coalesce(%(content)s, r.content), content_sha256 = coalesce(%(sha256)s, r.content_sha256),
        size_bytes = coalesce(%(size)s, r.size_bytes), role = %(role)s, categories = %(categories)s,
        metadata = %(metadata)s, importance = %(importance)s, value_log = %(value_log)s, last_access_at = %(accessed)s,
        summary = CASE WHEN %(lifted)s THEN NULL ELSE r.summary END,
        tier = CASE WHEN %(lifted)s THEN 2 ELSE r.tier END,
        moved_at = CASE WHEN %(lifted)s THEN now() ELSE r.moved_at END,
        moved_from = CASE WHEN %(lifted)s THEN r.tier ELSE r.moved_from END,
        indexed = r.indexed AND NOT %(reworded)s,
        vector_state = CASE WHEN %(reworded)s THEN %(vector_state)s ELSE r.vector_state END,
        version = r.version + 1
    WHERE r.key = %(key)s RETURNING r.key, r.namespace_id, r.version, r.vector_state
), unlike AS (
    DELETE FROM tier_vectors AS v USING edited AS e WHERE v.record_key = e.key AND %(reworded)s
), emptied AS (
    DELETE FROM cold_bodies AS b USING edited AS e WHERE b.record_key = e.key AND %(lifted)s
), logged AS (
    INSERT INTO tier_moves (record_key, namespace_id, operation_id, source, target, reason)
    SELECT key, namespace_id, %(operation)s, 1, 2, 'restore' FROM edited WHERE %(lifted)s
)
SELECT version, vector_state FROM edited"""

_PIN = f"""
WITH mine AS (
    SELECT r.key FROM {EACH_ID} CROSS JOIN LATERAL (
        SELECT r.key FROM tier_records AS r WHERE r.namespace_id = %(ns)s AND r.id = g.id AND r.pinned <> %(pinned)s
        LIMIT 1 FOR NO KEY UPDATE) AS r
)
UPDATE tier_records AS r SET pinned = %(pinned)s, version = r.version + 1 FROM mine AS m WHERE r.key = m.key
RETURNING r.key, r.version, r.tier"""

_KNOWN = f"""
SELECT count(*) FROM {EACH_ID} CROSS JOIN LATERAL (
    SELECT 1 FROM tier_records AS r WHERE r.namespace_id = %(ns)s AND r.id = g.id LIMIT 1) AS r"""
_PINNED_OF = """
SELECT coalesce(max(n), 0) FROM (
    SELECT count(*) AS n FROM tier_records WHERE namespace_id = ANY(%(spaces)s) AND pinned GROUP BY namespace_id) AS counted"""
# No row is locked for it: whoever indexes records locks these before their namespace, and who pins comes from the other side.
_HOLD = """
SELECT pg_advisory_xact_lock(352194132, n) FROM (
    SELECT DISTINCT hashint8(id) AS n FROM unnest(%s::bigint[]) AS g (id) ORDER BY n) AS each"""


@dataclass(frozen=True, slots=True)
class Edited:
    """Outcome of a change of one record.

    Args: new: False when the call repeated an earlier one, and then nothing else is known; version: of the record now;
    written: whether anything differs from before; reworded: it is found by another text; lifted: it came back from cold.
    """

    operation_id: UUID
    new: bool = True
    version: int = 0
    written: bool = False
    reworded: bool = False
    lifted: bool = False


@dataclass(frozen=True, slots=True)
class Pinned:
    """Outcome of a pin or its removal: how many records changed, and how many of them come back from cold for it."""

    operation_id: UUID
    new: bool = True
    records: int = 0
    restoring: int = 0


@dataclass(frozen=True, slots=True)
class _Row:
    """A locked record."""

    key: int
    version: int
    tier: int
    summary: str | None
    sha256: bytes
    metadata: dict[str, Any]
    role: str | None
    categories: list[str]
    importance: float
    heat_log: float | None
    value_log: float
    last_access_at: datetime

    @property
    def found_by_summary(self) -> bool:
        """Whether it is cold with a body of its own, so that another text for searching changes nothing yet."""
        return self.tier == Tier.COLD.rank and hashlib.sha256((self.summary or "").encode()).digest() != self.sha256


def update(
    conn: Connection,
    new: NewOperation,
    record_id: str,
    edit: RecordEdit,
    patience: Patience,
    *,
    expected_version: int | None,
    embed: bool,
    now: datetime,
) -> tuple[Edited, list[Message]]:
    """Change one record of the operation's namespace, and write the steps that index and embed what changed.

    A cold record that gets another text is warm afterwards. Other changes leave it where it is.

    Args: edit: cleaned; expected_version: the version the caller saw, None for whatever it has; embed: new texts get a
    vector; now: when an access counts as made.
    Raises: VersionConflictError; RejectedError when there is no such record, or the key was used with another body.
    """
    operation, fresh = operations.create(conn, new)
    if not fresh:
        return Edited(operation.id, new=False), []
    found = conn.execute(_LOCK, {"ns": new.namespace_id, "id": record_id}).fetchone()
    if found is None:
        raise RejectedError("no such record in this namespace")
    row = _Row(found[0], found[1], found[2], found[3], bytes(found[4]), *found[5:])
    if expected_version is not None and expected_version != row.version:
        raise VersionConflictError(row.version, expected_version)
    values = _values(row, edit, now)
    done = Edited(new.id, version=row.version)
    state = "none"
    if values is not None:
        values |= {"operation": new.id, "vector_state": "pending" if embed else "none"}
        answered = conn.execute(_UPDATE, values).fetchone()
        assert answered is not None  # noqa: S101 - the row is locked
        version, state = answered
        done = Edited(new.id, True, int(version), True, values["reworded"], values["lifted"])
    if done.lifted and new.namespace_id is not None:
        tier_index.mark_due(conn, [new.namespace_id])
    wanted = [INDEX, TIER_EMBED] if done.reworded and state == "pending" else [INDEX]
    return done, _begin(conn, new, [NewStep(stage, {"keys": [row.key]}) for stage in wanted], patience)


def _values(row: _Row, edit: RecordEdit, now: datetime) -> dict[str, Any] | None:
    """Parameters of the update, None when it would change nothing."""
    raw = None if edit.content is None else edit.content.encode()
    sha256 = None if raw is None else hashlib.sha256(raw).digest()
    rewritten = sha256 is not None and sha256 != row.sha256
    importance = row.importance if edit.importance is None else edit.importance
    metadata = row.metadata if edit.metadata is None else dict(edit.metadata)
    chosen: dict[str, Any] = {
        "role": row.role if edit.role is None else edit.role,
        "categories": row.categories if edit.categories is None else list(edit.categories),
        "metadata": metadata,
        "importance": importance,
    }
    before = {name: getattr(row, name) for name in chosen}
    if not rewritten and chosen == before:
        return None
    accessed = max(row.last_access_at, now) if rewritten else row.last_access_at
    renamed = metadata.get("searchable") != row.metadata.get("searchable")
    weighed = rewritten or importance != row.importance
    value = heat.combine(heat.value_log(importance, accessed), row.heat_log) if weighed else row.value_log
    return {
        **chosen,
        "metadata": Jsonb(metadata),
        "key": row.key,
        "content": edit.content if rewritten else None,
        "sha256": sha256 if rewritten else None,
        "size": len(raw) if rewritten and raw is not None else None,
        "value_log": value,
        "accessed": accessed,
        "lifted": rewritten and row.tier == Tier.COLD.rank,
        "reworded": rewritten or (renamed and not row.found_by_summary),
    }


def pin(
    conn: Connection, new: NewOperation, place: Place, ids: Sequence[str], patience: Patience, *, most: int | None
) -> tuple[Pinned, list[Message]]:
    """Keep records at warm or hotter; a step brings back those that are cold.

    Args: most: how many records of the namespace may be pinned, None for any number.
    Raises: RejectedError when the namespace lacks one of the ids, too many would be pinned, or the key was used with
    another body.
    """
    return _set_pinned(conn, new, place, ids, patience, pinned=True, most=most)


def unpin(
    conn: Connection, new: NewOperation, place: Place, ids: Sequence[str], patience: Patience
) -> tuple[Pinned, list[Message]]:
    """Let passes move records again. Raises: as `pin`."""
    return _set_pinned(conn, new, place, ids, patience, pinned=False, most=None)


def _set_pinned(
    conn: Connection,
    new: NewOperation,
    place: Place,
    ids: Sequence[str],
    patience: Patience,
    *,
    pinned: bool,
    most: int | None,
) -> tuple[Pinned, list[Message]]:
    operation, fresh = operations.create(conn, new)
    if not fresh:
        return Pinned(operation.id, new=False), []
    hold(conn, [place.namespace_id])
    values = {"ns": place.namespace_id, "ids": list(ids), "pinned": pinned}
    if missing := len(set(ids)) - _count(conn, _KNOWN, values):
        raise RejectedError(f"{missing} of {len(set(ids))} records are not in this namespace")
    rows = conn.execute(_PIN, values).fetchall()
    if most is not None and rows:
        check_pins(conn, [place.namespace_id], most)
    moves = [
        Move(int(key), int(version), Tier.COLD, Tier.WARM, Reason.PIN)
        for key, version, tier in rows
        if pinned and tier == Tier.COLD.rank
    ]
    # Should such a record change before its step comes, the next pass lifts it.
    tier_index.mark_due(conn, [place.namespace_id])
    messages = _begin(conn, new, [NewStep(RESTORE, {"moves": tier_move.encode(moves)})], patience)
    return Pinned(new.id, records=len(rows), restoring=len(moves)), messages


def hold(conn: Connection, namespace_ids: Sequence[int]) -> None:
    """Let nobody else pin records of these namespaces before this transaction ends: two must not both see room for one more."""
    conn.execute(_HOLD, (list(namespace_ids),))


def check_pins(conn: Connection, namespace_ids: Sequence[int], most: int) -> None:
    """Look at what a transaction has pinned in namespaces that it holds. Raises: RejectedError when it is too much for one."""
    if _count(conn, _PINNED_OF, {"spaces": list(namespace_ids)}) > most:
        raise RejectedError(f"no more than {most} records of a namespace can be pinned")


def _count(conn: Connection, sql: str, values: dict[str, Any]) -> int:
    row = conn.execute(sql, values).fetchone()
    return int(row[0]) if row else 0


def _begin(conn: Connection, new: NewOperation, wanted: list[NewStep], patience: Patience) -> list[Message]:
    ids = steps.add(conn, new.id, wanted, retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    return [
        outbox.announce(conn, one.stage, step_id, operation_id=new.id, trace_id=new.trace_id, delay=patience.grace)
        for step_id, one in zip(ids, wanted, strict=True)
    ]
