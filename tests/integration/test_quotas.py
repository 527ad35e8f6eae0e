from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from commanding import answer, isotherm
from inprocess import drive

from isotherm.pipeline.events import Event, QuotaExceeded
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import observe, producers, ticks

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

POLICY = {"hot_capacity": None, "warm_capacity": None, "hot_ttl": None, "warm_ttl": None, "demote_idle": None}


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def fill(tenant: str | None, *sessions: str, count: int = 10) -> None:
    now = datetime.now(UTC)
    for n, session in enumerate(sessions):
        place = Namespace.of("atlas", session, tenant=tenant)
        records = [NewRecord(f"r{i}", "0123456789", now - timedelta(hours=i * 2 + n)) for i in range(count)]
        producers.remember_records(place, records)
    drive()


def held(tenant: str | None) -> dict[int, int]:
    sql = """SELECT r.tier, count(*) FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id
             WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text GROUP BY r.tier"""
    return dict(fetch_all(sql, {"tenant": tenant}))


@pytest.fixture
def quotas(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Storage:
    given = {"acme": {"records": 6}, "*": {"bytes": 150}}
    monkeypatch.setenv("ISOTHERM_QUOTAS", json.dumps(given))
    monkeypatch.setenv("ISOTHERM_TIER", json.dumps({**POLICY, **getattr(request, "param", {})}))
    monkeypatch.setenv("ISOTHERM_QUOTA_TICK", "0.001")
    memory: Storage = request.getfixturevalue("memory")
    return memory


def test_a_plan_shows_what_a_quota_will_move_and_how_much_is_left_for_later(quotas: Storage) -> None:
    assert quotas
    fill("acme", "s1", "s2", count=5)
    fill("small", "s1", count=3)
    plans = answer("tiers", "plan", "--agent", "atlas", "--tenant", "acme")
    moves = [(p["session"], m["id"], m["reason"]) for p in plans for m in p["moves"]]
    assert moves == [("s1", "r4", "quota"), ("s1", "r3", "quota"), ("s2", "r4", "quota"), ("s2", "r3", "quota")]
    [one] = answer("tiers", "plan", "--agent", "atlas", "--tenant", "acme", "--session", "s2")
    assert [m["id"] for m in one["moves"]] == ["r4", "r3"]
    assert (one["truncated"], one["held_until"]) == (False, None)
    assert answer("tiers", "plan", "--agent", "atlas", "--tenant", "small")[0]["moves"] == []
    assert held("acme") == {3: 10}


@pytest.mark.parametrize("quotas", [{"hot_capacity": 2, "max_moves": 3, "cooldown": "P1D"}], indirect=True)
def test_a_plan_says_what_one_pass_leaves_and_what_a_cool_down_holds(quotas: Storage) -> None:
    assert quotas
    fill("small", "s1")
    [first] = answer("tiers", "plan", "--agent", "atlas", "--tenant", "small")
    assert (len(first["moves"]), first["truncated"]) == (3, True)
    assert (
        "more is due than one pass moves" in isotherm("tiers", "plan", "--agent", "atlas", "--tenant", "small").stdout
    )
    with connection() as conn:
        conn.execute("UPDATE tier_records SET moved_at = now(), moved_from = 2")
    [second] = answer("tiers", "plan", "--agent", "atlas", "--tenant", "small")
    assert second["held_until"] is not None
    assert "a cool-down holds some back" in isotherm("tiers", "plan", "--agent", "atlas", "--tenant", "small").stdout


def test_tenant_over_its_quota_goes_colder_least_valuable_first_and_loses_nothing(quotas: Storage) -> None:
    assert quotas
    fill("acme", "s1", "s2")
    fill(None, "s1", "s2")
    fill("small", "s1", count=3)
    events: list[Event] = []
    forget = observe.observe(lambda event, _: events.append(event))
    for _ in range(2):
        assert ticks.hold_quotas() == {"tenants": 2}
        drive()
    forget()
    assert ticks.hold_quotas() == {"tenants": 0}
    assert (held("acme"), held(None), held("small")) == ({3: 6, 1: 14}, {3: 15, 1: 5}, {3: 3})
    reasons = fetch_all("SELECT DISTINCT reason FROM tier_moves")
    assert reasons == [("quota",)]
    told = [(e.tenant, e.over_records, e.over_bytes, e.moves) for e in events if isinstance(e, QuotaExceeded)]
    assert sorted(told, key=str) == sorted(
        [("acme", 14, 0, 14), ("acme", 14, 0, 14), (None, 0, 50, 5), (None, 0, 50, 5)], key=str
    )
    newest = fetch_all("""SELECT r.id, n.session FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id
                          WHERE n.tenant = 'acme' AND r.tier = 3 ORDER BY 2, 1""")
    assert newest == [(f"r{n}", s) for s in ("s1", "s2") for n in range(3)]


@pytest.mark.parametrize("quotas", [{"cold_capacity": 1_000}], indirect=True)
def test_tenant_over_its_quota_is_evicted_from_cold_where_the_policy_evicts(quotas: Storage) -> None:
    assert quotas
    fill("acme", "s1")
    for _ in range(6):
        ticks.hold_quotas()
        drive()
    assert held("acme") == {3: 6}
    assert {r.id for r in quotas.tier.tail(Namespace.of("atlas", "s1", tenant="acme"))} == {f"r{n}" for n in range(6)}


def test_write_over_the_quota_is_taken(quotas: Storage) -> None:
    fill("acme", "s1")
    place = Namespace.of("atlas", "s1", tenant="acme")
    accepted = producers.remember(place, "one more")
    assert accepted.written == 1
    assert quotas.tier.get(place, accepted.ids[0]).tier is Tier.HOT
