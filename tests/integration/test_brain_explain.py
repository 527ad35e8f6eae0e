"""The legs of a search stay on their indexes, however large one namespace is beside the others."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest
from psycopg import sql

from isotherm.pipeline.brain import graph_rank
from isotherm.pipeline.brain.filters import Filters
from isotherm.storage.postgres import (
    brain_exact,
    brain_mentions,
    brain_names,
    brain_read,
    brain_search,
    brain_walk,
    pool,
)
from isotherm.storage.postgres.brain_search import Near

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.embedded import Endpoints

BIG = {"brain_objects", "brain_postings", "brain_terms", "brain_stats_deltas", "brain_names", "brain_edges"}
LARGE_ROWS, SMALL_ROWS, UNFOLDED = 6_000, 40, 100

_FILL = """
INSERT INTO banks (agent) SELECT 'large' UNION ALL SELECT 'small' || n FROM generate_series(1, 50) AS n;
INSERT INTO namespaces (bank_id, scope, agent) SELECT id, 'knowledge', agent FROM banks;
INSERT INTO brain_objects (namespace_id, bank_id, id, kind, title, summary, content, content_type, properties, index_sha256,
    terms, length, vector, vector_model, vector_dim, vector_state, created_at, updated_at)
SELECT s.id, s.bank_id, gen_random_uuid(), CASE WHEN n % 50 = 0 THEN 'rare' ELSE 'note' END, 'title ' || n, '', repeat('word ', 50), '',
       jsonb_build_object('n', n % 100), sha256('x'), ARRAY[n % 300, 1000 + n % 7, 5000 + n], 3,
       (SELECT array_agg(sin(n * (d + 1)) ORDER BY d) FROM generate_series(0, 383) AS d)::real[]::halfvec,
       'm', 384, 'done', now(), now()
FROM namespaces AS s, generate_series(1, CASE WHEN s.agent = 'large' THEN %(large)s ELSE %(small)s END) AS n;
INSERT INTO brain_postings SELECT namespace_id, t, key, 1, 3 FROM brain_objects, unnest(terms) AS t;
INSERT INTO brain_stats SELECT namespace_id, count(*), 3 * count(*) FROM brain_objects GROUP BY 1;
INSERT INTO brain_terms SELECT namespace_id, term, count(*) FROM brain_postings GROUP BY 1, 2;
INSERT INTO brain_stats_deltas (namespace_id, documents, length, terms, counts)
SELECT s.id, 0, 0, '{}', '{}' FROM namespaces AS s, generate_series(1, %(unfolded)s) AS n;
INSERT INTO brain_names SELECT namespace_id, title, key, id, terms[3], terms[3:3], true FROM brain_objects;
INSERT INTO brain_edges (namespace_id, source, target, label, note, status, role, mentions)
SELECT s.namespace_id, s.id, t.id, 'mentions', '', '', '', 1 FROM brain_objects AS s
JOIN brain_objects AS t ON t.namespace_id = s.namespace_id AND t.key IN (s.key + 1, s.key + 3, s.key - s.key % 1000)
WHERE t.id <> s.id;
"""


@pytest.fixture(scope="module")
def filled(endpoints: Endpoints, template: str) -> Iterator[str]:
    name = f"brain_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in _FILL.split(";\n"):
            if statement.strip():
                sizes = {"%(large)s": LARGE_ROWS, "%(small)s": SMALL_ROWS, "%(unfolded)s": UNFOLDED}
                for mark, size in sizes.items():
                    statement = statement.replace(mark, str(size))  # noqa: PLW2901
                conn.execute(statement)
        conn.execute("VACUUM ANALYZE")
    yield dsn
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class Explained:
    """Takes a connection's place: explains every statement for its values and for any, then runs it."""

    autocommit = False

    def __init__(self, conn: pool.Connection) -> None:
        self._conn = conn
        self.plans: list[dict[str, Any]] = []

    def execute(self, statement: str, params: Any = None) -> Any:
        if "set_config" not in statement:
            for options in ("FORMAT JSON", "FORMAT JSON, ANALYZE, TIMING OFF"):
                row = self._conn.execute(f"EXPLAIN ({options}) {statement}", params, prepare=False).fetchone()
                assert row is not None
                plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
                self.plans.append(plan[0]["Plan"])
        return self._conn.execute(statement, params, prepare=False)

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        yield

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = list(self.plans)
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", [])
            yield node

    def scanned(self) -> set[str]:
        return {n["Relation Name"] for n in self.nodes() if n["Node Type"] == "Seq Scan"} & BIG

    def indexes(self) -> set[str]:
        return {n["Index Name"] for n in self.nodes() if "Index Name" in n}

    def begun(self) -> set[str]:
        return {n["Index Name"] for n in self.nodes() if "Index Name" in n and n.get("Actual Loops")}

    def most_rows(self) -> int:
        return max(int(n.get("Actual Rows", 0) * n.get("Actual Loops", 1)) for n in self.nodes())


@pytest.fixture
def conn(filled: str) -> Iterator[Any]:
    with psycopg.connect(filled) as real:
        pool._configure(real)
        real.execute("SET random_page_cost = 1.1")
        yield Explained(real)
        real.rollback()


def namespace(conn: Explained, agent: str) -> int:
    row = conn._conn.execute("SELECT id FROM namespaces WHERE agent = %s", (agent,)).fetchone()
    assert row is not None
    return int(row[0])


NEAR = Near("m", np.sin(np.arange(1, 385, dtype=np.float32) * 7) / 14)
FILTERS = {
    "all": Filters(),
    "kind": Filters.of(kinds=["rare"]),
    "property": Filters.of(properties={"n": [3, 4]}),
    "range": Filters.of(properties={"n": {"gte": 3, "lt": 9}}, updated_after="2020-01-01"),
    "ids": Filters.of(scope_ids=[UUID(int=1)]),
}


@pytest.mark.parametrize("agent", ["large", "small7"])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
def test_words_are_read_from_their_index(conn: Explained, agent: str, filters: Filters) -> None:
    ns = namespace(conn, agent)
    for small in (True, False):
        found = brain_search.lexical(conn, ns, [3, 1_003, 5_003], filters, 40, small=small)  # type: ignore[arg-type]
        assert found.found or filters is FILTERS["ids"] or agent == "small7"
    assert conn.scanned() == set()
    assert "brain_postings_pkey" in conn.indexes()


def test_frequent_words_are_scored_only_for_what_the_rare_ones_propose(
    conn: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brain_search, "CANDIDATE_POSTINGS", 100)
    ns = namespace(conn, "large")
    assert len(brain_search.lexical(conn, ns, [3, 1_003], Filters(), 20).found) == 20  # type: ignore[arg-type]
    assert conn.most_rows() < 200, "a word of 857 postings is not read whole"


@pytest.mark.parametrize("agent", ["large", "small7"])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
def test_vectors_of_few_rows_are_compared_one_by_one_and_those_of_most_rows_come_from_their_index(
    conn: Explained, agent: str, filters: Filters
) -> None:
    ns = namespace(conn, agent)
    brain_search.is_small(conn, ns, filters)  # type: ignore[arg-type]
    found = brain_search.vectors(conn, ns, NEAR, filters, 40)  # type: ignore[arg-type]
    assert found.found or filters is FILTERS["ids"] or agent == "small7"
    if agent == "small7":
        assert conn.scanned() == set()
        # The index of properties knows no namespaces; what it proposes of others is dropped at once.
        # Without filters the size is read from the statistics, with the changes that wait there.
        assert conn.most_rows() <= (SMALL_ROWS if filters.narrow else UNFOLDED) or filters is FILTERS["property"]
    whole = agent == "large" and not filters.narrow
    assert {name for name in conn.begun() if name.startswith("brain_objects_vector")} == (
        {"brain_objects_vector_384"} if whole else set()
    )


@pytest.mark.parametrize("filters", [FILTERS["all"], FILTERS["kind"]], ids=["all", "kind"])
def test_vectors_of_many_rows_come_from_their_index(
    conn: Explained, monkeypatch: pytest.MonkeyPatch, filters: Filters
) -> None:
    monkeypatch.setattr(brain_search, "EXACT", 50)
    monkeypatch.setattr(brain_search, "EXACT_ALONE", 50)
    ns = namespace(conn, "large")
    conn.plans.clear()
    found = brain_search.vectors(conn, ns, NEAR, filters, 40)  # type: ignore[arg-type]
    assert len(found.found) >= 15
    assert "brain_objects_vector_384" in conn.begun()
    assert conn.scanned() == set()


def test_objects_are_read_by_key(conn: Explained) -> None:
    ns = namespace(conn, "large")
    ids = [row[0] for row in conn._conn.execute("SELECT id FROM brain_objects WHERE namespace_id = %s LIMIT 10", (ns,))]
    assert len(brain_read.by_id(conn, ns, ids)) == 10  # type: ignore[arg-type]
    assert len(brain_read.shown(conn, ns, ids, ids[:3], 100)[1]) == 3  # type: ignore[arg-type]
    brain_read.parts(conn, ns, ids[0], 10)  # type: ignore[arg-type]
    assert conn.scanned() == set()


@pytest.mark.parametrize("agent", ["large", "small7"])
def test_names_are_looked_up_in_their_indexes(conn: Explained, agent: str) -> None:
    ns = namespace(conn, agent)
    equal = brain_exact.equal(conn, ns, "Title 17", Filters(), 10, fields=["n"])  # type: ignore[arg-type]
    assert len(equal) == 1
    assert conn.scanned() == set()
    if agent == "large":
        assert "brain_objects_by_title" in conn.indexes()
    assert conn.most_rows() <= SMALL_ROWS
    conn.plans.clear()
    assert brain_exact.alike(conn, ns, "titel 17", Filters(), 10).found  # type: ignore[arg-type]
    assert conn.scanned() == set()
    if agent == "large":
        assert "brain_objects_alike" in conn.indexes()


def some(conn: Explained, ns: int, count: int) -> list[UUID]:
    rows = conn._conn.execute("SELECT id FROM brain_objects WHERE namespace_id = %s ORDER BY key LIMIT %s", (ns, count))
    return [row[0] for row in rows]


@pytest.mark.parametrize("agent", ["large", "small7"])
def test_edges_around_objects_are_read_from_their_indexes_and_hubs_as_far_as_needed(
    conn: Explained, agent: str
) -> None:
    ns = namespace(conn, agent)
    asked = some(conn, ns, 30)
    assert any(each.going for each in brain_walk.around(conn, ns, list(map(str, asked))).values())
    assert conn.scanned() == set()
    assert {"brain_edges_out", "brain_edges_in"} <= conn.indexes()
    assert conn.most_rows() <= len(asked) * (graph_rank.HUB + graph_rank.OUTGOING + 2)


@pytest.mark.parametrize("agent", ["large", "small7"])
def test_names_are_looked_up_by_what_they_are_and_by_their_words(conn: Explained, agent: str) -> None:
    ns = namespace(conn, agent)
    names = [f"title {n}" for n in range(300)]
    assert any(each.names for each in brain_walk.around(conn, ns, [], names=names, most=32).values())
    assert brain_names.by_words(conn, ns, [5_000 + n for n in range(1, 40)])
    assert conn.scanned() == set()
    assert conn.most_rows() <= 300


@pytest.mark.parametrize("agent", ["large", "small7"])
def test_texts_to_read_are_found_by_the_words_of_new_names_and_by_edges(conn: Explained, agent: str) -> None:
    ns = namespace(conn, agent)
    brain_mentions.to_read(conn, ns, some(conn, ns, 5))
    conn._conn.execute("UPDATE brain_names SET linked = false")
    brain_mentions.to_read(conn, ns, some(conn, ns, 5))
    assert conn.scanned() == set()
    assert conn.most_rows() <= 6_000  # an object in six mentions the first one
