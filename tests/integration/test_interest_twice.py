"""A plan written twice, and a session read twice, are as one, whatever a model wrote."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID

import pytest
from any_reply import Writer
from hash_embedder import HashEmbedder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inprocess import drive
from sessions import ingest, session

from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import interest_decide

_AGENTS = count()
_STATE = {
    "points": "interest_points",
    "evidence": "interest_evidence",
    "edges": "interest_edges",
    "contradictions": "interest_contradictions",
    "log": "interest_log",
}
# Each example is two or three whole runs.
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
WORDS = st.lists(st.sampled_from(["kelp", "kelp forests", "nori", "tea", "dark mode"]), min_size=1, max_size=4)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def embedded(memory: Storage) -> Storage:
    factory.use_embedder(memory.settings, HashEmbedder(32, "test"))
    return memory


def state(agent: str, conn: Any = None) -> dict[str, list[str]]:
    """All that is stored of an agent's interests. Args: conn: whose transaction is looked into."""
    sql = "SELECT to_jsonb(t) - 'updated_at' FROM {} AS t JOIN banks AS b ON b.id = t.bank_id WHERE b.agent = %(agent)s"
    asked = {name: (sql.format(table), {"agent": agent}) for name, table in _STATE.items()}
    rows = {name: fetch_all(*one) if conn is None else conn.execute(*one).fetchall() for name, one in asked.items()}
    return {name: sorted(map(repr, found)) for name, found in rows.items()}


def read(agent: str, words: list[str], name: str = "s1", day: int = 0) -> UUID:
    operation_id = ingest(session(name, *(f"I love {word}." for word in words), agent=agent, day=day))
    drive(operation_id)
    return operation_id


@pytest.mark.usefixtures("embedded")
@FEW
@given(data=st.data(), before=WORDS, words=WORDS)
def test_interest_any_reply_is_persisted_once_however_often_that_is_tried(
    data: st.DataObject, before: list[str], words: list[str]
) -> None:
    agent, writer = f"agent{next(_AGENTS)}", Writer(data)
    seen: list[dict[str, list[str]]] = []
    write = interest_decide._write

    def twice(conn: Any, step: Any) -> Any:
        found = write(conn, step)
        seen.append(state(agent, conn))
        assert not write(conn, step).changed
        seen.append(state(agent, conn))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "chat_model", lambda _: writer)
        read(agent, before)
        patch.setattr(interest_decide, "_write", twice)
        read(agent, words, "s2", day=1)
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.usefixtures("embedded")
@FEW
@given(data=st.data(), before=WORDS, words=WORDS)
def test_interest_any_reply_to_two_runs_of_one_session_is_as_one(
    data: st.DataObject, before: list[str], words: list[str]
) -> None:
    agent, writer = f"agent{next(_AGENTS)}", Writer(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "chat_model", lambda _: writer)
        read(agent, before)
        read(agent, words, "s2", day=1)
        once = state(agent)
        waiting = [one for one in once["points"] if "pending_review" in one]
        with connection() as conn:
            conn.execute("DELETE FROM operations")  # as when their keys are no longer remembered
        read(agent, words, "s2", day=1)
    twice = state(agent)
    # What waits for review may be judged by the second run; nothing is said more often for that, and no point is new.
    assert _said(once) == _said(twice)
    assert len(twice["points"]) == len(once["points"])
    if not waiting:
        assert {**once, "log": len(once["log"])} == {**twice, "log": len(twice["log"])}


def _said(found: dict[str, list[str]]) -> int:
    return len(found["evidence"])
