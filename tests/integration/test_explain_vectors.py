"""What is near a query is found by its index in a large scope, by comparing all in a small one, and always inside the scope."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import numpy as np
import psycopg
import pytest
from explaining import Explained, explained
from numpy.typing import NDArray
from psycopg import sql

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.embedded import Endpoints
from isotherm.storage.postgres import tier_candidates
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.tier_candidates import Found, Quotas
from isotherm.storage.postgres.tier_vectors import Near

LARGE, SMALL = Namespace.of("large", "s"), Namespace.of("small", "s")
INDEX = "tier_vectors_near_384"
ROWS = {"large": 5_000, "small": 60}

_FILL = """
INSERT INTO banks (agent) SELECT 'other' || n FROM generate_series(1, 100) AS n UNION ALL VALUES ('large'), ('small');
INSERT INTO namespaces (bank_id, scope, agent, session) SELECT id, 'session', agent, 's' FROM banks;
CREATE TEMPORARY TABLE given (agent text, n integer, vector halfvec);
"""
_RECORDS = """
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, importance, tier, value_log, created_at,
    last_access_at, size_bytes, indexed, vector_state)
SELECT s.id, s.bank_id, 'r' || g.n, 'text', sha256('text'), 0.5, CASE WHEN g.n % 10 = 0 THEN 3 ELSE 2 END, g.n,
       now() - g.n * interval '1 minute', now(), 4, true, 'done'
FROM given AS g JOIN namespaces AS s ON s.agent = g.agent;
INSERT INTO tier_vectors (record_key, bank_id, namespace_id, model, dim, vector)
SELECT r.key, r.bank_id, r.namespace_id, CASE WHEN g.n % 50 = 7 THEN 'old' ELSE 'new' END, 384, g.vector
FROM given AS g JOIN namespaces AS s ON s.agent = g.agent JOIN tier_records AS r ON r.namespace_id = s.id AND r.id = 'r' || g.n;
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, importance, tier, value_log, created_at,
    last_access_at, size_bytes, indexed)
SELECT s.id, s.bank_id, 'r' || n, 'text', sha256('text'), 0.5, 3, n, now(), now(), 4, true
FROM namespaces AS s, generate_series(1, 40) AS n WHERE s.agent LIKE 'other%'
"""


def vectors(agent: str) -> NDArray[np.float64]:
    """Rows of unit length with about 24 degrees of freedom, as vectors of sentences have; shape (rows, 384)."""
    made = np.random.default_rng(ROWS[agent])
    axes = np.random.default_rng(0).standard_normal((24, 384))
    found = made.standard_normal((ROWS[agent], 24)) @ axes + made.standard_normal((ROWS[agent], 384))
    unit: NDArray[np.float64] = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


QUERY = (vectors("large")[:40].sum(axis=0) + vectors("small")[:3].sum(axis=0)).astype(np.float32)
NEAR = Near("new", QUERY / np.linalg.norm(QUERY))


@pytest.fixture(scope="module")
def filled(endpoints: Endpoints, template: str) -> Iterator[str]:
    name = f"vectors_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(_FILL)
        with conn.cursor().copy("COPY given FROM STDIN") as copy:
            for agent in ROWS:
                for n, row in enumerate(vectors(agent)):
                    copy.write_row((agent, n, f"[{','.join(f'{x:.5f}' for x in row)}]"))
        conn.execute(_RECORDS)
        conn.execute("VACUUM ANALYZE tier_records, tier_vectors, banks, namespaces")
    yield dsn
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def ask(conn: Explained, scope: Scope, tiers: list[Tier] | None = None, near: Near = NEAR) -> Found:
    quotas = Quotas(recent=40, lexical=40, vector=40)
    return tier_candidates.candidates(conn, scope, "a query", tiers or list(Tier), quotas, near=near)  # type: ignore[arg-type]


def by_vector(found: Found) -> set[str]:
    return {c.id for c in found.candidates if "vector" in c.legs}


def nearest(agent: str, count: int, *, hot_only: bool = False) -> list[str]:
    """The truth: what a comparison with every vector of this model gives, best first."""
    cosines = vectors(agent) @ NEAR.vector
    ours = [n for n in range(ROWS[agent]) if n % 50 != 7 and not (hot_only and n % 10)]
    return [f"r{n}" for n in sorted(ours, key=lambda n: -cosines[n])[:count]]


@pytest.mark.parametrize("scope", [Scope(namespace=LARGE), Scope(bank=Bank(None, "large"))], ids=["namespace", "bank"])
def test_large_scope_is_searched_by_its_index(filled: str, scope: Scope) -> None:
    with explained(filled) as conn:
        found = ask(conn, scope)
        assert INDEX in conn.indexes()
        assert conn.scanned() == set()
    assert len(by_vector(found) & set(nearest("large", 40))) >= 36
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
        assert INDEX not in conn.indexes()
        assert conn.scanned() == set()
    assert by_vector(found) == (set() if scope.sessions == () else set(nearest("small", 40)))
    assert not found.truncated


def test_tier_that_few_records_are_in_gets_its_full_quota(filled: str) -> None:
    with explained(filled) as conn:
        found = ask(conn, Scope(namespace=LARGE), [Tier.HOT])
    assert len(by_vector(found)) == 40
    assert len(by_vector(found) & set(nearest("large", 40, hot_only=True))) >= 36


def test_cosines_are_those_of_the_vectors_and_only_of_this_model(filled: str) -> None:
    with explained(filled) as conn:
        found = ask(conn, Scope(namespace=LARGE)).candidates
    known = vectors("large") @ NEAR.vector
    assert {int(c.id[1:]) % 50 == 7 for c in found if c.cosine is None} == {True}
    assert all(c.cosine == pytest.approx(known[int(c.id[1:])], abs=2e-3) for c in found if c.cosine is not None)
    assert {frozenset({"recent"}), frozenset({"vector"})} <= {c.legs for c in found if c.cosine is not None}


def test_search_that_stopped_before_it_had_enough_says_so(filled: str) -> None:
    """The index has no vector of this model at all, and cannot know it."""
    with explained(filled) as conn:
        found = ask(conn, Scope(namespace=LARGE), near=Near("unheard of", NEAR.vector))
    assert found.truncated
    assert by_vector(found) == set()
