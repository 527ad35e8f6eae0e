from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import psycopg
import pytest
from brain_kit import KNOWLEDGE, check_brain, new, titles, uid
from harness import all_final, outbox_is_empty, steps_of, tick_until, wait_until

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.storage.graph.postgres import PostgresGraph
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import app, brain, produce_brain, producers, publish
from isotherm.tasks.produce_brain import Stored, expand, link, put_many, search, soft_delete

if TYPE_CHECKING:
    from uuid import UUID

    import redis
    from conftest import Faults
    from harness import Process, Processes

    from isotherm.storage.embedded import Endpoints

pytestmark = pytest.mark.usefixtures("opened")

NS = namespace_uuid(KNOWLEDGE)


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "2", "ISOTHERM_OUTBOX_GRACE": "1", "ISOTHERM_NUDGE_AFTER": "1"}


def worker(faults: Faults, name: str = "worker1", concurrency: int = 2) -> Process:
    apps = Path(__file__).parent / "apps"
    path = os.pathsep.join(filter(None, [str(apps), os.environ.get("PYTHONPATH")]))
    values = {"PYTHONPATH": path, "FAULTS": str(faults.folder)}
    return faults.processes.worker(name, app="faulty_brain", concurrency=concurrency, **values)


def put_some() -> Stored:
    return put_many(KNOWLEDGE, [new(n, f"kelp {n}") for n in range(1, 21)])


def mirrored(revision: int = 1) -> bool:
    return PostgresGraph().revisions(NS) == {uid(n): revision for n in range(1, 21)}


def job_of(operation_id: UUID) -> dict[str, object]:
    [step] = [s for s in steps_of(operation_id) if s.stage == stages.BRAIN_MIRROR]
    trace = str(producers.operation(operation_id).trace_id)
    return {"operation_id": str(operation_id), "step_id": step.id, "trace_id": trace}


def test_a_child_killed_while_it_mirrors_leaves_a_graph_that_is_whole(faults: Faults) -> None:
    faults.set("graph-gate")
    worker(faults)
    stored = put_some()
    [inside] = faults.wait_inside(1)
    os.kill(inside, signal.SIGKILL)
    faults.set("open")
    tick_until(all_final, what="the operation")
    [step] = [s for s in steps_of(stored.operation_id) if s.stage == stages.BRAIN_MIRROR]
    assert (step.state, step.attempts) == ("done", 2)
    assert mirrored()
    tick_until(outbox_is_empty)
    check_brain()


def test_a_mirror_delivered_eight_times_has_one_effect_and_one_answer(processes: Processes) -> None:
    with patch.object(produce_brain, "publish_after_commit"):
        stored = put_some()
        producers.flush()
    ready = processes.worker(concurrency=4)
    payload = job_of(stored.operation_id)
    for _ in range(8):
        app.send_task(stages.BRAIN_MIRROR, args=[payload])
    wait_until(
        lambda: all(s.state == "done" for s in steps_of(stored.operation_id) if s.stage == stages.BRAIN_MIRROR),
        what="the mirror",
    )
    wait_until(lambda: ready.output().count("] succeeded in ") == 8, what="all deliveries to end")
    assert ready.output().count("brain.graph_mirrored") == 1
    assert brain.mirror(payload) == {"nodes": 20, "edges": 0}
    assert mirrored()


def test_a_message_that_comes_after_a_newer_one_undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish._State, "paused_until", float("inf"))
    first = put_some()
    second = put_many(KNOWLEDGE, [new(n, f"kelp {n}", "more") for n in range(1, 21)])
    gone = soft_delete(KNOWLEDGE, uid(1))
    # One message takes along whatever waits with it, as it is by then; the others find their work done.
    for late in (gone, second, first):
        assert brain.mirror(job_of(late.operation_id)) == {"nodes": 20, "edges": 0}
    assert PostgresGraph().revisions(NS) == {uid(n): 2 for n in range(2, 21)}


def test_a_graph_that_was_away_is_caught_up_with_by_itself(faults: Faults, processes: Processes) -> None:
    """Longer than anything else is waited for, and it counts as no attempt."""
    faults.set("graph-away")
    processes.beat()
    worker(faults, concurrency=1)
    stored = put_some()
    linked = link(KNOWLEDGE, uid(1), uid(2), "about")

    def waits() -> int:
        [step] = [s for s in steps_of(stored.operation_id) if s.stage == stages.BRAIN_MIRROR]
        return int(step.waits)

    wait_until(lambda: waits() >= 3, what="three waits")
    assert PostgresGraph().revisions(NS) == {}
    # The rest goes on: words are found, and what is written meanwhile is taken along in its newest revision.
    assert titles(search(KNOWLEDGE, "kelp 7", limit=1)) == ["kelp 7"]
    put_many(KNOWLEDGE, [new(n, f"kelp {n}", "more") for n in range(1, 21)])
    faults.clear("graph-away")
    wait_until(all_final, what="every operation")
    assert mirrored(2)
    for operation_id in (stored.operation_id, linked.operation_id):
        [step] = [s for s in steps_of(operation_id) if s.stage == stages.BRAIN_MIRROR]
        assert (step.state, step.attempts) == ("done", 1)
    assert [item.object.id for item in expand(KNOWLEDGE, uid(1), ["about"]).items] == [uid(2)]


def test_a_flush_of_redis_and_lost_connections_lose_nothing(
    faults: Faults, processes: Processes, client: redis.Redis, endpoints: Endpoints
) -> None:
    faults.set("graph-gate")
    worker(faults, concurrency=1)
    operations = [put_some().operation_id]
    faults.wait_inside(1)
    operations += [put_many(KNOWLEDGE, [new(n, f"kelp {n}", "more")]).operation_id for n in range(1, 21)]
    producers.flush()
    client.flushall()
    storage.close()  # the test's own connections are not those meant
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                        WHERE application_name = 'isotherm' AND pid <> pg_backend_pid()""")
    storage.open()
    faults.set("open")
    processes.beat()
    wait_until(all_final, 60, "every operation")
    assert {producers.operation(i).state for i in operations} == {"done"}
    assert mirrored(2)
    wait_until(outbox_is_empty, what="the outbox to be empty")
    check_brain()


def test_folding_goes_on_by_beat_and_two_that_meet_count_nothing_twice(processes: Processes) -> None:
    processes.worker()
    put_some()
    processes.beat("beat1")
    processes.beat("beat2")
    wait_until(lambda: not fetch_all("SELECT 1 FROM brain_stats_deltas"), 30, "the fold")
    assert fetch_all("SELECT documents FROM brain_stats") == [(20,)]
    check_brain()
