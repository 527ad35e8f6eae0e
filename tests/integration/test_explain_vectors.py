"""What is near a query is found by its index in a large scope, by comparing all in a small one, and always inside the scope."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
import psycopg
import pytest
from explaining import Explained, explained
from explaining_rows import filled_with
from numpy.typing import NDArray

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.embedded import Endpoints
from isotherm.storage.postgres import cold_vectors, tier_candidates
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.tier_candidates import Found, Quotas
from isotherm.storage.postgres.tier_vectors import Near

LARGE, SMALL = Namespace.of("large", "s"), Namespace.of("small", "s")
INDEX, COLD_INDEX = "tier_vectors_near_384", "tier_vectors_bits_384"
ROWS = {"large": 100_000, "small": 60}
# Of ten records of the large namespace one is hot, one is warm and eight are cold, as is usual for old ones. It is also what can
# be made within seconds, since whole vectors take the longest. The indexes are those of the migrations, but made at once and
# with half the care, which no plan depends on.
TIERS = {"large": [3, 2, 1, 1, 1, 1, 1, 1, 1, 1], "small": [3, 2, 2, 2, 2, 2, 2, 2, 2, 2]}
OLD = {7, 11}  # of fifty, those that another model made

_FILL = """
INSERT INTO banks (agent) SELECT 'other' || n FROM generate_series(1, 100) AS n UNION ALL VALUES ('large'), ('small');
INSERT INTO namespaces (bank_id, scope, agent, session) SELECT id, 'session', agent, 's' FROM banks;
CREATE UNLOGGED TABLE given (agent text, n integer, tier smallint, old boolean, vector halfvec, bits varbit);
"""
_RECORDS = """
INSERT INTO tier_records (namespace_id, bank_id, id, content, summary, content_sha256, importance, tier, value_log, created_at,
    last_access_at, size_bytes, indexed, vector_state)
SELECT s.id, s.bank_id, 'r' || g.n, CASE WHEN g.tier > 1 THEN 'text' END, CASE WHEN g.tier = 1 THEN 'text' END,
       sha256('text'), 0.5, g.tier, g.n, now() - g.n * interval '1 minute', now(), 4, true, 'done'
FROM given AS g JOIN namespaces AS s ON s.agent = g.agent ORDER BY g.n;
CREATE TEMPORARY TABLE indexes AS SELECT replace(indexdef, 'ef_construction=''64''', 'ef_construction=''32''') AS indexdef FROM pg_indexes WHERE indexname IN ('tier_vectors_near_384', 'tier_vectors_bits_384');
DROP INDEX tier_vectors_near_384, tier_vectors_bits_384;
SET session_replication_role = replica;
INSERT INTO tier_vectors (record_key, bank_id, namespace_id, model, dim, vector, bits)
SELECT r.key, r.bank_id, r.namespace_id, CASE WHEN g.old THEN 'old' ELSE 'new' END, 384, g.vector, g.bits
FROM given AS g JOIN namespaces AS s ON s.agent = g.agent JOIN tier_records AS r ON r.namespace_id = s.id AND r.id = 'r' || g.n;
RESET session_replication_role;
SET maintenance_work_mem = '256MB';
DO $$ DECLARE definition text; BEGIN FOR definition IN SELECT indexdef FROM indexes LOOP EXECUTE definition; END LOOP; END $$;
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, importance, tier, value_log, created_at,
    last_access_at, size_bytes, indexed)
SELECT s.id, s.bank_id, 'r' || n, 'text', sha256('text'), 0.5, 3, n, now(), now(), 4, true
FROM namespaces AS s, generate_series(1, 40) AS n WHERE s.agent LIKE 'other%';
INSERT INTO cold_words (record_key, bank_id, namespace_id, words)
SELECT key, bank_id, namespace_id, ARRAY[-namespace_id, key] FROM tier_records WHERE tier = 1;
DROP TABLE given
"""


@cache
def vectors(agent: str) -> NDArray[np.float32]:
    """Rows of unit length with about 24 degrees of freedom, as vectors of sentences have; shape (rows, 384)."""
    made = np.random.default_rng(ROWS[agent])
    axes = np.random.default_rng(0).standard_normal((24, 384), np.float32)
    found = made.standard_normal((ROWS[agent], 24), np.float32) @ axes
    found += made.standard_normal((ROWS[agent], 384), np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


@cache
def near() -> Near:
    query = vectors("large")[:40].sum(axis=0) + vectors("small")[:3].sum(axis=0)
    return Near("new", query / np.linalg.norm(query))


def tier(agent: str, n: int) -> int:
    return TIERS[agent][n % 10]


def _copied(agent: str) -> Iterator[bytes]:
    """Rows of `given` in the binary format of COPY: numbers of fields, and each with its length."""
    whole = vectors(agent).astype(">f2")
    signs = np.packbits(vectors(agent) @ cold_vectors._rotation(384).T > 0, axis=1)
    name, none = struct.pack(">i", len(agent)) + agent.encode(), struct.pack(">i", -1)
    for n in range(ROWS[agent]):
        is_cold = tier(agent, n) == 1
        yield struct.pack(">h", 6) + name + struct.pack(">iiihi?", 4, n, 2, tier(agent, n), 1, n % 50 in OLD)
        yield none if is_cold else struct.pack(">ihh", 4 + 768, 384, 0) + whole[n].tobytes()
        yield struct.pack(">ii", 4 + 48, 384) + signs[n].tobytes() if is_cold else none


@pytest.fixture(scope="module")
def filled(endpoints: Endpoints, template: str) -> Iterator[str]:
    with filled_with(endpoints, template, _FILL) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            with conn.cursor().copy("COPY given FROM STDIN (FORMAT binary)") as copy:
                copy.write(b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0))
                for agent in ROWS:
                    for part in _copied(agent):
                        copy.write(part)
                copy.write(struct.pack(">h", -1))
            conn.execute(_RECORDS)
            conn.execute("VACUUM ANALYZE tier_records, tier_vectors, cold_words, banks, namespaces")
        yield dsn
    vectors.cache_clear()


def ask(conn: Explained, scope: Scope, tiers: list[Tier] | None = None, by: Near | None = None) -> Found:
    quotas = Quotas(recent=40, lexical=40, vector=40)
    return tier_candidates.candidates(conn, scope, "", tiers or list(Tier), quotas, near=by or near())  # type: ignore[arg-type]


def by_vector(found: Found) -> set[str]:
    return {c.id for c in found.candidates if "vector" in c.legs}


def nearest(agent: str, count: int, tiers: set[int]) -> set[str]:
    """The truth: what a comparison with every whole vector of this model gives."""
    cosines = vectors(agent) @ near().vector
    ours = [n for n in range(ROWS[agent]) if n % 50 not in OLD and tier(agent, n) in tiers]
    return {f"r{n}" for n in sorted(ours, key=lambda n: -cosines[n])[:count]}


@pytest.mark.parametrize("scope", [Scope(namespace=LARGE), Scope(bank=Bank(None, "large"))], ids=["namespace", "bank"])
def test_large_scope_is_searched_by_its_index(filled: str, scope: Scope) -> None:
    with explained(filled) as conn:
        found = ask(conn, scope)
        assert conn.stays_on(INDEX, COLD_INDEX, "tier_vectors_pkey", rows=2_500, pages=60_000)
    assert len(by_vector(found) & nearest("large", 40, {2, 3})) >= 32
    assert len(by_vector(found) & nearest("large", 40, {1})) >= 20, "signs alone say roughly what is near"
    assert not found.truncated


@pytest.mark.parametrize(
    "scope",
    [
        Scope(namespace=SMALL),
        Scope(bank=Bank(None, "small")),
        Scope(bank=Bank(None, "small"), sessions=("s", "t")),
        Scope(bank=Bank(None, "small"), sessions=()),
    ],
    ids=["namespace", "bank", "sessions", "no session"],
)
def test_small_scope_beside_a_large_one_is_compared_whole(filled: str, scope: Scope) -> None:
    with explained(filled) as conn:
        found = ask(conn, scope)
        assert not {INDEX, COLD_INDEX} & conn.indexes()
        assert conn.stays_on(rows=200, pages=1_500)
    assert by_vector(found) == (set() if scope.sessions == () else nearest("small", 40, {2, 3}))
    assert not found.truncated


def test_tier_that_few_records_are_in_gets_its_full_quota(filled: str) -> None:
    with explained(filled) as conn:
        found = ask(conn, Scope(namespace=LARGE), [Tier.HOT])
    assert len(by_vector(found)) == 40
    assert len(by_vector(found) & nearest("large", 40, {3})) >= 32


def test_cosines_are_those_of_the_vectors_and_only_of_this_model(filled: str) -> None:
    with explained(filled) as conn:
        found = ask(conn, Scope(namespace=LARGE)).candidates
    known = vectors("large") @ near().vector
    assert {int(c.id[1:]) % 50 in OLD for c in found if c.cosine is None} == {True}
    for each in found:
        if each.cosine is not None:
            assert each.cosine == pytest.approx(known[int(each.id[1:])], abs=0.2 if each.tier is Tier.COLD else 2e-3)
    assert {frozenset({"recent"}), frozenset({"vector"})} <= {c.legs for c in found if c.cosine is not None}


def test_search_that_stopped_before_it_had_enough_says_so(filled: str) -> None:
    """The index has no vector of this model at all, and cannot know it."""
    with explained(filled) as conn:
        found = ask(conn, Scope(namespace=LARGE), by=Near("unheard of", near().vector))
    assert found.truncated
    assert by_vector(found) == set()
