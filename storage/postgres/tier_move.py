"""Moves between tiers: each a compare-and-swap of a row's tier and version, logged with its reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import zstandard

from isotherm.pipeline import text
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.records import Reason, Tier, searchable_text
from isotherm.storage.postgres import tier_index
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_index import Unindexed

# Small bodies gain nothing from a higher level, large ones little.
_LEVEL = 9

# Every statement that locks several records does so by namespace and id, so that two of them never wait in a circle.
_GIVEN = "unnest(%(keys)s::bigint[], %(versions)s::bigint[], %(sources)s::smallint[]) AS m (key, version, source)"

_LOCK = f"""
SELECT r.key, r.version, r.content, r.summary, r.metadata, r.content_sha256, b.body, b.raw_bytes
FROM tier_records AS r JOIN {_GIVEN} ON m.key = r.key AND m.version = r.version AND m.source = r.tier
LEFT JOIN cold_bodies AS b ON b.record_key = r.key
ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r"""

_SHIFT = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(versions)s::bigint[], %(sources)s::smallint[], %(targets)s::smallint[],
                         %(reasons)s::text[]) AS m (key, version, source, target, reason)
), mine AS (
    SELECT m.* FROM given AS m JOIN tier_records AS r ON r.key = m.key AND r.version = m.version AND r.tier = m.source
    ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r
), moved AS (
    UPDATE tier_records AS r
    SET tier = m.target, version = r.version + 1, moved_at = now(), moved_from = m.source
    FROM mine AS m WHERE r.key = m.key
    RETURNING r.key, r.namespace_id, m.source, m.target, m.reason
), logged AS (
    INSERT INTO tier_moves (record_key, namespace_id, operation_id, source, target, reason)
    SELECT key, namespace_id, %(operation)s, source, target, reason FROM moved
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
RETURNING r.key, r.namespace_id"""

_ARCHIVE = """
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(summaries)s::text[]) AS g (key, summary)
), bodies AS (
    INSERT INTO cold_bodies (record_key, body, codec, raw_bytes)
    SELECT b.key, b.body, 'zstd', b.raw FROM unnest(%(body_keys)s::bigint[], %(bodies)s::bytea[], %(raw)s::integer[])
        AS b (key, body, raw)
    ON CONFLICT (record_key) DO UPDATE SET body = excluded.body, codec = excluded.codec, raw_bytes = excluded.raw_bytes
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
    """What a batch did. `set_aside` names records that could not move, with a reason that holds no text of theirs."""

    moves: list[Move] = field(default_factory=list)
    changed: int = 0
    set_aside: dict[int, str] = field(default_factory=dict)

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
    staying = [m for m in moves if m.target is not None]
    leaving = [m for m in moves if m.target is None]
    done: set[int] = set()
    if staying:
        values = {**_columns(staying), "operation": operation_id}
        done |= {int(row[0]) for row in conn.execute(_SHIFT, values).fetchall()}
    if leaving:
        done |= {int(row[0]) for row in conn.execute(_EVICT, _columns(leaving)).fetchall()}
    return Moved([m for m in moves if m.key in done], changed=len(moves) - len(done))


@dataclass(frozen=True, slots=True)
class _Locked:
    key: int
    version: int
    content: str | None
    summary: str | None
    metadata: Mapping[str, Any]
    sha256: bytes
    body: bytes | None
    raw_bytes: int | None


def texts(conn: Connection, moves: Sequence[Move]) -> dict[int, str]:
    """What a summarizer is to read, by record key; records that changed meanwhile are left out."""
    sql = f"""SELECT r.key, r.content, r.metadata FROM tier_records AS r
              JOIN {_GIVEN} ON m.key = r.key AND m.version = r.version AND m.source = r.tier
              WHERE r.content IS NOT NULL ORDER BY r.key"""
    rows = conn.execute(sql, _columns(moves)).fetchall()
    return {int(key): searchable_text(content, metadata) for key, content, metadata in rows}


def archive(
    conn: Connection, operation_id: UUID, moves: Sequence[Move], summaries: Mapping[int, str], *, min_bytes: int
) -> Moved:
    """Move records to cold: body compressed, summary searchable. The record is found at every moment, since it is one row.

    Args: summaries: by record key; a record without one goes only when its text is below `min_bytes` bytes.
    """
    outcome, by_key = Moved(), {m.key: m for m in moves}
    words: list[tuple[Unindexed, Sequence[int]]] = []
    going: dict[int, str] = {}
    bodies: dict[int, tuple[bytes, int]] = {}
    for row in _lock(conn, moves):
        raw = (row.content or "").encode()
        whole = len(raw) < min_bytes
        summary = row.content if whole else summaries.get(row.key)
        if summary is None:
            outcome.set_aside[row.key] = "no summary"
            continue
        if not whole:
            bodies[row.key] = (_compressed(raw), len(raw))
        going[row.key] = summary
        words.append(_words(row, summary, row.metadata if whole else {}))
    _write_cold(conn, going, bodies)
    return _finish(conn, operation_id, outcome, by_key, list(going), words)


def restore(conn: Connection, operation_id: UUID, moves: Sequence[Move]) -> Moved:
    """Bring records back from cold, byte for byte; one whose body does not match its hash stays and is set aside."""
    outcome, by_key = Moved(), {m.key: m for m in moves}
    words: list[tuple[Unindexed, Sequence[int]]] = []
    coming: dict[int, str] = {}
    for row in _lock(conn, moves):
        content = original(row.summary, row.body, row.raw_bytes, row.sha256)
        if content is None:
            outcome.set_aside[row.key] = "the stored body does not match its hash"
            continue
        coming[row.key] = content
        words.append(_words(row, content, row.metadata))
    explicit = any(m.reason is Reason.RESTORE for m in moves)
    values = {"keys": list(coming), "contents": list(coming.values()), "explicit": explicit}
    conn.execute(_RESTORE, values)
    return _finish(conn, operation_id, outcome, by_key, list(coming), words)


def original(summary: str | None, body: bytes | None, raw_bytes: int | None, sha256: bytes) -> str | None:
    """The text a cold record had, or None when what is stored does not match its hash."""
    try:
        raw = (summary or "").encode() if body is None else _decompressed(bytes(body), raw_bytes or 0)
    except zstandard.ZstdError:
        return None
    return raw.decode() if hashlib.sha256(raw).digest() == bytes(sha256) else None


def _words(row: _Locked, content: str, metadata: Mapping[str, Any]) -> tuple[Unindexed, Sequence[int]]:
    found_by = searchable_text(content, metadata)
    return Unindexed(row.key, found_by, row.sha256, tier_index.given_text(metadata)), text.terms(found_by)


def _finish(
    conn: Connection,
    operation_id: UUID,
    outcome: Moved,
    by_key: Mapping[int, Move],
    done: Sequence[int],
    words: Sequence[tuple[Unindexed, Sequence[int]]],
) -> Moved:
    if words:
        tier_index.write_terms(conn, words)
    outcome.moves = [by_key[key] for key in done]
    outcome.changed = len(by_key) - len(done) - len(outcome.set_aside)
    if outcome.moves:
        conn.execute(_LOG, {**_columns(outcome.moves), "operation": operation_id})
    return outcome


def _write_cold(conn: Connection, going: Mapping[int, str], bodies: Mapping[int, tuple[bytes, int]]) -> None:
    values = {
        "keys": list(going),
        "summaries": list(going.values()),
        "body_keys": list(bodies),
        "bodies": [body for body, _ in bodies.values()],
        "raw": [raw for _, raw in bodies.values()],
    }
    conn.execute(_ARCHIVE, values)


def _lock(conn: Connection, moves: Sequence[Move]) -> list[_Locked]:
    return [_Locked(*row) for row in conn.execute(_LOCK, _columns(moves)).fetchall()]


def _columns(moves: Sequence[Move]) -> dict[str, Any]:
    return {
        "keys": [m.key for m in moves],
        "versions": [m.version for m in moves],
        "sources": [m.source.rank for m in moves],
        "targets": [m.target.rank if m.target else 0 for m in moves],
        "reasons": [m.reason.value for m in moves],
    }


def _compressed(raw: bytes) -> bytes:
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(raw)
    if _decompressed(body, len(raw)) != raw:
        raise RuntimeError("a compressed body does not read back")
    return body


def _decompressed(body: bytes, raw_bytes: int) -> bytes:
    # Asked first, since as much memory is taken as the frame claims to need.
    if zstandard.frame_content_size(body) != raw_bytes:
        raise zstandard.ZstdError("the body has another size than was stored")
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=max(raw_bytes, 1))
