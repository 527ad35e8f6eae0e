"""Whole records as rows: read as they are, and written so that the row is what the record says, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.stages import SUMMARIZE
from isotherm.pipeline.tier.outline import Outline
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.pipeline.tier.store import Position, StoredRecord
from isotherm.storage.postgres import tier_forget, tier_forget_ledgers, tier_move, tier_write
from isotherm.storage.postgres.cold_bodies import original
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_move import Moved
from isotherm.storage.postgres.tier_write import Patience, Placed

_FROM = """
SELECT r.key, r.id, r.content, r.summary, r.tier, r.version, r.role, r.importance, r.categories, r.metadata, r.pinned,
       r.access_count, r.heat_log, r.value_log, r.created_at, r.last_access_at, r.moved_at, r.moved_from, r.content_sha256,
       b.raw_bytes, b.body, o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id"""
_ONE = f"{_FROM} WHERE r.namespace_id = %(ns)s AND r.id = %(id)s"

# Pinned records are few and have an index of their own, the others one in the order of the list.
_LEG = """
    SELECT key, last_access_at, id FROM tier_records
    WHERE namespace_id = %(ns)s AND tier = %(tier)s AND {pinned} AND last_access_at <= %(at)s
        AND (last_access_at < %(at)s OR id > %(id)s)
    ORDER BY last_access_at DESC, id LIMIT %(limit)s"""
_CHOSEN = f"""
WITH chosen AS (
    SELECT key FROM (({_LEG.format(pinned="NOT pinned")}) UNION ALL ({_LEG.format(pinned="pinned")})) AS legs
    ORDER BY last_access_at DESC, id LIMIT %(limit)s
)"""
_IN_ORDER = "JOIN chosen ON chosen.key = r.key ORDER BY r.last_access_at DESC, r.id"
_PAGE = f"{_CHOSEN} {_FROM} {_IN_ORDER}"
# A record that went cold whole has its text where others have a summary, and is found by nothing else.
_OUTLINE = f"""{_CHOSEN}
SELECT r.key, r.id, CASE WHEN r.tier = 1 AND b.record_key IS NULL THEN r.summary END, CASE WHEN b.record_key IS NOT NULL THEN r.summary END, r.tier, r.version, r.role, r.importance,
       r.categories, r.metadata, r.pinned, r.access_count, r.heat_log, r.value_log, r.created_at, r.last_access_at,
       r.moved_at, r.moved_from, r.content_sha256, b.raw_bytes, NULL, NULL, r.size_bytes
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key {_IN_ORDER}"""
_COUNT = "SELECT coalesce(sum(records), 0) FROM tier_depth WHERE namespace_id = %s AND tier = %s"

_LIFE = """
UPDATE tier_records SET version = %(version)s, pinned = %(pinned)s, access_count = %(accesses)s, heat_log = %(heat)s,
    value_log = %(value)s, created_at = %(created)s, last_access_at = %(accessed)s, moved_at = %(moved)s,
    moved_from = %(from)s
WHERE key = %(key)s"""
_MAKE_WHOLE = """
WITH emptied AS (DELETE FROM cold_bodies WHERE record_key = %(key)s)
UPDATE tier_records SET summary = %(content)s WHERE key = %(key)s"""
_ERASE_ANSWERS = """
UPDATE operation_steps AS s SET answer = '{"summaries": {}, "refused": {}}' FROM operations AS o
WHERE o.id = s.operation_id AND o.namespace_id = %(ns)s AND s.stage = %(stage)s AND s.answer IS NOT NULL
    AND s.state IN ('done', 'failed', 'dead', 'cancelled')"""
_UNPIN = "UPDATE tier_records SET pinned = false WHERE key = %s"

_NAMESPACES = """
SELECT n.tenant, n.scope, n.agent, n.session, n.run FROM namespaces AS n
WHERE EXISTS (SELECT 1 FROM tier_records AS r WHERE r.namespace_id = n.id) ORDER BY n.id"""


class ChangedError(Exception):
    """Another writer made or changed the row; nothing of this transaction may stay."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record as its row has it.

    Args: raw_bytes: None when it has no body beside the row; body: compressed, None too when it is an object of the blob
        store, which `object_key` names then.
    """

    key: int
    id: str
    content: str | None
    summary: str | None
    tier: int
    version: int
    role: str | None
    importance: float
    categories: list[str]
    metadata: dict[str, Any]
    pinned: bool
    access_count: int
    heat_log: float | None
    value_log: float
    created_at: datetime
    last_access_at: datetime
    moved_at: datetime | None
    moved_from: int | None
    sha256: bytes
    raw_bytes: int | None
    body: bytes | None
    object_key: str | None

    @property
    def position(self) -> Position:
        """Where it stands in the lists of its tier."""
        return Position(self.last_access_at, self.id)

    def record(self, fetched: bytes | None = None) -> StoredRecord | None:
        """The record with its text, None when what is stored of that is missing or damaged.

        Args: fetched: the bytes of its object.
        """
        text = self._text(fetched)
        return None if text is None else self._with(text)

    def outlined(self) -> StoredRecord:
        """The record with whatever text was read with its row."""
        return self._with(self.content or "")

    def equals(self, record: StoredRecord) -> bool:
        """Whether this is the record, told without reading its body."""
        return bytes(self.sha256) == record.content_sha256 and self._with(record.content) == record

    def found_by(self, summary: str | None) -> bool:
        """Whether the cold row has this summary, None meaning that its text is whole."""
        return (None if self.raw_bytes is None else self.summary) == summary

    def _text(self, fetched: bytes | None) -> str | None:
        if self.content is not None:
            return self.content
        body = fetched if self.object_key is not None else self.body
        if body is None and self.raw_bytes is not None:
            return None
        return original(self.summary, body, self.raw_bytes, self.sha256)

    def _with(self, text: str) -> StoredRecord:
        return StoredRecord(
            id=self.id,
            content=text,
            summary=None if self.raw_bytes is None else self.summary,
            tier=Tier.from_rank(self.tier),
            version=self.version,
            role=self.role,
            importance=self.importance,
            categories=tuple(self.categories),
            metadata=self.metadata,
            pinned=self.pinned,
            access_count=self.access_count,
            heat_log=self.heat_log,
            value_log=self.value_log,
            created_at=self.created_at,
            last_access_at=self.last_access_at,
            moved_at=self.moved_at,
            moved_from=None if self.moved_from is None else Tier.from_rank(self.moved_from),
        )


@dataclass(frozen=True, slots=True)
class Writing:
    """What a write belongs to: its operation, its place, and the steps that follow.

    Args: anew: the body of a cold row is written also when it should be what it is.
    """

    operation_id: UUID
    place: Place
    patience: Patience
    embeds: bool
    anew: bool = False


def get(conn: Connection, place: Place, record_id: str) -> Row | None:
    """The row of a record."""
    row = conn.execute(_ONE, {"ns": place.namespace_id, "id": record_id}).fetchone()
    return Row(*row) if row else None


def lock(conn: Connection, place: Place, record_id: str) -> Row | None:
    """The row of a record, which nobody else changes before this transaction ends."""
    sql = f"{_ONE} FOR NO KEY UPDATE OF r"
    row = conn.execute(sql, {"ns": place.namespace_id, "id": record_id}).fetchone()
    return Row(*row) if row else None


def page(conn: Connection, place: Place, tier: Tier, limit: int, after: Position | None) -> list[Row]:
    """Rows of a tier, the newest access first, ties by id."""
    return [Row(*row) for row in conn.execute(_PAGE, _page_values(place, tier, limit, after)).fetchall()]


def outline(conn: Connection, place: Place, tier: Tier, limit: int, after: Position | None) -> list[Outline]:
    """The page of a tier without texts, but for records that went cold whole, which are found by theirs."""
    rows = conn.execute(_OUTLINE, _page_values(place, tier, limit, after)).fetchall()
    pairs = [(Row(*row[:-1]), int(row[-1])) for row in rows]
    return [Outline(row.outlined(), size, bytes(row.sha256).hex()) for row, size in pairs]


def _page_values(place: Place, tier: Tier, limit: int, after: Position | None) -> dict[str, Any]:
    return {
        "ns": place.namespace_id,
        "tier": tier.rank,
        "at": "infinity" if after is None else after.last_access_at,
        "id": "" if after is None else after.id,
        "limit": limit,
    }


def count(conn: Connection, place: Place, tier: Tier) -> int:
    """How many records a tier has."""
    row = conn.execute(_COUNT, (place.namespace_id, tier.rank)).fetchone()
    return int(row[0]) if row else 0


def namespaces(conn: Connection) -> list[Namespace]:
    """Every namespace that has records."""
    rows = conn.execute(_NAMESPACES).fetchall()
    return [Namespace(tenant=t, scope=scope, agent=a, session=s, run=run) for t, scope, a, s, run in rows]


def delete(conn: Connection, row: Row) -> bool:
    """Remove a locked row and all that hangs on it."""
    conn.execute(_UNPIN, (row.key,))
    gone = Move(row.key, row.version, Tier.from_rank(row.tier), None, Reason.CAPACITY)
    return bool(tier_move.shift(conn, UUID(int=0), [gone]).moves)


def erase(conn: Connection, place: Place, keys: Sequence[int], patience: Patience) -> None:
    """Take records that are gone out of what steps were told and have answered; summaries by a model are among that."""
    tier_forget_ledgers.scrub(conn, [place.namespace_id], [place.bank_id], keys, patience)


def erase_answers(conn: Connection, place: Place) -> None:
    """Forget what models have answered about records that went before, once none of the namespace is left."""
    conn.execute(_ERASE_ANSWERS, {"ns": place.namespace_id, "stage": SUMMARIZE})


def erase_some(conn: Connection, place: Place, limit: int, patience: Patience) -> int:
    """Remove records of a namespace, at most `limit`, and erase them; returns how many."""
    keys = tier_forget.lock_of(conn, [place.namespace_id], limit)
    if keys:
        tier_forget.delete_records(conn, keys)
        erase(conn, place, keys, patience)
    return len(keys)


def write(conn: Connection, writing: Writing, row: Row | None, record: StoredRecord) -> StoredRecord:
    """Make a locked row what the record says, or make a row; returns the record.

    Args: record: cleaned, with its new version.
    Raises: ChangedError when somebody else made the row meanwhile.
    """
    at = _remember(conn, writing, row, record) if row is None or _differs(row, record) else _At(row)
    stays = record.tier is Tier.COLD and row is not None and row.found_by(record.summary) and not writing.anew
    if at.tier is not Tier.COLD or not stays:
        _step(conn, writing, at, record)
    conn.execute(_LIFE, _life(at.key, record))
    return replace(record, moved_reason=None)


def _step(conn: Connection, writing: Writing, at: _At, record: StoredRecord) -> None:
    """Move a row tier by tier, as passes do."""
    if at.tier is Tier.COLD:
        at = _restore(conn, writing, at, record)
    above = Tier.WARM if record.tier is Tier.COLD else record.tier
    if at.tier is not above:
        at = _shift(conn, writing, at, above, record)
    if record.tier is Tier.COLD:
        _archive(conn, writing, at, record)


class _At:
    """Where a row stands within the transaction."""

    def __init__(self, row: Row) -> None:
        self.key, self.version, self.tier = row.key, row.version, Tier.from_rank(row.tier)

    def move(self, target: Tier, record: StoredRecord) -> Move:
        # Without a reason no pass has moved it: somebody has stored it so.
        return Move(self.key, self.version, self.tier, target, record.moved_reason or Reason.RESTORE)

    def after(self, move: Move) -> _At:
        self.version, self.tier = move.version + 1, move.target or self.tier
        return self


def _remember(conn: Connection, writing: Writing, row: Row | None, record: StoredRecord) -> _At:
    """Write text and metadata as producers do; a new text of a cold record makes it warm."""
    known = Tier.from_rank(row.tier) if row else record.tier
    start = Tier.WARM if known is Tier.COLD else known
    given = NewRecord(
        id=record.id,
        content=record.content,
        created_at=record.created_at,
        role=record.role,
        importance=record.importance,
        categories=record.categories,
        metadata=record.metadata,
        tier=start,
        pinned=record.pinned,
    )
    new = NewOperation(
        writing.operation_id,
        tier_write.KIND,
        uuid4(),
        bank_id=writing.place.bank_id,
        namespace_id=writing.place.namespace_id,
    )
    done = tier_write.remember(
        conn, new, tier_write.columns([Placed(writing.place, given)]), writing.patience, embed=writing.embeds
    )
    found = get(conn, writing.place, record.id)
    if found is None or (row is None and [w.version for w in done.rows or ()] != [1]):
        raise ChangedError
    return _At(found)


def _restore(conn: Connection, writing: Writing, at: _At, record: StoredRecord) -> _At:
    """Bring a cold row back; its text is at hand, so its body need not be read, wherever and whatever it is."""
    conn.execute(_MAKE_WHOLE, {"key": at.key, "content": record.content})
    move = at.move(Tier.WARM, record)
    _moved(tier_move.restore(conn, writing.operation_id, [move]))
    return at.after(move)


def _shift(conn: Connection, writing: Writing, at: _At, target: Tier, record: StoredRecord) -> _At:
    move = at.move(target, record)
    _moved(tier_move.shift(conn, writing.operation_id, [move]))
    return at.after(move)


def _archive(conn: Connection, writing: Writing, at: _At, record: StoredRecord) -> None:
    whole = len(record.content.encode()) + 1 if record.summary is None else 0
    summaries = {} if record.summary is None else {at.key: record.summary}
    move = at.move(Tier.COLD, record)
    _moved(tier_move.archive(conn, writing.operation_id, [move], summaries, min_bytes=whole))


def _moved(outcome: Moved) -> None:
    if not outcome.moves:
        raise ChangedError


def _differs(row: Row, record: StoredRecord) -> bool:
    """Whether anything differs that `remember` writes."""
    stored = (bytes(row.sha256), row.role, row.importance, tuple(row.categories), row.metadata)
    return stored != (
        record.content_sha256,
        record.role,
        record.importance,
        record.categories,
        dict(record.metadata),
    )


def _life(key: int, record: StoredRecord) -> dict[str, Any]:
    return {
        "key": key,
        "version": record.version,
        "pinned": record.pinned,
        "accesses": record.access_count,
        "heat": record.heat_log,
        "value": record.value_log,
        "created": record.created_at,
        "accessed": record.last_access_at,
        "moved": record.moved_at,
        "from": record.moved_from.rank if record.moved_from else None,
    }
