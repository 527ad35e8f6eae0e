"""A database in which one namespace has 100,000 records, beside 201 small ones: with all that hangs on records."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.embedded import Endpoints

ROWS, SMALL_ROWS, NAMES = 100_000, 40, 5_000

# Of ten records in a row one is cold, one hot and eight are warm; half of the cold ones have a body of their own, and half of
# those in the blob store. Three of four are turns of a conversation. Vectors are of a length that has no index: those that
# have one are in a database of their own.
RECORDS = f"""
INSERT INTO banks (tenant, agent)
SELECT NULL, 'large' UNION ALL
SELECT CASE WHEN n % 5 = 1 THEN 'tenant' END, 'small' || to_char(n, 'FM0000') FROM generate_series(0, 199) AS n;
INSERT INTO namespaces (bank_id, tenant, scope, agent, session, due_at)
SELECT id, tenant, 'session', agent, 's', CASE WHEN id % 40 = 0 THEN now() - interval '1 minute' ELSE now() + interval '1 day' END
FROM banks UNION ALL SELECT id, tenant, 'session', agent, 'old', NULL FROM banks WHERE agent = 'large';
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, summary, role, importance, tier, pinned,
    value_log, heat_log, access_count, created_at, last_access_at, moved_at, moved_from, size_bytes, terms, indexed,
    vector_state)
SELECT s.id, s.bank_id, 'r' || n, CASE WHEN n % 10 < 9 THEN 'text' END, sha256('text'),
       CASE WHEN n % 20 = 9 THEN 'text' WHEN n % 20 = 19 THEN 'short' END,
       CASE WHEN n % 4 > 0 THEN 'user' END, 0.5, CASE WHEN n % 10 = 9 THEN 1 WHEN n % 10 = 8 THEN 3 ELSE 2 END,
       n % 997 = 0, n, CASE WHEN n % 50 IN (0, 19) THEN n END, CASE WHEN n % 50 IN (0, 19) THEN 1 ELSE 0 END,
       age.created, age.created,
       CASE WHEN n % 10 >= 8 THEN now() - n * interval '30 seconds' END, CASE WHEN n % 10 >= 8 THEN 2 END, 4,
       CASE WHEN n % 10 = 9 THEN '{{}}' ELSE ARRAY[n % 500, 1000 + n % 7, 5000 + n] END, n % 1000 <> 0,
       CASE WHEN n % 25 = 0 THEN 'none' ELSE 'done' END
FROM namespaces AS s, generate_series(1, CASE WHEN (s.agent, s.session) = ('large', 's') THEN {ROWS} ELSE {SMALL_ROWS} END) AS n,
    LATERAL (SELECT now() - n * interval '1 minute' - CASE WHEN s.session = 'old' THEN 365 ELSE 0 END * interval '1 day') AS age (created);
SET session_replication_role = replica;
INSERT INTO tier_postings (bank_id, term, record_key, namespace_id)
SELECT r.bank_id, t, r.key, r.namespace_id FROM tier_records AS r, unnest(r.terms) AS t;
INSERT INTO cold_words (record_key, bank_id, namespace_id, words)
SELECT key, bank_id, namespace_id, -namespace_id || ARRAY(
    SELECT (bank_id << 32) | t FROM unnest(ARRAY[key % 500, 1000 + key % 7, 5000 + key]) AS t)
FROM tier_records WHERE tier = 1;
INSERT INTO cold_blobs (object_key, bank_id, namespace_id, record_key, stored_bytes, state, changed_at)
SELECT 'object/' || key, bank_id, namespace_id, key, 9, CASE WHEN summary = 'short' THEN 'live'
    ELSE (ARRAY['writing', 'orphan', 'dead'])[1 + key % 3] END, now() - interval '1 day'
FROM tier_records WHERE tier = 1 AND (summary = 'short' AND key % 100 < 50 OR key % 1000 < 50);
INSERT INTO cold_bodies (record_key, body, blob_id, codec, raw_bytes)
SELECT r.key, CASE WHEN b.id IS NULL THEN repeat('body', 100) END::bytea, b.id, 'zstd', 9
FROM tier_records AS r LEFT JOIN cold_blobs AS b ON b.record_key = r.key WHERE r.summary = 'short';
INSERT INTO tier_vectors (record_key, bank_id, namespace_id, model, dim, vector, bits)
SELECT key, bank_id, namespace_id, CASE WHEN key % 1000 = 7 THEN 'old' ELSE 'new' END, 64,
       CASE WHEN tier > 1 THEN ('[' || repeat('0.125,', 63) || '0.125]')::halfvec END, CASE WHEN tier = 1 THEN repeat('01', 32)::varbit END
FROM tier_records WHERE vector_state = 'done';
INSERT INTO tier_moves (record_key, namespace_id, operation_id, source, target, reason)
SELECT key, namespace_id, gen_random_uuid(), 2, tier, 'idle' FROM tier_records WHERE tier <> 2;
INSERT INTO tier_set_aside (record_key, namespace_id, version, reason, held_until)
SELECT key, namespace_id, version, 'no summary', now() + (key % 10 - 5) * interval '1 hour' FROM tier_records WHERE key % 40 = 1;
INSERT INTO tier_depth SELECT s.id, 2, n % 2 * 2 - 1, n % 2 * 8 - 4 FROM namespaces AS s, generate_series(1, 60) AS n;
INSERT INTO touch_batches (id, applied_at) SELECT gen_random_uuid(), now() - n * interval '1 minute' FROM generate_series(1, 5000) AS n;
RESET session_replication_role
"""

WORK = """
INSERT INTO operations (id, kind, trace_id, state, finished_at)
SELECT gen_random_uuid(), 'tier.remember', gen_random_uuid(), CASE WHEN n % 100 = 0 THEN 'running' ELSE 'done' END,
       CASE WHEN n % 100 > 0 THEN now() END FROM generate_series(1, 20000) AS n;
INSERT INTO operation_steps (operation_id, stage, queue, input, input_hash, state, lease_until, retry_until, nudge_at,
    finished_at)
SELECT id, 'tier.index', 'db', '{}', '', CASE WHEN finished_at IS NOT NULL THEN 'done' WHEN n % 2 = 0 THEN 'running'
       ELSE 'pending' END, CASE WHEN finished_at IS NULL AND n % 2 = 0 THEN now() + n * interval '1 minute' END, now(),
       now() + (n - 50) * interval '1 second', finished_at
FROM (SELECT *, row_number() OVER (ORDER BY finished_at NULLS FIRST) AS n FROM operations) AS o;
INSERT INTO outbox (builder, payload, not_before)
SELECT 'step', '{}', now() + (n - 50) * interval '1 second' FROM generate_series(1, 5000) AS n
"""

# Names of the large bank's knowledge are among the words of its records, and points stand on these.
LEARNED = f"""
SET session_replication_role = replica;
INSERT INTO brain_objects (namespace_id, bank_id, id, kind, title, summary, content, content_type, properties, index_sha256,
    terms, length, vector_state, created_at, updated_at)
SELECT s.id, s.bank_id, gen_random_uuid(), 'note', 'title ' || n, '', '', '', '{{}}', sha256('x'), ARRAY[5000 + n], 1, 'none', now(), now()
FROM namespaces AS s, generate_series(1, CASE WHEN (s.agent, s.session) = ('large', 's') THEN {NAMES} ELSE 10 END) AS n;
INSERT INTO brain_names SELECT namespace_id, title, key, id, terms[1], terms, true FROM brain_objects;
INSERT INTO brain_edges (namespace_id, source, target, label, note, status, role, mentions)
SELECT s.namespace_id, s.id, t.id, 'mentions', '', '', '', 1 FROM brain_objects AS s, unnest(ARRAY[s.key + 1, s.key - s.key % 1000]) AS k (key)
JOIN brain_objects AS t USING (key) WHERE t.namespace_id = s.namespace_id AND t.id <> s.id;
INSERT INTO interest_points (id, bank_id, name, canonical, summary, kind, importance, confidence, reliability, status,
    first_seen_at, last_seen_at, seen_count)
SELECT gen_random_uuid(), bank_id, title, title, '', 'fact', 0.5, 0.5, 0.5, 'active', now(), now(), 1 FROM brain_objects ON CONFLICT DO NOTHING;
INSERT INTO interest_evidence (point_id, bank_id, namespace_id, record_key, record_id, turn, start_char, end_char, statement,
    event_time, operation_id)
SELECT p.id, r.bank_id, r.namespace_id, r.key, r.id, 0, 0, 1, substring(r.content_sha256 FOR 16), now(), gen_random_uuid()
FROM tier_records AS r JOIN interest_points AS p ON p.bank_id = r.bank_id AND p.canonical = 'title ' || 1 + r.key % {NAMES};
RESET session_replication_role
"""


@contextmanager
def filled_with(endpoints: Endpoints, template: str, *parts: str) -> Iterator[str]:
    """A database of these statements, analyzed. Foreign keys hold by how rows are made, and are not asked for each."""
    name = f"filled_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        for part in parts:
            conn.execute(part)
        conn.execute("VACUUM ANALYZE")
    yield dsn
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
