"""Changes that people make: settling contradictions, taking back merges and archivings; and the log of all changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank
from isotherm.pipeline.interest.candidates import normalize
from isotherm.pipeline.interest.v1_3 import BY_HAND, point_id
from isotherm.storage.postgres import interest_write, namespaces
from isotherm.storage.postgres.interest_history import terms_of
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection

_LOG = """
SELECT l.id, l.created_at, l.point_id, p.name, l.action, l.operation_id, l.detail,
       m.log_id IS NOT NULL AND m.undone_at IS NULL OR (l.action = 'archive' AND p.status = 'archived')
FROM interest_log AS l JOIN interest_points AS p ON p.id = l.point_id
LEFT JOIN interest_merges AS m ON m.log_id = l.id
WHERE {scope} AND (%(point)s::uuid IS NULL OR l.point_id = %(point)s)
ORDER BY l.id DESC LIMIT %(limit)s OFFSET %(offset)s"""

_SETTLE = """
UPDATE interest_contradictions AS c SET status = %(status)s, resolved_at = CASE WHEN %(status)s = 'resolved' THEN now() END,
       current_side = CASE WHEN %(side)s::text IS NULL THEN current_side ELSE %(side)s END,
       current_because = CASE WHEN %(side)s::text IS NULL THEN current_because ELSE %(because)s END
WHERE {scope} AND c.id = %(id)s AND c.status <> %(status)s RETURNING c.left_id, c.right_id, c.bank_id"""
_EXISTS = "SELECT 1 FROM interest_contradictions AS c WHERE {scope} AND c.id = %(id)s"

# One run writes a bank's interests at a time; so does whoever changes them by hand. The bank is locked before its points.
_HOLD = "SELECT 1 FROM interest_banks AS b WHERE {scope} FOR UPDATE"
_RAISE = "UPDATE interest_banks SET version = version + 1 WHERE bank_id = %s"

_ENTRY = """
SELECT l.bank_id, l.point_id, l.action, p.status, m.words, m.before, m.evidence, m.undone_at, m.log_id
FROM interest_log AS l JOIN interest_points AS p ON p.id = l.point_id LEFT JOIN interest_merges AS m ON m.log_id = l.id
WHERE {scope} AND l.id = %(id)s FOR UPDATE OF p"""

_STILL = """
SELECT e.id, e.event_time FROM interest_evidence AS e
WHERE e.id = ANY(%(evidence)s) AND e.point_id = %(point)s AND e.bank_id = %(bank)s ORDER BY e.event_time, e.id"""
_OTHERS = "SELECT 1 FROM interest_evidence WHERE point_id = %(point)s AND id <> ALL(%(evidence)s) LIMIT 1"
_USED = "SELECT count(*) FROM interest_points WHERE bank_id = %s AND canonical = %s"
_SPLIT = """
INSERT INTO interest_points (
    id, bank_id, name, canonical, revival, summary, keywords, kind, importance, confidence, reliability, status, subjective,
    first_seen_at, last_seen_at, seen_count, terms)
VALUES (%(id)s, %(bank)s, %(name)s, %(canonical)s, %(revival)s, %(summary)s, %(keywords)s, %(kind)s, %(importance)s,
        %(confidence)s, 0, 'active', %(subjective)s, %(first)s, %(last)s, 0, %(terms)s)"""
_MOVE = "UPDATE interest_evidence SET point_id = %(to)s WHERE id = ANY(%(evidence)s) AND point_id = %(point)s"
# Words that were changed once more since then stay as they are.
_RESTORE = """
UPDATE interest_points SET name = %(name)s, summary = %(summary)s, keywords = %(keywords)s, confidence = %(confidence)s,
    importance = %(importance)s, terms = %(terms)s, embedding = NULL, embedding_model = NULL, embedding_dim = NULL,
    placed_at = NULL, version = version + 1, updated_at = now()
WHERE id = %(point)s AND name = %(since)s"""
_UNDONE = "UPDATE interest_merges SET undone_at = now() WHERE log_id = %s"
_REVIVE = """
UPDATE interest_points SET status = 'active', ttl_days = NULL, look_at = now(), placed_at = NULL, version = version + 1, updated_at = now()
WHERE id = %s AND status = 'archived'"""
_CUT = "DELETE FROM interest_edges WHERE source_id = %s AND kind = 'sequel' RETURNING target_id"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One change. Args: detail: ids, rules and counts; undoable: whether `undo` can take it back now."""

    id: int
    at: datetime
    point_id: UUID
    name: str
    action: str
    operation_id: UUID | None
    detail: dict[str, Any]
    undoable: bool


@dataclass(frozen=True, slots=True)
class Undone:
    """What was taken back. Args: point: that was changed; made: the point that became one of its own again."""

    point: UUID
    made: UUID | None = None


def entries(conn: Connection, bank: Bank, *, limit: int, offset: int, point: UUID | None = None) -> list[LogEntry]:
    """The log of a bank, newest first; of one point, or of all."""
    scope, params = predicate(Scope(bank=bank), "l")
    rows = conn.execute(
        _LOG.format(scope=scope), {**params, "limit": limit, "offset": offset, "point": point}
    ).fetchall()
    return [LogEntry(*row) for row in rows]


def settle(conn: Connection, bank: Bank, contradiction: UUID, *, status: str, side: str | None = None) -> bool:
    """Resolve a contradiction or open it again; False when it was so already.

    Args: status: resolved or open; side: left or right, the one that counts from now on; None leaves it to the rules.
    Raises: RejectedError when the bank has no such contradiction.
    """
    _hold(conn, bank)
    scope, params = predicate(Scope(bank=bank), "c")
    values = {**params, "id": contradiction, "status": status, "side": side, "because": BY_HAND}
    row = conn.execute(_SETTLE.format(scope=scope), values).fetchone()
    if row is None:
        if conn.execute(_EXISTS.format(scope=scope), {**params, "id": contradiction}).fetchone() is None:
            raise RejectedError(f"contradiction {contradiction}: not known here")
        return False
    left, right, bank_id = row
    if status == "open":
        interest_write.stand(conn, bank_id, [left, right])
    action = "resolve" if status == "resolved" else "reopen"
    detail = {"contradiction": str(contradiction), "with": str(right), **({"side": side} if side else {})}
    interest_write.log(conn, left, action, detail, bank=bank_id, operation=None)
    conn.execute(_RAISE, (bank_id,))
    return True


def undo(conn: Connection, bank: Bank, entry_id: int) -> Undone:
    """Take back an entry of the log: what was merged becomes a point of its own, an archived point comes back.

    Nothing that was said is lost: its evidence goes with it. Vectors are made again in the background.
    Raises: RejectedError for an entry that is not known, not of that kind, or undone already.
    """
    _hold(conn, bank)
    scope, params = predicate(Scope(bank=bank), "l")
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_ENTRY.format(scope=scope), {**params, "id": entry_id}).fetchone()
    if row is None:
        raise RejectedError(f"entry {entry_id} of the log: not known here")
    if row["action"] == "archive":
        done = _revive(conn, row, entry_id)
    elif row["log_id"] is not None and row["undone_at"] is None:
        done = _split(conn, row, entry_id)
    else:
        raise RejectedError(f"entry {entry_id} of the log: not a merge or an archiving that can be taken back")
    conn.execute(_RAISE, (row["bank_id"],))
    return done


def _hold(conn: Connection, bank: Bank) -> None:
    scope, params = predicate(Scope(bank=bank), "b")
    conn.execute(_HOLD.format(scope=scope), params)


def _revive(conn: Connection, row: dict[str, Any], entry_id: int) -> Undone:
    point = row["point_id"]
    if conn.execute(_REVIVE, (point,)).rowcount != 1:
        raise RejectedError(f"entry {entry_id} of the log: its point is not archived any more")
    cut = [
        {"action": "remove", "source": str(point), "target": str(target), "kind": "sequel"}
        for (target,) in conn.execute(_CUT, (point,)).fetchall()
    ]
    interest_write.log(conn, point, "undo", {"of": entry_id, "edges": cut}, bank=row["bank_id"], operation=None)
    return Undone(point)


def _split(conn: Connection, row: dict[str, Any], entry_id: int) -> Undone:
    bank_id, point, words = row["bank_id"], row["point_id"], row["words"]
    values = {"bank": bank_id, "point": point, "evidence": row["evidence"]}
    said = conn.execute(_STILL, values).fetchall()
    values["evidence"] = [found for found, _ in said]
    made = None
    # Without anything else that was said for it the point would be left without evidence: then only its words go back.
    if said and conn.execute(_OTHERS, values).fetchone():
        made = _made(conn, bank_id, words, said[0][1], said[-1][1])
        conn.execute(_MOVE, {**values, "to": made})
    if row["before"] is not None:
        before = {**row["before"], "point": point, "since": words["name"]}
        terms = terms_of(before["name"], before["summary"], before["keywords"])
        conn.execute(_RESTORE, {**before, "terms": terms})
    changed: Sequence[UUID] = [point, *([made] if made else [])]
    interest_write.count(conn, bank_id, changed)
    interest_write.stand(conn, bank_id, changed)
    conn.execute(_UNDONE, (entry_id,))
    detail = {"of": entry_id, **({"made": str(made)} if made else {})}
    interest_write.log(conn, point, "undo", detail, bank=bank_id, operation=None)
    return Undone(point, made)


def _made(conn: Connection, bank_id: int, words: dict[str, Any], first: datetime, last: datetime) -> UUID:
    canonical = normalize(words["name"])
    row = conn.execute(_USED, (bank_id, canonical)).fetchone()
    revival = int(row[0]) if row else 0
    made = point_id(namespaces.bank_of(conn, bank_id).key, canonical, revival)
    terms = terms_of(words["name"], words["summary"], words["keywords"])
    values = {"id": made, "bank": bank_id, "canonical": canonical, "revival": revival, "first": first, "last": last}
    conn.execute(_SPLIT, {**words, **values, "terms": terms})
    return made
