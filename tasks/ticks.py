"""Ticks of beat: short, idempotent, and safe when two of them meet. What one leaves, the next one does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.events import (
    BlobsCollected,
    DeliveryRefused,
    MessagesRelayed,
    PassesRequested,
    RowsPurged,
    StepsRecovered,
    TailsRefreshed,
    TouchesApplied,
)
from isotherm.pipeline.payloads import TailRefresh
from isotherm.pipeline.tier.quotas import is_over, quota_of
from isotherm.storage import cold, refused_lines
from isotherm.storage.postgres import cold_blobs, outbox, sweep, tier_list, tier_passes, tier_touch
from isotherm.storage.postgres import quotas as quota_rows
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.postgres.tier_held import Patience
from isotherm.tasks import broker, passes
from isotherm.tasks.app import app
from isotherm.tasks.log import log
from isotherm.tasks.observe import TASK_SECONDS, emit, show_depth
from isotherm.tasks.publish import publish

# One tick publishes or takes back at most this many before it makes room for other work.
_BATCH = 200
_BATCHES = 25
# What a task may need beyond its time limit to be stopped.
_UPLOAD_ENDED = timedelta(minutes=1)

Tick = Callable[..., dict[str, Any]]

# When this process ran each tick last, by the monotonic clock.
_ran: dict[str, float] = {}


def tick(name: str) -> Callable[[Tick], Tick]:
    """Register a tick; what it cannot reach now is left to the next one, with a line in the log."""

    def register(body: Tick) -> Tick:
        def run(*args: Any) -> dict[str, Any]:  # noqa: ANN401 - one payload or none
            if app.current_worker_task is not None and _is_too_soon(name):
                return {"state": "too soon"}
            begun = time.perf_counter()
            try:
                with system():
                    return body(*args)
            except TransientError as error:
                log.warning("tick.postponed", tick=name, reason=str(error))
                return {"state": "postponed"}
            except RejectedError as error:
                emit(DeliveryRefused(name, str(error)))
                return {"state": "refused"}
            finally:
                TASK_SECONDS.labels(task=name).observe(time.perf_counter() - begun)

        run.__doc__ = body.__doc__
        registered: Tick = app.task(name=name)(run)
        return registered

    return register


def _is_too_soon(name: str) -> bool:
    """Whether this process ran a tick of beat's less than half its pace ago: those that piled up need not run one by one."""
    entry = app.conf.beat_schedule.get(name)
    if entry is None:
        return False
    now = time.monotonic()
    if now - _ran.get(name, -math.inf) < entry["schedule"] / 2:
        return True
    _ran[name] = now
    return False


@tick(stages.RELAY)
def relay() -> dict[str, Any]:
    """Publish the messages that their producer did not, and drop those that nobody needs any more."""
    storage.open()
    published = dropped = 0
    with connection() as conn:
        dropped = outbox.prune(conn)
    for _ in range(_BATCHES):
        with connection() as conn:
            messages = outbox.due(conn, _BATCH)
            out = publish(messages)
            outbox.remove(conn, out)
        published += len(out)
        if len(messages) < _BATCH or len(out) < len(messages):
            break
    if published:
        emit(MessagesRelayed(published, dropped))
    return {"published": published, "dropped": dropped}


@tick(stages.SWEEP)
def sweep_operations() -> dict[str, Any]:
    """Take back steps whose runner was lost, and announce again the steps whose message was."""
    chosen = storage.open().settings
    with connection() as conn:
        swept = sweep.expired(
            conn, cap=chosen.max_attempts, delay=chosen.retry_base, nudge_after=chosen.nudge_after, limit=_BATCH
        )
    with connection() as conn:
        waiting = sweep.waiting(conn)
    nudged, depths = 0, broker.depths(waiting)
    for queue, steps in waiting.items():
        # While the broker holds as many messages as there are steps to claim, none is lost: they are just waiting.
        lost = steps - depths[queue]
        if lost > 0:
            with connection() as conn:
                nudged += sweep.nudge(conn, queue, base=chosen.nudge_after, limit=min(lost, _BATCH * _BATCHES))
    if swept.requeued or swept.dead or nudged:
        emit(StepsRecovered(len(swept.requeued), len(swept.dead), nudged))
    return {"requeued": len(swept.requeued), "dead": len(swept.dead), "nudged": nudged}


@tick(stages.TOUCH)
def touch() -> dict[str, Any]:
    """Count the accesses that were buffered in Redis into the rows."""
    opened = storage.open()
    changed = 0
    for _ in range(_BATCHES):
        batch = opened.touches.take(datetime.now(UTC))
        if batch is None:
            break
        with connection() as conn:
            changed += tier_touch.apply(
                conn,
                batch.id,
                batch.counts,
                batch.taken_at,
                promote_access=opened.settings.tier.promote_access,
            )
        opened.touches.remove(batch)
    if changed:
        emit(TouchesApplied(changed))
    return {"records": changed}


@tick(stages.DUE)
def due() -> dict[str, Any]:
    """Ask for a migration pass over every namespace that is due; where the last ones failed, not at every tick."""
    chosen = storage.open().settings
    with connection() as conn:
        namespace_ids = tier_passes.due(conn, patience=Patience(chosen.hold_base, chosen.hold_cap))
    requested = passes.request_due(namespace_ids) if namespace_ids else 0
    if requested:
        emit(PassesRequested(requested))
    return {"namespaces": requested}


@tick(stages.PURGE)
def purge() -> dict[str, Any]:
    """Delete steps and operations whose time is over, and files of lines that were refused here."""
    chosen = storage.open().settings
    steps = operations = 0
    for _ in range(_BATCHES):
        with connection() as conn:
            gone = sweep.purge(conn, keep_steps=chosen.keep_steps, keep_operations=chosen.keep_operations)
        steps, operations = steps + gone[0], operations + gone[1]
        if not any(gone):
            break
    files = refused_lines.purge(refused_lines.folder_of(chosen), chosen.keep_refused)
    if steps or operations or files:
        emit(RowsPurged(steps, operations, files))
    return {"steps": steps, "operations": operations, "files": files}


@tick(stages.REFRESH)
def refresh(payload: dict[str, Any]) -> dict[str, Any]:
    """Drop the hot tails of namespaces that Redis could not be told about."""
    wanted = TailRefresh.parse(payload)
    opened = storage.open()
    for namespace_id in wanted.namespace_ids:
        opened.tail.invalidate(namespace_id)
    emit(TailsRefreshed(len(wanted.namespace_ids)))
    return {"namespaces": len(wanted.namespace_ids)}


@tick(stages.COLLECT)
def collect() -> dict[str, Any]:
    """Remove objects that no cold body refers to from the blob store.

    An upload ends with its task, so one that has not become live by then never will.
    """
    opened = storage.open()
    removed = 0
    for _ in range(_BATCHES):
        with connection() as conn:
            cold_blobs.condemn(conn, grace=opened.settings.task_time_limit + _UPLOAD_ENDED, limit=_BATCH)
        with connection() as conn:
            dead = cold_blobs.dead(conn, _BATCH)
        gone = cold.collect(opened.blobs, dead)
        with connection() as conn:
            removed += cold_blobs.remove(conn, gone)
        if len(dead) < _BATCH:
            break
    if removed:
        emit(BlobsCollected(removed))
    return {"objects": removed}


@tick(stages.QUOTAS)
def hold_quotas() -> dict[str, Any]:
    """Ask for a pass over every tenant that has more than its quota."""
    quotas = storage.open().settings.quotas
    if not quotas:
        return {"tenants": 0}
    with connection() as conn:
        tenants = quota_rows.tenants(conn)
    requested = 0
    for tenant in tenants:
        quota = quota_of(quotas, tenant)
        if quota is not None:
            with connection() as conn:
                usage = quota_rows.usage(conn, tenant)
            if is_over(usage, quota, storage.open().settings.tier):
                requested += passes.request_quota(tenant, quota).new
    return {"tenants": requested}


@tick(stages.DEPTH)
def depth() -> dict[str, Any]:
    """Set the gauges of depth, where somebody may read them."""
    if storage.open().settings.metrics_port is None:
        return {"state": "nobody looks"}
    with connection() as conn:
        rows = tier_list.depth_by_scope(conn)
    show_depth(rows)
    return {"records": sum(records for _, _, records, _ in rows)}
