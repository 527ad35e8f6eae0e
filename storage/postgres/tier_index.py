"""The words of records: postings by bank and word, or a row of a cold record, kept equal to what it can be found by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotherm.storage.postgres import arrays
from isotherm.storage.postgres.cold_words import word
from isotherm.storage.postgres.pool import Connection

# The text a search sees as the caller gave it, as isotherm.pipeline.tier.records.searchable_text reads it. A cold record
# with a body of its own is found by its summary, which was made from that text. A test by EXISTS might be answered by reading
# all bodies.
SEARCHABLE = """CASE WHEN jsonb_typeof(r.metadata -> 'searchable') = 'string'
    AND (r.tier <> 1 OR (SELECT c.record_key FROM cold_bodies AS c WHERE c.record_key = r.key) IS NULL)
    THEN r.metadata ->> 'searchable' END"""

_UNINDEXED = f"""
SELECT r.key, coalesce(r.content, r.summary), {SEARCHABLE}, r.content_sha256
FROM tier_records AS r WHERE r.key = ANY(%(keys)s) AND NOT r.indexed ORDER BY r.key"""

# Only rows whose text is still the one that was split are written; a newer text has a step of its own.
_INDEX = f"""
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bigint[], %(hashes)s::bytea[], %(given)s::text[]) AS g (key, content_sha256, given)
), fresh AS (
    SELECT r.key, r.bank_id, r.namespace_id, r.terms, r.tier = 1 AS cold
    FROM tier_records AS r JOIN given AS g ON g.key = r.key AND g.content_sha256 = r.content_sha256
    WHERE NOT r.indexed AND {SEARCHABLE} IS NOT DISTINCT FROM g.given ORDER BY r.namespace_id, r.id FOR NO KEY UPDATE OF r
), wanted AS (
    SELECT f.bank_id, p.term, f.key, f.namespace_id
    FROM unnest(%(pair_keys)s::bigint[], %(pair_terms)s::bigint[]) AS p (key, term) JOIN fresh AS f ON f.key = p.key
    WHERE NOT f.cold
), frozen AS (
    INSERT INTO cold_words (record_key, bank_id, namespace_id, words)
    SELECT f.key, f.bank_id, f.namespace_id, -f.namespace_id || coalesce(
        array_agg(DISTINCT {word("f.bank_id", "p.term")}) FILTER (WHERE p.term IS NOT NULL), '{{}}')
    FROM fresh AS f LEFT JOIN unnest(%(pair_keys)s::bigint[], %(pair_terms)s::bigint[]) AS p (key, term) ON p.key = f.key
    WHERE f.cold GROUP BY f.key, f.bank_id, f.namespace_id ORDER BY f.key
    ON CONFLICT (record_key) DO UPDATE SET words = excluded.words
), thawed AS (
    DELETE FROM cold_words AS c USING fresh AS f WHERE c.record_key = f.key AND NOT f.cold
), stale AS (
    DELETE FROM tier_postings AS p USING (
        SELECT f.bank_id, u.term, f.namespace_id, f.key FROM fresh AS f, unnest(f.terms) AS u (term)
        EXCEPT SELECT bank_id, term, namespace_id, key FROM wanted
    ) AS d WHERE (p.bank_id, p.term, p.namespace_id, p.record_key) = (d.bank_id, d.term, d.namespace_id, d.key)
), added AS (
    INSERT INTO tier_postings (bank_id, term, record_key, namespace_id)
    SELECT bank_id, term, key, namespace_id FROM wanted ORDER BY bank_id, term, namespace_id, key
    ON CONFLICT DO NOTHING
)
UPDATE tier_records AS r SET terms = w.terms, indexed = true
FROM (
    SELECT f.key, coalesce(array_agg(w.term ORDER BY w.term) FILTER (WHERE w.term IS NOT NULL), '{{}}') AS terms
    FROM fresh AS f LEFT JOIN wanted AS w ON w.key = f.key GROUP BY f.key
) AS w WHERE r.key = w.key
RETURNING r.namespace_id"""

_DUE = """
UPDATE namespaces SET due_at = now()
WHERE id IN (SELECT id FROM namespaces WHERE id = ANY(%s) AND (due_at IS NULL OR due_at > now()) ORDER BY id FOR NO KEY UPDATE)"""


@dataclass(frozen=True, slots=True)
class Unindexed:
    """A record without words: its key, the text it is found by, and what that text came from.

    Args: content_sha256: of the content; given: the `SEARCHABLE` column.
    """

    key: int
    text: str
    content_sha256: bytes
    given: str | None


def unindexed(conn: Connection, keys: Sequence[int]) -> list[Unindexed]:
    """Those of the records whose words are not in the index yet."""
    rows = conn.execute(_UNINDEXED, {"keys": list(keys)}).fetchall()
    return [Unindexed(int(key), found_by(given, text), bytes(sha), given) for key, text, given, sha in rows]


def found_by(given: str | None, text: str) -> str:
    """The text a record is found by, from its `SEARCHABLE` column and its content or summary."""
    return (given or "").strip() or text


def given_text(metadata: Mapping[str, Any]) -> str | None:
    """What `SEARCHABLE` reads from the metadata of a record that is not cold with a body of its own."""
    value = metadata.get("searchable")
    return value if isinstance(value, str) else None


def write_terms(conn: Connection, found: Sequence[tuple[Unindexed, Sequence[int]]]) -> int:
    """Write the words of records, in one statement; returns how many records were indexed.

    Args: found: each record with its words as sorted signed 64-bit numbers.
    """
    values = {
        "keys": arrays.bigints([u.key for u, _ in found]),
        "hashes": arrays.byteas(u.content_sha256 for u, _ in found),
        "given": arrays.texts(u.given for u, _ in found),
        "pair_keys": arrays.bigints([u.key for u, terms in found for _ in terms]),
        "pair_terms": arrays.bigints([term for _, terms in found for term in terms]),
    }
    touched = [int(row[0]) for row in conn.execute(_INDEX, values).fetchall()]
    mark_due(conn, sorted(set(touched)))
    return len(touched)


def mark_due(conn: Connection, namespace_ids: Sequence[int]) -> None:
    """Ask for a migration pass over namespaces that got something new."""
    conn.execute(_DUE, (list(namespace_ids),))
