"""The smallest Celery application: Celery's own defaults, two tasks that do nothing. A floor, not a part of the product."""

import os
from typing import Any

from celery import Celery, signals

QUEUE = "bench"

_url = os.environ["BENCH_BROKER"]
app = Celery("noop", broker=_url, backend=_url, set_as_current=False)
app.conf.update(task_default_queue=QUEUE, task_ignore_result=True)


@app.task(name="bench.noop")  # type: ignore[untyped-decorator]  # celery ships no types
def noop() -> None:
    """Nothing, and no answer."""


@app.task(name="bench.echo", ignore_result=False)  # type: ignore[untyped-decorator]  # the same
def echo() -> int:
    """Nothing, with an answer through the result backend."""
    return 1


@signals.worker_ready.connect  # type: ignore[untyped-decorator]  # the same
def _say(**_: Any) -> None:  # noqa: ANN401 - signals pass what they like
    """Say that work can come; logging it would log every task as well."""
    print("worker ready.", flush=True)
