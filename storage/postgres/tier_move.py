"""Moves between tiers: each a compare-and-swap of a row's tier and version, logged with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.records import Reason, Tier, searchable_text
from isotherm.storage.postgres import arrays, cold_blobs, cold_vectors, tier_held, tier_index
from isotherm.storage.postgres.cold_blobs import Blob
from isotherm.storage.postgres.cold_bodies import StoredBody, compressed
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_held import Patience
from isotherm.storage.postgres.tier_index import Unindexed

_NO_SUMMARY = "no summary"

# Every statement that locks several records does so by namespace and id, so that two of them never wait in a circle.
_GIVEN = "unnest(%(keys)s::bigint[], %(versions)s::bigint[], %(sources)s::smallint[]) AS m (key, version, source)"

_LOCK = f"""
SELECT r.key, r.content, r.summary, r.metadata, r.content_sha256, b.body, b.raw_bytes, o.object_key
FROM tier_records AS r JOIN {_GIVEN} ON m.key = r.key AND m.version = r.version AND m.source = r.tier
LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r"""

_SHIFT = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(versions)s::bigint[], %(sources)s::smallint[], %(targets)s::smallint[],
                         %(reasons)s::text[], %(owners)s::integer[]) AS m (key, version, source, target, reason, owner)
), mine AS (
    SELECT m.* FROM given AS m JOIN tier_records AS r ON r.key = m.key AND r.version = m.version AND r.tier = m.source
    ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r
), moved AS (
    UPDATE tier_records AS r
    SET tier = m.target, version = r.version + 1, moved_at = now(), moved_from = m.source
    FROM mine AS m WHERE r.key = m.key
    RETURNING r.key, r.namespace_id, m.source, m.target, m.reason, m.owner
), logged AS (
    INSERT INTO tier_moves (record_key, namespace_id, operation_id, source, target, reason)
    SELECT key, namespace_id, (%(operations)s::uuid[])[owner], source, target, reason FROM moved
)
SELECT key FROM moved ORDER BY key"""

_EVICT = f"""
WITH mine AS (
    SELECT r.key, r.bank_id, r.terms, r.namespace_id
    FROM tier_records AS r JOIN {_GIVEN} ON m.key = r.key AND m.version = r.version AND m.source = r.tier
    WHERE NOT r.pinned ORDER BY r.namespace_id, r.id FOR UPDATE OF r
), words AS (
    DELETE FROM tier_postings AS p USING (
        SELECT m.bank_id, u.term, m.namespace_id, m.key FROM mine AS m, unnest(m.terms) AS u (term)) AS d
    WHERE (p.bank_id, p.term, p.namespace_id, p.record_key) = (d.bank_id, d.term, d.namespace_id, d.key)
)
DELETE FROM tier_records AS r USING mine AS m WHERE r.key = m.key
RETURNING r.key, r.namespace_id, r.id, EXISTS (
    SELECT 1 FROM operations AS o WHERE o.id = %(operation)s AND o.namespace_id = r.namespace_id)"""

_ARCHIVE = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(summaries)s::text[]) AS g (key, summary)
), bodies AS (
    INSERT INTO cold_bodies (record_key, body, blob_id, codec, raw_bytes)
    SELECT b.key, b.body, b.blob, 'zstd', b.raw
    FROM unnest(%(body_keys)s::bigint[], %(bodies)s::bytea[], %(blobs)s::bigint[], %(raw)s::integer[])
        AS b (key, body, blob, raw)
    ON CONFLICT (record_key) DO UPDATE SET body = excluded.body, blob_id = excluded.blob_id, codec = excluded.codec,
        raw_bytes = excluded.raw_bytes
)
UPDATE tier_records AS r SET content = NULL, summary = g.summary, indexed = false, tier = 1, version = r.version + 1,
    moved_at = now(), moved_from = r.tier
FROM given AS g WHERE r.key = g.key"""

_RESTORE = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(contents)s::text[]) AS g (key, content)
), emptied AS (
    DELETE FROM cold_bodies AS b USING given AS g WHERE b.record_key = g.key
)
UPDATE tier_records AS r SET content = g.content, summary = NULL, indexed = false, tier = 2, version = r.version + 1,
    moved_at = now(), moved_from = r.tier,
    last_access_at = CASE WHEN %(explicit)s THEN greatest(r.last_access_at, now()) ELSE r.last_access_at END
FROM given AS g WHERE r.key = g.key"""

_LOG = """
INSERT INTO tier_moves (record_key, namespace_id, operation_id, source, target, reason)
SELECT r.key, r.namespace_id, %(operation)s, m.source, m.target, m.reason
FROM unnest(%(keys)s::bigint[], %(sources)s::smallint[], %(targets)s::smallint[], %(reasons)s::text[])
    AS m (key, source, target, reason) JOIN tier_records AS r ON r.key = m.key"""


@dataclass(slots=True)
class Moved:
    """What a batch did.

    Args: changed: records that were left alone because they changed meanwhile; set_aside: records that could not move,
    with a reason that holds no text of theirs; unembedded: records whose text is to be embedded again; left: namespaces
    that records were evicted from; evicted: ids of these records, where the operation belongs to their namespace: such a list
    is forgotten with it.
    """

    moves: list[Move] = field(default_factory=list)
    changed: int = 0
    set_aside: dict[int, str] = field(default_factory=dict)
    unembedded: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)

    def receipt(self) -> dict[str, Any]:
        """Counts by kind of move and by reason, for the step and the report."""
        ranks = [(0 if m.target is None else m.target.rank, m.source.rank) for m in self.moves]
        reasons: dict[str, int] = {}
        for move in self.moves:
            reasons[move.reason.value] = reasons.get(move.reason.value, 0) + 1
        return {
            "promoted": sum(target > source for target, source in ranks),
            "demoted": sum(0 < target < source for target, source in ranks),
            "evicted": sum(target == 0 for target, _ in ranks),
            "changed": self.changed,
            "reasons": reasons,
            "set_aside": {str(key): why for key, why in self.set_aside.items()},
            **({"evicted_ids": self.evicted} if self.evicted else {}),
        }


def encode(moves: Iterable[Move]) -> list[list[Any]]:
    """Moves as JSON: key, version, source rank, target rank (0: evict), reason."""
    return [[m.key, m.version, m.source.rank, m.target.rank if m.target else 0, m.reason.value] for m in moves]


def decode(rows: Iterable[Sequence[Any]]) -> list[Move]:
    """The inverse of `encode`."""
    return [
        Move(int(key), int(version), Tier.from_rank(source), Tier.from_rank(target) if target else None, Reason(reason))
        for key, version, source, target, reason in rows
    ]


def shift(conn: Connection, operation_id: UUID, moves: Sequence[Move]) -> Moved:
    """Apply moves that leave the body where it is, and evictions. A record that changed meanwhile is left alone."""
    leaving = [m for m in moves if m.target is None]
    outcome = shift_together(conn, {operation_id: [m for m in moves if m.target is not None]})[operation_id]
    if not leaving:
        return outcome
    gone = conn.execute(_EVICT, {**_columns(leaving), "operation": operation_id}).fetchall()
    keys = {int(row[0]) for row in gone}
    return Moved(
        [*outcome.moves, *(m for m in leaving if m.key in keys)],
        changed=outcome.changed + len(leaving) - len(keys),
        left=sorted({namespace_id for _, namespace_id, _, _ in gone}),
        evicted=sorted(record_id for _, _, record_id, own in gone if own),
    )


def shift_together(conn: Connection, moves_of: Mapping[UUID, Sequence[Move]]) -> dict[UUID, Moved]:
    """Apply moves of several operations that leave the body where it is; a record that changed meanwhile is left alone."""
    moves = [move for part in moves_of.values() for move in part]
    done: set[int] = set()
    if moves:
        owners = arrays.integers([number for number, part in enumerate(moves_of.values(), 1) for _ in part])
        values = {**_columns(moves), "owners": owners, "operations": list(moves_of)}
        done = {int(row[0]) for row in conn.execute(_SHIFT, values).fetchall()}
    made = {operation_id: [m for m in part if m.key in done] for operation_id, part in moves_of.items()}
    return {i: Moved(made[i], changed=len(part) - len(made[i])) for i, part in moves_of.items()}


@dataclass(frozen=True, slots=True)
class _Locked:
    key: int
    content: str | None
    summary: str | None
    metadata: Mapping[str, Any]
    sha256: bytes
    body: bytes | None
    raw_bytes: int | None
    object_key: str | None

    @property
    def stored(self) -> StoredBody:
        return StoredBody(self.summary, self.body, self.raw_bytes, self.sha256, self.object_key)


@dataclass(frozen=True, slots=True)
class _Body:
    """A body that leaves its row: compressed, or the id of the object that holds it."""

    raw_bytes: int
    body: bytes | None = None
    blob_id: int | None = None


def texts(conn: Connection, moves: Sequence[Move], *, min_bytes: int = 0) -> dict[int, str]:
    """What a summarizer is to read, by record key; records that changed meanwhile, and texts below `min_bytes`, are left out."""
    sql = f"""SELECT r.key, r.content, r.metadata FROM tier_records AS r
              JOIN {_GIVEN} ON m.key = r.key AND m.version = r.version AND m.source = r.tier
              WHERE r.content IS NOT NULL AND r.size_bytes >= %(min)s ORDER BY r.key"""
    rows = conn.execute(sql, {**_columns(moves), "min": min_bytes}).fetchall()
    return {int(key): searchable_text(content, metadata) for key, content, metadata in rows}


def large(conn: Connection, moves: Sequence[Move], min_bytes: int) -> list[Move]:
    """Those of the moves whose record has a text of at least `min_bytes` bytes and did not change meanwhile."""
    sql = f"""SELECT r.key FROM tier_records AS r
              JOIN {_GIVEN} ON m.key = r.key AND m.version = r.version AND m.source = r.tier
              WHERE r.content IS NOT NULL AND r.size_bytes >= %(min)s"""
    found = {int(row[0]) for row in conn.execute(sql, {**_columns(moves), "min": min_bytes}).fetchall()}
    return [move for move in moves if move.key in found]


def content_of(conn: Connection, move: Move) -> str | None:
    """The text of a record that has not changed since its move was planned, None of one that has."""
    sql = "SELECT content FROM tier_records WHERE key = %s AND version = %s"
    row = conn.execute(sql, (move.key, move.version)).fetchone()
    return row[0] if row else None


def objects_of(conn: Connection, moves: Sequence[Move]) -> list[str]:
    """Keys of the objects that hold the bodies of cold records."""
    sql = """SELECT o.object_key FROM cold_bodies AS b JOIN cold_blobs AS o ON o.id = b.blob_id
             WHERE b.record_key = ANY(%s) ORDER BY b.record_key"""
    return [str(row[0]) for row in conn.execute(sql, ([move.key for move in moves],)).fetchall()]


def archive(
    conn: Connection,
    operation_id: UUID,
    moves: Sequence[Move],
    summaries: Mapping[int, str],
    *,
    min_bytes: int,
    refused: Mapping[int, str] | None = None,
    uploads: Mapping[int, Blob] | None = None,
    model: str | None = None,
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> Moved:
    """Move records to cold: body compressed, summary searchable. The record is found at every moment, since it is one row.

    Args: summaries: by record key; a record without one goes only when its text is below `min_bytes` bytes; refused: why
    it has none; uploads: objects that hold bodies already, by record key; model: stamp of the model that can embed these
    texts again; patience: how long what could not go is left alone.
    Raises: TransientError when collection has taken an upload: the caller is to begin again.
    """
    outcome, given = Moved(), uploads or {}
    words: list[tuple[Unindexed, Sequence[int]]] = []
    going: dict[int, str] = {}
    bodies: dict[int, _Body] = {}
    for row in _lock(conn, moves):
        raw = (row.content or "").encode()
        whole = len(raw) < min_bytes
        summary = row.content if whole else summaries.get(row.key)
        if summary is None:
            outcome.set_aside[row.key] = (refused or {}).get(row.key, _NO_SUMMARY)
            continue
        if not whole:
            blob = given.get(row.key)
            bodies[row.key] = _Body(len(raw), blob_id=blob.id) if blob else _Body(len(raw), compressed(raw))
        going[row.key] = summary
        words.append(_words(row, summary, row.metadata if whole else {}))
    _settle_uploads(conn, given, bodies)
    _write_cold(conn, going, bodies)
    cold_vectors.shrink(conn, list(going), model=model)
    return _finish(conn, operation_id, outcome, moves, list(going), words, patience)


def _settle_uploads(conn: Connection, uploads: Mapping[int, Blob], bodies: Mapping[int, _Body]) -> None:
    """Objects of bodies that go become live, those of records that stay are let go."""
    used = [body.blob_id for body in bodies.values() if body.blob_id is not None]
    if lost := len(used) - len(cold_blobs.make_live(conn, used)):
        raise TransientError(f"{lost} uploads took so long that they were given up")
    cold_blobs.let_go(conn, [blob.id for key, blob in uploads.items() if key not in bodies])


def restore(
    conn: Connection,
    operation_id: UUID,
    moves: Sequence[Move],
    *,
    fetched: Mapping[str, bytes] | None = None,
    embeds: bool = False,
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> Moved:
    """Bring records back from cold, byte for byte.

    One whose body is missing or does not match its hash stays, and is set aside until somebody restores it.
    Args: fetched: the objects that hold bodies, by their keys; embeds: whether there is a model to embed texts again.
    """
    outcome = Moved()
    words: list[tuple[Unindexed, Sequence[int]]] = []
    coming: dict[int, str] = {}
    for row in _lock(conn, moves):
        stored, found = row.stored, (fetched or {}).get(row.object_key or "")
        content = stored.text(found)
        if content is None:
            missing = stored.object_key is not None and found is None
            outcome.set_aside[row.key] = tier_held.MISSING_BODY if missing else tier_held.DAMAGED_BODY
            continue
        coming[row.key] = content
        words.append(_words(row, content, row.metadata))
    explicit = any(m.reason is Reason.RESTORE for m in moves)
    values = {"keys": arrays.bigints(list(coming)), "contents": arrays.texts(coming.values()), "explicit": explicit}
    conn.execute(_RESTORE, values)
    outcome.unembedded = cold_vectors.regrow(conn, list(coming), embeds=embeds)
    return _finish(conn, operation_id, outcome, moves, list(coming), words, patience)


def _words(row: _Locked, content: str, metadata: Mapping[str, Any]) -> tuple[Unindexed, Sequence[int]]:
    found_by = searchable_text(content, metadata)
    return Unindexed(row.key, found_by, row.sha256, tier_index.given_text(metadata)), text.terms(found_by)


def _finish(
    conn: Connection,
    operation_id: UUID,
    outcome: Moved,
    moves: Sequence[Move],
    done: Sequence[int],
    words: Sequence[tuple[Unindexed, Sequence[int]]],
    patience: Patience,
) -> Moved:
    by_key = {move.key: move for move in moves}
    if words:
        tier_index.write_terms(conn, words)
    outcome.moves = [by_key[key] for key in done]
    outcome.changed = len(by_key) - len(done) - len(outcome.set_aside)
    tier_held.hold(conn, outcome.set_aside, patience)
    if outcome.moves:
        tier_held.free(conn, done)
        conn.execute(_LOG, {**_columns(outcome.moves), "operation": operation_id})
    return outcome


def _write_cold(conn: Connection, going: Mapping[int, str], bodies: Mapping[int, _Body]) -> None:
    values = {
        "keys": arrays.bigints(list(going)),
        "summaries": arrays.texts(going.values()),
        "body_keys": arrays.bigints(list(bodies)),
        "bodies": arrays.byteas(body.body for body in bodies.values()),
        "blobs": [body.blob_id for body in bodies.values()],
        "raw": [body.raw_bytes for body in bodies.values()],
    }
    conn.execute(_ARCHIVE, values)


def _lock(conn: Connection, moves: Sequence[Move]) -> list[_Locked]:
    return [_Locked(*row) for row in conn.execute(_LOCK, _columns(moves)).fetchall()]


def _columns(moves: Sequence[Move]) -> dict[str, Any]:
    return {
        "keys": arrays.bigints([m.key for m in moves]),
        "versions": arrays.bigints([m.version for m in moves]),
        "sources": arrays.smallints([m.source.rank for m in moves]),
        "targets": arrays.smallints([m.target.rank if m.target else 0 for m in moves]),
        "reasons": arrays.texts(m.reason.value for m in moves),
    }
