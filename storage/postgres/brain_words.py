"""The words of objects and the statistics over them: postings at once, statistics appended now and folded by a tick."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isotherm.pipeline.brain.writing import Statistics, StoredRow, Words
from isotherm.storage.postgres.pool import Connection

_REMOVE = """
DELETE FROM brain_postings AS p USING unnest(%(terms)s::bigint[], %(keys)s::bigint[]) AS g (term, object_key)
WHERE p.namespace_id = %(ns)s AND p.term = g.term AND p.object_key = g.object_key"""

_INSERT = """
INSERT INTO brain_postings (namespace_id, term, object_key, tf, length)
SELECT %(ns)s, g.term, g.object_key, g.tf, g.length
FROM unnest(%(terms)s::bigint[], %(keys)s::bigint[], %(tfs)s::integer[], %(lengths)s::integer[])
    AS g (term, object_key, tf, length)
ORDER BY g.term, g.object_key"""

_DELTA = """
INSERT INTO brain_stats_deltas (namespace_id, documents, length, terms, counts)
VALUES (%(ns)s, %(documents)s, %(length)s, %(terms)s::bigint[], %(counts)s::integer[])"""

# Only one folds at a time, and in one order.
_FOLD_LOCK = "SELECT pg_try_advisory_xact_lock(352194130)"
_FOLD = """
WITH taken AS (
    DELETE FROM brain_stats_deltas
    WHERE id IN (SELECT id FROM brain_stats_deltas ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    RETURNING namespace_id, documents, length, terms, counts
), totals AS (
    INSERT INTO brain_stats AS s (namespace_id, documents, length)
    SELECT namespace_id, sum(documents), sum(length) FROM taken GROUP BY namespace_id ORDER BY namespace_id
    ON CONFLICT (namespace_id) DO UPDATE
    SET documents = s.documents + excluded.documents, length = s.length + excluded.length
), words AS (
    INSERT INTO brain_terms AS t (namespace_id, term, documents)
    SELECT d.namespace_id, u.term, sum(u.count) FROM taken AS d, unnest(d.terms, d.counts) AS u (term, count)
    GROUP BY d.namespace_id, u.term HAVING sum(u.count) <> 0 ORDER BY d.namespace_id, u.term
    ON CONFLICT (namespace_id, term) DO UPDATE SET documents = t.documents + excluded.documents
)
SELECT count(*) FROM taken"""


@dataclass(frozen=True, slots=True)
class Gone:
    """Words that an object is no longer found by."""

    key: int
    terms: Sequence[int]


def gone(rows: Iterable[StoredRow]) -> list[Gone]:
    """The words that rows are found by until now."""
    return [Gone(row.key, row.terms) for row in rows if row.terms]


def replace(conn: Connection, namespace_id: int, stale: Sequence[Gone], fresh: Sequence[tuple[int, Words]]) -> None:
    """Take words out of the index and put words in.

    Args: fresh: row key and words of objects that have none in the index once the stale ones are out.
    """
    if stale:
        pairs = [(term, each.key) for each in stale for term in each.terms]
        conn.execute(
            _REMOVE, {"ns": namespace_id, "terms": [term for term, _ in pairs], "keys": [key for _, key in pairs]}
        )
    if any(words.counts for _, words in fresh):
        sizes = [(key, words.length, len(words.counts)) for key, words in fresh]
        values = {
            "terms": _literal(term for _, words in fresh for term in words.counts),
            "keys": _literal(key for key, _, size in sizes for _ in range(size)),
            "tfs": _literal(tf for _, words in fresh for tf in words.counts.values()),
            "lengths": _literal(length for _, length, size in sizes for _ in range(size)),
        }
        conn.execute(_INSERT, {"ns": namespace_id, **values})


def _literal(numbers: Iterable[int]) -> str:
    """An array as text: there are thousands of numbers, and the driver asks for the type of each."""
    return f"{{{','.join(map(str, numbers))}}}"


def add_statistics(conn: Connection, namespace_id: int, change: Statistics) -> None:
    """Append what a write does to the statistics; nothing is updated, so writers do not wait for each other."""
    if not (change.documents or change.length or change.terms):
        return
    values = {"terms": _literal(change.terms), "counts": _literal(change.terms.values())}
    conn.execute(_DELTA, {"ns": namespace_id, "documents": change.documents, "length": change.length, **values})


def fold(conn: Connection, limit: int = 100) -> int:
    """Add waiting changes to the statistics; returns how many, 0 when somebody else is at it."""
    row = conn.execute(_FOLD_LOCK).fetchone()
    if row is None or not row[0]:
        return 0
    row = conn.execute(_FOLD, {"limit": limit}).fetchone()
    return int(row[0]) if row else 0
