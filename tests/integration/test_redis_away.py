from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import drive
from kombu.exceptions import OperationalError
from structlog.testing import capture_logs

from isotherm import storage
from isotherm.pipeline import text
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres import namespaces, tier_index
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.settings import settings
from isotherm.tasks import produce_records, producers, publish, ticks, tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.opened import Storage

NS = Namespace.of("atlas", "s1")
T0 = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def away(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Storage over a real database and a Redis that nobody listens for."""
    assert environment
    monkeypatch.setattr(publish._State, "paused_until", math.inf)
    monkeypatch.setattr(produce_records, "after_commit", lambda follow_up, item: follow_up([item]))
    monkeypatch.setenv("ISOTHERM_REDIS_URL", "redis://127.0.0.1:1/0")
    settings.cache_clear()
    yield storage.open()
    storage.close()
    settings.cache_clear()


def test_remembering_without_redis_is_durable_and_leaves_a_message_for_the_tail(away: Storage) -> None:
    accepted = producers.remember(NS, "kelp grows fast", time=T0)
    assert away.tier.get(NS, accepted.ids[0]).content == "kelp grows fast"
    refresh = fetch_all("SELECT payload -> 'namespace_ids', step_id FROM outbox WHERE builder = 'tail_refresh'")
    assert refresh == [([namespaces.resolve(NS).namespace_id], None)]
    assert drive() == ["tier.index"]


def test_a_repeated_call_without_redis_leaves_no_second_message(away: Storage) -> None:
    assert away
    for _ in range(2):
        producers.remember(NS, "kelp", key="k1", time=T0)
    assert fetch_all("SELECT count(*) FROM outbox WHERE builder = 'tail_refresh'") == [(1,)]


def test_tail_without_redis_comes_from_the_database_in_the_same_order(away: Storage) -> None:
    records = [NewRecord(f"r{n}", f"text {n}", T0) for n in range(5)]
    producers.remember_records(NS, records[::-1])
    assert [r.id for r in away.tier.tail(NS, 3)] == ["r2", "r3", "r4"]


def test_recall_without_redis_answers_and_says_what_is_missing(away: Storage) -> None:
    assert away
    producers.remember(NS, "kelp grows fast", time=T0)
    answer = producers.recall(NS, "kelp")
    assert (len(answer.items), answer.degraded) == (1, ("touches",))
    assert producers.recall(NS, "kelp", touch=False).degraded == ()
    assert producers.recall(NS, "").degraded == ()


def test_tier_t61_a_broker_that_takes_nothing_fails_no_call(away: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that cannot be queued was a warning of the run; so it is here, and the message waits in the outbox besides."""
    assert away

    def refused(*_: Any, **__: Any) -> None:
        raise OperationalError("nobody listens")

    monkeypatch.setattr(publish.app, "send_task", refused)
    told: list[str] = []
    for ask in (
        lambda: producers.remember(NS, "kelp", time=T0),
        lambda: producers.reconcile(NS, Policy(hot_capacity=0)),
    ):
        monkeypatch.setattr(publish._State, "paused_until", 0.0)
        with capture_logs() as logs:
            accepted = ask()
        assert producers.operation(accepted.operation_id).state == "accepted"
        told += [line["event"] for line in logs if line["log_level"] == "warning"]
    assert told.count("outbox.publish_postponed") == 2
    stages = "SELECT payload ->> 'stage' FROM outbox WHERE builder = 'step' ORDER BY id"
    assert fetch_all(stages) == [("tier.index",), ("tier.plan",)]
    drive()
    assert [record.tier for record in producers.list_all(NS).records] == [Tier.WARM]


def test_tier_t24_a_mirror_that_fails_fails_no_call_and_is_made_good(
    away: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced on purpose: through Celery the mirror is a message in the outbox, and the answer is a success."""
    record = NewRecord("msg-1", "{}", T0, metadata={"searchable": "billing issue"})
    accepted = producers.remember_records(NS, [record])
    assert (accepted.new, accepted.written) == (True, 1)
    ((job,),) = fetch_all("SELECT payload -> 'job' FROM outbox WHERE payload ->> 'stage' = 'tier.index'")
    write = tier_index.write_terms

    def fails(*_: Any) -> int:
        raise TransientError("no index")

    monkeypatch.setattr(tier_index, "write_terms", fails)
    tier.index(job)
    assert producers.operation(accepted.operation_id).state == "running"
    assert fetch_all("SELECT term FROM tier_postings") == []
    assert [item.record.id for item in producers.recall(NS, "billing", touch=False).items] == ["msg-1"]
    monkeypatch.setattr(tier_index, "write_terms", write)
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    assert drive() == ["tier.index"]
    assert producers.operation(accepted.operation_id).state == "done"
    assert sorted(term for (term,) in fetch_all("SELECT term FROM tier_postings")) == text.terms("billing issue")
    assert away.tier.get(NS, "msg-1").content == "{}"


def test_touch_tick_without_redis_is_postponed(away: Storage) -> None:
    assert away
    assert ticks.touch() == {"state": "postponed"}


def test_tail_that_missed_a_write_is_dropped_by_the_message_it_left(
    away: Storage, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_at(url: str) -> Storage:
        monkeypatch.setenv("ISOTHERM_REDIS_URL", url)
        settings.cache_clear()
        return storage.open(settings())

    redis_url = environment["ISOTHERM_REDIS_URL"]
    assert away.settings.redis_url is not None
    away_url = away.settings.redis_url.get_secret_value()
    near = opened_at(redis_url)
    producers.remember_records(NS, [NewRecord("r1", "first", T0)])
    assert [r.id for r in near.tier.tail(NS)] == ["r1"]
    distant = opened_at(away_url)
    producers.remember_records(NS, [NewRecord("r2", "second", T0)])
    assert [r.id for r in distant.tier.tail(NS)] == ["r1", "r2"]
    near = opened_at(redis_url)
    assert [r.id for r in near.tier.tail(NS)] == ["r1"], "until the message comes, at most for the tail's life"
    (payload,) = fetch_all("SELECT payload FROM outbox WHERE builder = 'tail_refresh'")[0]
    assert ticks.refresh(payload) == {"namespaces": 1}
    assert [r.id for r in near.tier.tail(NS)] == ["r1", "r2"]
