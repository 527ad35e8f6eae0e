"""What a worker does besides tasks: check its servers, open after the fork, give back at the end, label its log lines."""

from __future__ import annotations

import os
from typing import Any

import structlog
from celery import bootsteps, signals
from prometheus_client import CollectorRegistry, multiprocess, start_http_server

from isotherm import storage
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.stages import Queue
from isotherm.storage import servers
from isotherm.storage.graph import helix_client
from isotherm.storage.postgres import steps
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.settings import settings
from isotherm.tasks import broker, logs
from isotherm.tasks.app import app
from isotherm.tasks.log import log
from isotherm.tasks.stage import worker_prefix


@signals.setup_logging.connect
def _set_up_logging(**_: Any) -> None:  # noqa: ANN401 - signals pass what they like
    logs.configure(json=settings().log_json)


@signals.worker_init.connect
def _check_servers(**_: Any) -> None:  # noqa: ANN401
    """A server that will never do ends the worker with a sentence; one that is away for now is waited for by the tasks."""
    faults = servers.check(settings()) + broker.faults(settings())
    for fault in faults:
        log.warning("worker.server_unfit" if fault.lasting else "worker.server_away", reason=fault.text)
    if any(fault.lasting for fault in faults):
        raise SystemExit("; ".join(fault.text for fault in faults))
    if (port := settings().metrics_port) is not None:
        _serve_metrics(port)


@signals.celeryd_init.connect
def _own_graph(options: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ANN401
    """The embedded graph engine is opened by one process: that of a worker of the graph queue alone, without a pool."""
    asked = options or {}
    queues = asked.get("queues") or []
    names = queues.split(",") if isinstance(queues, str) else list(queues)
    if names == [Queue.GRAPH.value] and "solo" in str(asked.get("pool")):
        helix_client.own_embedded()


def _serve_metrics(port: int) -> None:
    """Counters of all processes of this worker on one page; the library joins them through files in a folder."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        raise SystemExit("ISOTHERM_METRICS_PORT needs PROMETHEUS_MULTIPROC_DIR: a folder that is emptied at each start")
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    start_http_server(port, addr="127.0.0.1", registry=registry)


@signals.worker_process_init.connect
def _open_resources(**_: Any) -> None:  # noqa: ANN401
    """Open after the fork; nothing is connected yet, so this returns at once."""
    storage.open()


@signals.worker_process_shutdown.connect
def _close_resources(pid: int, **_: Any) -> None:  # noqa: ANN401
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
    storage.close()


class _GiveBackClaims(bootsteps.StartStopStep):  # type: ignore[misc]  # celery ships no types
    """What this worker's processes still held when it stopped is free at once, and not counted as an attempt.

    A step of the worker, since the signal `worker_shutdown` is not sent after a soft or cold shutdown; and only for
    those, since a warm one lets every task end.
    """

    requires = ("celery.worker.components:Pool",)

    def terminate(self, parent: object) -> None:  # noqa: ARG002 - the worker passes itself
        """Called in the main process, after the pool was told to end."""
        _give_back_claims()


app.steps["worker"].add(_GiveBackClaims)


def _give_back_claims() -> None:
    try:
        storage.open()
        with system(), connection() as conn:
            released = steps.release_owned(conn, worker_prefix())
        if released:
            log.info("worker.claims_given_back", steps=released)
    except TransientError as error:
        log.warning("worker.claims_left_to_their_leases", reason=str(error))
    finally:
        storage.close()


@signals.task_prerun.connect
def _bind_context(task_id: str, task: Any, **_: Any) -> None:  # noqa: ANN401
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(
        task=task.name, task_id=task_id, root_id=task.request.root_id, retries=task.request.retries
    )


@signals.task_postrun.connect
def _clear_context(**_: Any) -> None:  # noqa: ANN401
    structlog.contextvars.clear_contextvars()
