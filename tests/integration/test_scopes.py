from __future__ import annotations

from dataclasses import astuple
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inprocess import drive

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.storage.postgres import namespaces, tier_candidates, tier_move
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.tier_candidates import Quotas
from isotherm.tasks import producers

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

T0 = datetime(2026, 7, 1, 12, tzinfo=UTC)

# Names that a joined key would confuse.
PART = st.sampled_from(["a", "b", "a:b", "b:a", ":", "a:", "%", "_", "None", "null", "A", "\u00e1"])
NAMESPACES = st.builds(
    Namespace,
    agent=PART,
    session=st.none() | PART,
    scope=st.sampled_from(["session", "audit", "session:a"]),
    run=st.none() | PART,
    tenant=st.none() | PART,
)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def remember(namespace: Namespace) -> str:
    """One record that says whose it is; every record shares the words of the query."""
    name = repr(astuple(namespace))
    producers.remember_records(namespace, [NewRecord(id="same id", content=f"kelp of {name}", created_at=T0)])
    return f"kelp of {name}"


def by_words(scope: Namespace | Bank) -> set[str | None]:
    """What the index of words proposes alone."""
    within = Scope(bank=scope) if isinstance(scope, Bank) else Scope(namespace=scope)
    with connection() as conn:
        found = tier_candidates.candidates(conn, within, "kelp", list(Tier), Quotas(recent=0, lexical=50)).candidates
        keys = [one.key for one in found if one.overlap > 0]
        return {text for (text,) in conn.execute("SELECT summary FROM tier_records WHERE key = ANY(%s)", (keys,))}


def send_cold() -> None:
    """Every record, one step after the other."""
    hot = fetch_all("SELECT key, version FROM tier_records WHERE tier = 3 ORDER BY key")
    with connection() as conn:
        tier_move.shift(conn, uuid4(), [Move(key, v, Tier.HOT, Tier.WARM, Reason.CAPACITY) for key, v in hot])
    warm = fetch_all("SELECT key, version FROM tier_records WHERE tier = 2 ORDER BY key")
    moves = [Move(key, version, Tier.WARM, Tier.COLD, Reason.CAPACITY) for key, version in warm]
    with connection() as conn:
        assert len(tier_move.archive(conn, uuid4(), moves, {}, min_bytes=1_000).moves) == len(moves)


def said(scope: Namespace | Bank, query: str = "kelp", sessions: list[str] | None = None) -> set[str | None]:
    return {i.record.content for i in producers.recall(scope, query, sessions=sessions, touch=False).items}


@settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(spaces=st.lists(NAMESPACES, min_size=2, max_size=8, unique=True), indexed=st.booleans())
def test_tier_x22_records_are_seen_from_their_own_namespace_and_bank_only(
    memory: Storage, spaces: list[Namespace], *, indexed: bool
) -> None:
    with connection() as conn:
        conn.execute("TRUNCATE tier_records, tier_postings, operations, outbox, cold_bodies, tier_moves CASCADE")
    texts = {namespace: remember(namespace) for namespace in spaces}
    for namespace in spaces:
        memory.tail.invalidate(namespaces.resolve(namespace).namespace_id)
    if indexed:
        drive()
    for namespace, text in texts.items():
        assert said(namespace) == said(namespace, "") == {text}
        assert [r.content for r in memory.tier.tail(namespace)] == [text]
        assert memory.tier.get(namespace, "same id").content == text
        of_bank = {other: t for other, t in texts.items() if other.bank == namespace.bank}
        assert said(namespace.bank) == said(namespace.bank, "") == set(of_bank.values())
        if namespace.session is not None:
            same = {t for other, t in of_bank.items() if other.session == namespace.session}
            assert said(namespace.bank, sessions=[namespace.session]) == same
    if indexed:
        send_cold()
        for namespace, text in texts.items():
            assert by_words(namespace) == {text}
            assert by_words(namespace.bank) == {t for n, t in texts.items() if n.bank == namespace.bank}


def test_bank_with_no_sessions_listed_sees_nothing(memory: Storage) -> None:
    assert memory
    remember(Namespace.of("a", "s1"))
    assert said(Bank(None, "a"), sessions=[]) == said(Bank(None, "a"), "", sessions=[]) == set()
    assert said(Bank(None, "a"), sessions=["other"]) == set()


def test_bank_sees_all_or_the_listed_sessions(memory: Storage) -> None:
    assert memory
    texts = {session: remember(Namespace.of("a", session)) for session in ("s1", "s2", "s3")}
    none = remember(Namespace.of("a"))
    drive()
    assert said(Bank(None, "a")) == {*texts.values(), none}
    assert said(Bank(None, "a"), sessions=["s1", "s3"]) == {texts["s1"], texts["s3"]}


def test_missing_tenant_is_not_any_tenant(memory: Storage) -> None:
    assert memory
    free, owned = Namespace.of("a", "s1"), Namespace.of("a", "s1", tenant="x")
    texts = [remember(free), remember(owned)]
    drive()
    assert (said(free), said(owned)) == ({texts[0]}, {texts[1]})
    assert (said(Bank(None, "a")), said(Bank("x", "a"))) == ({texts[0]}, {texts[1]})
    with pytest.raises(RejectedError):
        said(Bank("", "a"))


def test_a_scope_is_one_namespace_or_one_bank() -> None:
    with pytest.raises(RejectedError):
        Scope()
    with pytest.raises(RejectedError):
        Scope(bank=Bank(None, "a"), namespace=Namespace.of("a"))
    with pytest.raises(RejectedError):
        Scope(namespace=Namespace.of("a"), sessions=("s1",))


def test_namespaces_are_listed_by_tenant_and_agent(memory: Storage) -> None:
    assert memory
    spaces = [Namespace.of("a", "s1"), Namespace.of("b"), Namespace.of("a"), Namespace.of("a", "s1", tenant="x")]
    for namespace in spaces:
        namespaces.resolve(namespace)
    with connection() as conn:
        assert [row.namespace for row in namespaces.listed(conn, tenant=None)] == [spaces[2], spaces[0], spaces[1]]
        assert [row.namespace for row in namespaces.listed(conn, tenant="x")] == [spaces[3]]
        assert [row.namespace for row in namespaces.listed(conn, tenant=None, agent="b")] == [spaces[1]]


def test_ids_of_a_namespace_are_made_once_and_remembered(memory: Storage) -> None:
    assert memory
    namespace = Namespace.of("a", "s1", run="r")
    assert namespaces.find(namespace) is None
    place = namespaces.resolve(namespace)
    namespaces.forget_places()
    assert namespaces.find(namespace) == namespaces.resolve(namespace) == place
    assert fetch_all("SELECT count(*) FROM namespaces") == [(1,)]
