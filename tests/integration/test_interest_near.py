from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from numpy.typing import NDArray

from isotherm.pipeline.interest.candidates import Candidate, Point
from isotherm.pipeline.interest.v1_3 import Edge
from isotherm.storage.postgres import interest_history, interest_index, interest_links, interest_near, interest_tend
from isotherm.storage.postgres.pool import Connection, connection

pytestmark = pytest.mark.usefixtures("memory")

MODEL = "of-a-test"
COUNT = 400
OTHERS = ("alpha", "beta", "gamma", "delta")

_POINT = """
INSERT INTO interest_points (id, bank_id, name, canonical, summary, kind, importance, confidence, reliability, status,
    first_seen_at, last_seen_at, seen_count, terms, embedding, embedding_model, embedding_dim)
VALUES (%(id)s, %(bank)s, %(name)s, %(name)s, '', 'interest', 0.5, 0.5, 0.5, 'active', now(), now(), 1, %(terms)s,
    %(vec)s::halfvec, %(model)s, vector_dims(%(vec)s::halfvec))"""


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def directions(count: int, dimension: int = 384) -> NDArray[np.float32]:
    """Unit vectors around twenty middles, so that each has neighbors."""
    random = np.random.default_rng(5)
    middles = random.normal(size=(20, dimension))
    made = middles[np.arange(count) % 20] + 0.8 * random.normal(size=(count, dimension))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def bank(conn: Connection, agent: str) -> int:
    row = conn.execute("INSERT INTO banks (agent) VALUES (%s) RETURNING id", (agent,)).fetchone()
    assert row is not None
    return int(row[0])


def put(conn: Connection, bank_id: int, name: str, vec: NDArray[np.float32], number: int, model: str = MODEL) -> UUID:
    point = UUID(int=bank_id * 1_000_000 + number)
    terms = interest_history.terms_of(name, "", ())
    values = {"id": point, "bank": bank_id, "name": name, "vec": interest_near.written(vec), "model": model}
    conn.execute(_POINT, {**values, "terms": terms})
    return point


def fill(conn: Connection, bank_id: int, vectors: NDArray[np.float32], model: str = MODEL) -> list[UUID]:
    return [put(conn, bank_id, f"thing {n}", vec, n, model) for n, vec in enumerate(vectors)]


def truth(ids: list[UUID], vectors: NDArray[np.float32], asked: NDArray[np.float32]) -> list[set[UUID]]:
    return [{ids[j] for j in np.argsort(-row)[:10]} for row in asked @ vectors.T]


@pytest.mark.parametrize("exact", [interest_near.EXACT, 10])
def test_nearest_of_a_bank_are_found_with_and_without_the_index(monkeypatch: pytest.MonkeyPatch, exact: int) -> None:
    monkeypatch.setattr(interest_near, "EXACT", exact)
    monkeypatch.setattr(interest_near, "_READ", 150)
    monkeypatch.setattr(interest_near, "_TOGETHER", 7)
    vectors = directions(COUNT)
    with connection() as conn:
        mine, yours = bank(conn, "mine"), bank(conn, "yours")
        ids = fill(conn, mine, vectors[: COUNT // 2])
        fill(conn, yours, vectors)
        conn.execute("INSERT INTO interest_banks (bank_id) SELECT id FROM banks")
    monkeypatch.setattr(interest_index, "_BATCH", 60)
    assert interest_index.grow(mine) == (exact == 10)
    assert not interest_index.grow(mine)
    with connection() as conn:
        # What comes later is found too.
        ids += [put(conn, mine, f"later {n}", vec, n) for n, vec in enumerate(vectors) if n >= COUNT // 2]
        in_index = conn.execute(
            "SELECT count(*) FROM interest_points WHERE indexed AND bank_id = %s", (mine,)
        ).fetchone()
        assert in_index == (COUNT if exact == 10 else 0,)
        asked = directions(COUNT + 20)[-20:]
        found = interest_near.nearest(conn, mine, [*asked, None], MODEL, 10)
    assert found[20] == []
    expected = truth(ids, vectors, asked)
    hits = sum(len({one for one, _ in near} & want) for near, want in zip(found[:20], expected, strict=True))
    assert hits >= 198
    assert all(near == sorted(near, key=lambda one: -one[1]) for near in found)
    best, cosine = found[0][0]
    assert cosine == pytest.approx(float(asked[0] @ vectors[ids.index(best)]), abs=0.002)


def test_vectors_of_another_model_or_length_are_not_compared() -> None:
    vectors = directions(3)
    with connection() as conn:
        mine = bank(conn, "mine")
        put(conn, mine, "other model", vectors[0], 1, "another")
        put(conn, mine, "other length", directions(1, 8)[0], 2)
        kept = put(conn, mine, "the same", vectors[1], 3)
        found = interest_near.nearest(conn, mine, [vectors[0]], MODEL, 10)
    assert [one for one, _ in found[0]] == [kept]


def test_words_that_many_points_share_propose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest_history, "_COMMON", 3)
    with connection() as conn:
        mine = bank(conn, "mine")
        for number, vec in enumerate(directions(4)):
            put(conn, mine, f"walking near harbor {OTHERS[number]}", vec, number)
        asked = [Point(Candidate("harbor")), Point(Candidate("gamma rays"))]
        assert {p.name for p in interest_history.near(conn, mine, asked, None).points} == {"walking near harbor gamma"}


def test_postings_follow_the_words_and_the_state_of_a_point() -> None:
    with connection() as conn:
        mine = bank(conn, "mine")
        point = put(conn, mine, "rowing boats", directions(1)[0], 1)
        first = conn.execute("SELECT count(*) FROM interest_postings").fetchone()
        conn.execute("UPDATE interest_points SET terms = ARRAY[7, 7, 8]::bigint[] WHERE id = %s", (point,))
        second = conn.execute("SELECT array_agg(term ORDER BY term) FROM interest_postings").fetchone()
        conn.execute("UPDATE interest_points SET status = 'archived' WHERE id = %s", (point,))
        third = conn.execute("SELECT count(*) FROM interest_postings").fetchone()
        conn.execute("UPDATE interest_points SET status = 'active' WHERE id = %s", (point,))
        fourth = conn.execute("SELECT count(*) FROM interest_postings").fetchone()
        conn.execute("DELETE FROM interest_points")
        fifth = conn.execute("SELECT count(*) FROM interest_postings").fetchone()
    assert first != (0,)
    assert (second, third, fourth, fifth) == (([7, 8],), (0,), (2,), (0,))


def test_another_vector_has_other_likenesses() -> None:
    one, two = np.eye(8, dtype=np.float32)[:2]
    with connection() as conn:
        mine = bank(conn, "mine")
        near_one, near_two = put(conn, mine, "near one", one, 1), put(conn, mine, "near two", two, 2)
        moved = put(conn, mine, "moved", one, 3)
        interest_links.add(conn, mine, [Edge(near_two, moved, "sequel")])
        interest_tend.relate(conn, mine, {moved: one}, MODEL)
        first = conn.execute("SELECT source_id, target_id FROM interest_edges WHERE kind = 'related'").fetchall()
        conn.execute("UPDATE interest_points SET embedding = '[0,1,0,0,0,0,0,0]' WHERE id = %s", (moved,))
        interest_tend.relate(conn, mine, {moved: two}, MODEL)
        found = conn.execute("SELECT source_id, target_id, kind FROM interest_edges ORDER BY kind").fetchall()
    assert first == [(near_one, moved)]
    assert found == [(near_two, moved, "related"), (near_two, moved, "sequel")]
