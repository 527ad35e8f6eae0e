from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from brokers import ON_BOTH
from harness import (
    all_final,
    assert_whole,
    conversation,
    ingest,
    leave_to_relay,
    outbox_is_empty,
    step_of,
    steps_of,
    tick_until,
    wait_until,
)
from uuid_utils.compat import uuid7

from isotherm.pipeline import stages, text
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.storage.postgres import operations, outbox, steps, sweep
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.steps import NewStep
from isotherm.tasks import app, passes, producers, tier, tier_pass

if TYPE_CHECKING:
    from typing import Any
    from uuid import UUID

    import redis
    from harness import Processes

pytestmark = pytest.mark.usefixtures("opened")

ATLAS = Namespace.of("atlas", "s1")
THREADS = 20


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_OUTBOX_GRACE": "0.2", "ISOTHERM_NUDGE_AFTER": "0.2"}


def job_of(operation_id: UUID) -> dict[str, Any]:
    return {
        "operation_id": str(operation_id),
        "step_id": step_of(operation_id).id,
        "trace_id": str(producers.operation(operation_id).trace_id),
    }


@pytest.fixture
def unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers of this process leave everything to the relay."""
    leave_to_relay(monkeypatch)


@pytest.mark.usefixtures("unpublished")
def test_second_delivery_returns_the_first_receipt() -> None:
    lines = conversation(20)
    [operation_id] = ingest(lines)
    payload = job_of(operation_id)
    first = tier.index(payload)
    assert first == {"records": 20, "indexed": 20}
    assert tier.index(payload) == first
    assert producers.operation(operation_id).result == first
    assert step_of(operation_id).attempts == 1
    tick_until(outbox_is_empty)
    assert_whole(lines)


@ON_BOTH
@pytest.mark.usefixtures("unpublished")
def test_eight_deliveries_at_once_have_one_effect(processes: Processes) -> None:
    workers = [processes.worker(f"worker{n}", concurrency=4, ready=False) for n in (1, 2)]
    for worker in workers:
        worker.wait_ready()
    lines = conversation(300)
    operation_ids = ingest(lines, size=100)
    for operation_id in operation_ids:
        for _ in range(8):
            app.send_task(stages.INDEX, args=[job_of(operation_id)])
    wait_until(all_final, what="the operations")
    wait_until(lambda: sum(w.output().count("] succeeded in ") for w in workers) == 24, what="all deliveries to end")
    assert sum(w.output().count("tier.records_indexed") for w in workers) == 3
    assert [step_of(i).attempts for i in operation_ids] == [1] * 3
    tick_until(outbox_is_empty)
    assert_whole(lines)


@pytest.mark.usefixtures("unpublished")
def test_delivery_that_cannot_claim_leaves_its_step_to_the_sweeper(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise UnavailableError("PostgreSQL cannot be reached")

    [operation_id] = ingest(conversation(20))
    payload = job_of(operation_id)
    with monkeypatch.context() as patched:
        patched.setattr(steps, "claim", away)
        assert tier.index(payload) == {"state": "postponed"}
    with connection() as conn:
        conn.execute("DELETE FROM outbox")
    tick_until(lambda: client.llen("db"), what="the step to be announced again")
    assert tier.index(payload) == {"records": 20, "indexed": 20}
    assert step_of(operation_id).attempts == 1


@pytest.mark.usefixtures("unpublished")
def test_message_that_is_ahead_of_its_commit_does_nothing_and_the_step_is_done_after_it(client: redis.Redis) -> None:
    ingest(conversation(20))
    [(namespace_id,)] = fetch_all("SELECT id FROM namespaces")
    new = NewOperation(uuid7(), passes.KIND, uuid4(), namespace_id=namespace_id)
    second = timedelta(seconds=1)
    with connection() as conn:
        operations.create(conn, new)
        wanted = NewStep(stages.PLAN, {"namespace_id": namespace_id, "policy": Policy().model_dump(mode="json")})
        [step_id] = steps.add(conn, new.id, [wanted], retry_for=60 * second, nudge_after=second)
        outbox.announce(conn, stages.PLAN, step_id, operation_id=new.id, trace_id=new.trace_id, delay=timedelta(0))
        payload = {"operation_id": str(new.id), "step_id": step_id, "trace_id": str(new.trace_id)}
        assert tier_pass.plan(payload)["state"] in {"skipped", "refused"}
    assert step_of(new.id).attempts == 0
    tick_until(lambda: client.llen("db"), what="the relay to send it")
    tier_pass.plan(payload)
    assert (step_of(new.id).state, step_of(new.id).attempts) == ("done", 1)


@pytest.mark.usefixtures("unpublished")
def test_claim_that_takes_over_an_expired_lease_tells_who_was_lost() -> None:
    [operation_id] = ingest(conversation(20))
    with connection() as conn:
        conn.execute("""UPDATE operation_steps SET state = 'running', attempts = 1, token = 1, owner = 'north#1:7',
                        lease_until = now() - interval '1 second'""")
    tier.index(job_of(operation_id))
    step = step_of(operation_id)
    assert (step.state, step.attempts, step.last_error) == ("done", 2, "runner north#1:7 was lost")


@pytest.mark.usefixtures("unpublished")
def test_delivery_after_its_operation_was_cancelled_does_nothing() -> None:
    [operation_id] = ingest(conversation(20))
    with connection() as conn:
        operations.cancel(conn, operation_id)
    assert tier.index(job_of(operation_id)) == {"state": "cancelled"}
    assert (step_of(operation_id).state, step_of(operation_id).attempts) == ("cancelled", 0)
    assert not fetch_all("SELECT 1 FROM tier_postings")


@pytest.mark.usefixtures("unpublished")
def test_runner_whose_operation_is_cancelled_in_the_middle_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    [operation_id] = ingest(conversation(20))
    plain = text.terms

    def cancel_then_split(content: str) -> list[int]:
        if not producers.operation(operation_id).final:
            with connection() as conn:
                operations.cancel(conn, operation_id)
        return plain(content)

    monkeypatch.setattr(text, "terms", cancel_then_split)
    assert tier.index(job_of(operation_id)) == {"state": "skipped"}
    assert producers.operation(operation_id).state == "cancelled"
    assert not fetch_all("SELECT 1 FROM tier_postings")
    assert fetch_all("SELECT DISTINCT indexed FROM tier_records") == [(False,)]


@pytest.mark.usefixtures("unpublished")
def test_sweeper_passes_by_an_operation_that_somebody_is_ending() -> None:
    [operation_id] = ingest(conversation(20))
    with connection() as conn:
        conn.execute("""UPDATE operation_steps SET state = 'running', attempts = 5, token = 1, owner = 'north#1:7',
                        lease_until = now() - interval '1 second'""")
    second = timedelta(seconds=1)
    with connection() as ending:
        ending.execute("SELECT 1 FROM operations WHERE id = %s FOR NO KEY UPDATE", (operation_id,))
        with connection() as conn:
            conn.execute("SET LOCAL lock_timeout = '1s'")
            assert sweep.expired(conn, cap=5, delay=second, nudge_after=second) == sweep.Swept()
    with connection() as conn:
        assert len(sweep.expired(conn, cap=5, delay=second, nudge_after=second).dead) == 1
    assert producers.operation(operation_id).state == "dead"


def test_twenty_threads_that_remember_under_one_key_make_one_record_and_one_operation() -> None:
    def remember(_: int) -> producers.Accepted:
        return producers.remember(ATLAS, "kelp grows at twelve meters", key="dive-7")

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(remember, range(THREADS)))
    assert len({answer.operation_id for answer in answers}) == 1
    assert len({answer.ids for answer in answers}) == 1
    assert [answer.new for answer in answers].count(True) == 1
    assert fetch_all("SELECT count(*) FROM tier_records") == [(1,)]
    assert fetch_all("SELECT count(*) FROM operations") == [(1,)]
    with pytest.raises(RejectedError, match="another body"):
        producers.remember(ATLAS, "kelp grows at thirteen meters", key="dive-7")
    assert fetch_all("SELECT content FROM tier_records") == [("kelp grows at twelve meters",)]


def test_twenty_threads_that_ask_for_a_pass_leave_one_waiting() -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda _: producers.reconcile(ATLAS), range(THREADS)))
    assert len({answer.operation_id for answer in answers}) == 1
    assert [answer.new for answer in answers].count(True) == 1
    assert fetch_all("SELECT kind, state FROM operations") == [("tier.reconcile", "accepted")]
    assert [step.stage for step in steps_of(answers[0].operation_id)] == [stages.PLAN]
