"""Canvas builders: each turns a payload of the outbox into a signature, and contacts nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from celery import chain, chord
from celery.canvas import Signature

from isotherm.pipeline import stages
from isotherm.pipeline.payloads import FanOut, StepJob, StepRef, TailRefresh
from isotherm.storage.postgres.outbox import STEP
from isotherm.storage.tier import TAIL_REFRESH
from isotherm.tasks.app import app

FAN_OUT = "fan_out"


def step(payload: dict[str, Any]) -> Signature:
    """One step by itself."""
    job = StepJob.parse(payload["job"])
    return app.signature(payload["stage"], args=(job.model_dump(mode="json"),), immutable=True)


def fan_out(payload: dict[str, Any]) -> Signature:
    """Steps side by side, then the body once.

    Header tasks record their failures and return, so the body always comes; when a message is lost on the way, the
    sweeper announces the steps one by one. The body's error callback is the same body: it reads everything again.
    """
    wanted = FanOut.parse(payload)

    def one(ref: StepRef) -> Signature:
        job = StepJob(trace_id=wanted.trace_id, operation_id=wanted.operation_id, step_id=ref.step_id)
        return app.signature(ref.stage, args=(job.model_dump(mode="json"),), immutable=True)

    header = [chain(*map(one, line)) if len(line) > 1 else one(line[0]) for line in wanted.header]
    body = one(wanted.body)
    return chord(header, body.on_error(one(wanted.body)), app=app)


def tail_refresh(payload: dict[str, Any]) -> Signature:
    """Drop hot tails that may be stale."""
    wanted = TailRefresh.parse(payload)
    return app.signature(stages.REFRESH, args=(wanted.model_dump(mode="json"),), immutable=True)


BUILDERS: Mapping[str, Callable[[dict[str, Any]], Signature]] = MappingProxyType(
    {STEP: step, FAN_OUT: fan_out, TAIL_REFRESH: tail_refresh}
)
