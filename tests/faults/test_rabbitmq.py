"""What RabbitMQ alone does: it hangs, refuses, loses a queue under a sender, takes back what waits too long, locks names."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from brokers import ON_RABBITMQ, empty, of_settings
from commanding import isotherm
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
from kombu.exceptions import OperationalError

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.storage import settings as settings_module
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import app, broker, celery_amqp, passes, producers, publish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from conftest import Faults
    from harness import Processes
    from rabbit_server import RabbitServer

pytestmark = [pytest.mark.usefixtures("opened"), ON_RABBITMQ]

ATLAS = Namespace.of("atlas", "s1")
DELIVERIES = 20
PATIENCE = "application:set_env(rabbit, consumer_timeout, {}), application:set_env(rabbit, channel_tick_interval, {})."
# A longer form: ISOTHERM_OPERATIONS=10000.
OPERATIONS = int(os.environ.get("ISOTHERM_OPERATIONS", "60"))


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "2", "ISOTHERM_OUTBOX_GRACE": "0.5", "ISOTHERM_NUDGE_AFTER": "1"}


def consumed(operation_ids: list[UUID]) -> bool:
    return {step_of(i).state for i in operation_ids} == {"done"}


def job_of(operation_id: UUID) -> dict[str, Any]:
    trace = str(producers.operation(operation_id).trace_id)
    return {"operation_id": str(operation_id), "step_id": steps_of(operation_id)[0].id, "trace_id": trace}


def test_consumption_goes_on_within_30_s_of_restarts_and_a_kill_idle_and_busy(
    rabbit: RabbitServer, faults: Faults, processes: Processes
) -> None:
    processes.beat()
    worker = faults.worker()
    lines = conversation(80, {47: "gateword"})
    operation_ids: list[UUID] = []
    rabbit.restart()
    operation_ids += ingest(lines[:20])
    wait_until(lambda: consumed(operation_ids), 30, "consumption to go on")
    rabbit.kill()
    operation_ids += ingest(lines[20:40])  # answered while the broker is away
    rabbit.start()
    wait_until(lambda: consumed(operation_ids), 30, "consumption to go on")
    operation_ids += ingest(lines[40:60])
    faults.wait_inside()
    rabbit.restart()
    operation_ids += ingest(lines[60:])
    faults.set("open")
    wait_until(lambda: consumed(operation_ids), 30, "consumption to go on")
    wait_until(lambda: all_final() and outbox_is_empty(), 20, "quiet")
    assert_whole(lines)
    assert worker.popen.poll() is None
    assert {step_of(i).attempts for i in operation_ids} == {1}


def test_queue_that_came_back_by_name_only_is_made_anew(rabbit: RabbitServer, processes: Processes) -> None:
    """As after the broker was killed just when it had made it: it refuses what is sent there, and who consumes is cut off."""
    processes.beat()
    worker = processes.worker()
    operation_ids = ingest(conversation(20))
    wait_until(lambda: consumed(operation_ids), what="the work")
    os.kill(worker.pid, signal.SIGSTOP)
    rabbit.ctl("eval", "ra:force_delete_server(quorum_queues, {'%2F_db', node()}).")
    rabbit.ctl("close_all_connections", "test")
    os.kill(worker.pid, signal.SIGCONT)
    operation_ids += ingest(conversation(60)[20:])
    wait_until(lambda: consumed(operation_ids), 30, "consumption to go on")
    assert "worker.queue_made_anew" in worker.output()
    assert worker.popen.poll() is None


def test_what_the_broker_does_not_confirm_stays_in_the_outbox(
    rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is short: it takes messages from nobody, and says nothing."""
    monkeypatch.setattr(celery_amqp, "_CONFIRM_S", 0.5)
    [first] = ingest(conversation(20))
    assert broker.depth("db") == 1
    rabbit.ctl("eval", "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
    try:
        second = producers.remember(ATLAS, "kelp").operation_id
        producers.flush()
        assert (fetch_all("SELECT count(*) FROM outbox"), list(publish._sent)) == ([(1,)], [])
        [fault] = broker.faults(settings_module.settings())
        assert (fault.lasting, "takes no messages" in fault.text) == (False, True)
    finally:
        rabbit.ctl("eval", "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
    tick_until(lambda: broker.depth("db") >= 2, what="the relay to send it")
    assert [step_of(i).state for i in (first, second)] == ["pending"] * 2


@pytest.fixture
def channel(rabbit: RabbitServer) -> Iterator[celery_amqp.Channel]:
    connection = celery_amqp.Connection(f"127.0.0.1:{rabbit.port}", rabbit.user, rabbit.password, login_method="PLAIN")
    connection.connect()
    channel = connection.channel()
    channel.queue_declare(
        "few", durable=True, auto_delete=False,
        arguments={"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"},
    )  # fmt: skip
    yield channel
    connection.collect()
    with rabbit.connect() as cleaning:
        cleaning.channel().queue_delete("few")


def test_message_that_a_queue_refuses_is_an_error_for_its_sender(channel: celery_amqp.Channel) -> None:
    channel.exchange_declare("news", "fanout", auto_delete=True)
    connection = channel.connection

    def fill() -> None:
        for _ in range(6):  # the broker may take one or two more than its limit
            channel.basic_publish(amqp.Message("to nobody"), exchange="news")
            channel.basic_publish(amqp.Message("more"), routing_key="few")

    with pytest.raises(amqp.exceptions.RecoverableConnectionError, match="refused"):
        fill()
    assert not connection.connected


def test_message_for_no_queue_is_an_error_for_its_sender(channel: celery_amqp.Channel) -> None:
    connection = channel.connection
    with pytest.raises(amqp.exceptions.RecoverableConnectionError, match="no queue took"):
        channel.basic_publish(amqp.Message("lost"), routing_key="nowhere")
    assert not connection.connected, "what it still has to say would be taken for the confirmation of the next message"


def test_confirmation_that_comes_late_is_not_taken_for_that_of_the_next_message(
    rabbit: RabbitServer, channel: celery_amqp.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.basic_publish(amqp.Message("one"), routing_key="few")
    monkeypatch.setattr(celery_amqp, "_CONFIRM_S", 0.2)
    connection = channel.connection
    rabbit.pause()
    try:
        with pytest.raises(amqp.exceptions.RecoverableConnectionError, match="did not confirm"):
            channel.basic_publish(amqp.Message("two"), routing_key="few")
    finally:
        rabbit.resume()
    assert not connection.connected


def test_queue_that_vanished_under_a_sender_is_made_again(rabbit: RabbitServer) -> None:
    ingest(conversation(20))
    empty(rabbit)
    with pytest.raises(OperationalError, match="no queue took"):
        app.send_task(stages.INDEX, args=[{}], retry=False)
    app.send_task(stages.INDEX, args=[{}], retry=False)
    assert broker.depth("db") == 1


def test_message_goes_round_only_so_often(rabbit: RabbitServer) -> None:
    app.send_task(stages.INDEX, args=[{}], retry=False)
    seen = 0
    with rabbit.connect() as connection:
        channel = connection.channel()
        while (message := channel.basic_get("db")) is not None and seen < 2 * DELIVERIES:
            seen += 1
            channel.basic_reject(message.delivery_tag, requeue=True)
    assert seen == DELIVERIES + 1
    assert broker.depth("db") == 0


def test_message_that_the_broker_takes_back_in_the_middle_has_one_effect(rabbit: RabbitServer, faults: Faults) -> None:
    """It gives up on who has a message for too long, and closes the channel; half an hour by default, a second here."""
    rabbit.ctl("eval", PATIENCE.format(1_000, 300))
    try:
        worker = faults.worker()
        lines = conversation(40, {5: "gateword"})
        operation_ids = ingest(lines[:20])
        faults.wait_inside()
        wait_until(lambda: "operations.delivery_skipped" in worker.output(), 20, "the same message to come again")
        faults.set("open")
        tick_until(all_final, what="the operation")
    finally:
        rabbit.ctl("eval", PATIENCE.format(1_800_000, 60_000))
    operation_ids += ingest(lines[20:])
    tick_until(lambda: consumed(operation_ids) and outbox_is_empty(), 30, "the worker to go on")
    assert_whole(lines)
    assert worker.popen.poll() is None
    assert [step_of(i).attempts for i in operation_ids] == [1, 1]


def test_worker_takes_over_the_name_of_one_that_hangs(rabbit: RabbitServer, processes: Processes) -> None:
    assert rabbit
    first = processes.worker("same", concurrency=1)
    os.kill(first.pid, signal.SIGSTOP)
    second = processes.worker("same", concurrency=1)
    operation_ids = ingest(conversation(60))
    tick_until(lambda: consumed(operation_ids), 20, "the second to do the work")
    assert "RESOURCE_LOCKED" not in second.output()


def test_worker_outlives_the_end_of_its_processes_together_with_that_of_its_connection(
    rabbit: RabbitServer, processes: Processes
) -> None:
    worker = processes.worker()
    for _ in range(2):
        os.kill(worker.pid, signal.SIGSTOP)
        for child in worker.children():
            os.kill(child, signal.SIGKILL)
        rabbit.ctl("close_all_connections", "test")
        os.kill(worker.pid, signal.SIGCONT)
        wait_until(broker.consumers, what="the worker to listen again")
    operation_ids = ingest(conversation(40))
    tick_until(lambda: consumed(operation_ids), what="the work")
    stats = app.control.inspect(timeout=1.0).stats()
    assert {one["pool"]["implementation"] for one in stats.values()} == {"isotherm.tasks.prefork:TaskPool"}


def test_countdown_holds_its_message_and_one_place_of_its_worker(rabbit: RabbitServer, processes: Processes) -> None:
    worker = processes.worker(concurrency=2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passes, "publish_after_commit", lambda _: None)
        operation_id = producers.reconcile(ATLAS).operation_id
    app.send_task(stages.PLAN, args=[job_of(operation_id)], countdown=6)
    others = ingest(conversation(60))
    wait_until(lambda: consumed(others), what="what came later")
    assert not producers.operation(operation_id).final
    wait_until(lambda: producers.operation(operation_id).final, what="the pass")
    assert worker.output().count("tier.migration_planned") == 1
    assert "celery_delayed" not in rabbit.ctl("list_queues", "name")


def test_many_small_operations_leave_no_queues_and_no_channels(
    rabbit: RabbitServer, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.worker()
    broker.consumers()
    producers.remember(ATLAS, "the first one makes what stays")
    producers.reconcile(ATLAS)
    tick_until(lambda: all_final() and outbox_is_empty(), what="the first ones")
    channels = len(rabbit.ctl("list_channels", "pid").splitlines())
    for n in range(OPERATIONS):
        producers.remember(ATLAS, f"note {n} on kelp", key=f"k{n}")
        if n % 20 == 0:
            producers.reconcile(ATLAS)
            broker.consumers(0.1)
            broker.depth("db")
    leave_to_relay(monkeypatch)
    tick_until(lambda: all_final() and outbox_is_empty(), 600, "every operation")
    wait_until(lambda: "\t1" not in rabbit.ctl("list_queues", "name", "messages"), what="the last acknowledgement")
    queues = {line.split("\t")[0] for line in rabbit.ctl("list_queues", "name").splitlines()[1:]}
    lasting = {q for q in queues if not q.startswith("celeryev.") and not q.endswith("celery.pidbox")}
    assert lasting == {queue.value for queue in stages.Queue}
    assert len([q for q in queues if q.endswith(".reply.celery.pidbox")]) <= 1
    # This process and each of two children publish by a connection for each of two threads, made when they first need one.
    assert len(rabbit.ctl("list_channels", "pid").splitlines()) <= channels + 6


def doctor() -> dict[str, dict[str, Any]]:
    return {f["subject"]: f for f in json.loads(isotherm("doctor", "--json").stdout)["findings"]}


def test_doctor_tells_of_a_broker_that_refuses_or_is_away_and_of_a_queue_that_nobody_consumes(
    rabbit: RabbitServer, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = processes.worker(queues="maintenance,llm,graph", concurrency=1)
    inspect = app.control.inspect(timeout=1.0)
    told = json.dumps([inspect.stats(), inspect.conf(with_defaults=True)], default=str)
    assert "127.0.0.1" in told
    assert rabbit.password not in told + worker.output()
    ingest(conversation(20))
    found = doctor()
    assert found["broker"]["text"].startswith("RabbitMQ 3.")
    assert (found["queue db"]["well"], found["queue llm"]["well"]) == (False, True)
    assert "no consumer; 1 step waits" in found["queue db"]["text"]
    for url, said in (
        (rabbit.url.replace(rabbit.password, "xyzzyplugh"), "refuses this user, password or virtual host"),
        (rabbit.url_at(1), "cannot be reached"),
    ):
        monkeypatch.setenv("ISOTHERM_BROKER_URL", url)
        settings_module.settings.cache_clear()
        with of_settings():
            told = isotherm("doctor", "--json").stdout
        assert said in told
        assert "outbox" in told, "what needs no broker is told all the same"
        assert "xyzzyplugh" not in told
        assert rabbit.password not in told


def test_worker_that_the_broker_refuses_ends_with_a_sentence_and_no_password(
    rabbit: RabbitServer, processes: Processes
) -> None:
    url = rabbit.url.replace(rabbit.password, "xyzzyplugh")
    worker = processes.worker("refused", ready=False, ISOTHERM_BROKER_URL=url)
    wait_until(lambda: worker.popen.poll() is not None, 30, "the worker to end")
    assert "the broker refuses this user" in worker.output()
    assert "xyzzyplugh" not in worker.output()


def test_queue_of_other_arguments_is_told(rabbit: RabbitServer) -> None:
    with rabbit.connect() as connection:
        connection.channel().queue_declare("llm", durable=True, auto_delete=False)
    with pytest.raises(RejectedError, match="other arguments"):
        broker.kind()
    assert [fault.lasting for fault in broker.faults(settings_module.settings())] == [True]
    producers.ingest_session(ATLAS, conversation(4))
    producers.flush()
    assert fetch_all("SELECT count(*) FROM outbox")[0][0] >= 1


def test_depths_are_read_by_one_connection_whether_a_queue_is_there_or_not(rabbit: RabbitServer) -> None:
    assert rabbit
    app.send_task(stages.INDEX, args=[{}], retry=False)
    assert broker.depths(["llm", "db", "graph"]) == {"llm": 0, "db": 1, "graph": 0}
