"""Migration passes as operations: at most one waits per namespace, whoever asks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.tier.plan import MigrationPlan, plan_migration
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import Quota
from isotherm.storage.postgres import operations, outbox, steps, tier_plan
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import Connection, connection, moment
from isotherm.storage.postgres.steps import NewStep
from isotherm.tasks.publish import publish_after_commit

KIND = "tier.reconcile"
QUOTA_KIND = "tier.quota"


@dataclass(frozen=True, slots=True)
class Requested:
    """The operation that will do what was asked, and whether this call made it."""

    operation_id: UUID
    new: bool


def request(namespace_id: int, policy: Policy | None = None) -> Requested:
    """Ask for a pass over a namespace; a pass that waits already will do.

    Args: policy: None means the one of the settings.
    """
    chosen = policy or storage.open().settings.tier
    new = NewOperation(uuid7(), KIND, uuid4(), namespace_id=namespace_id)
    plan = NewStep(stages.PLAN, {"namespace_id": namespace_id, "policy": chosen.model_dump(mode="json")})
    return start(new, plan)


def planned(conn: Connection, namespace_id: int, policy: Policy) -> MigrationPlan:
    """What a pass over a namespace would move now, from one snapshot; moves nothing."""
    now = moment(conn)
    return plan_migration(tier_plan.snapshot(conn, namespace_id, policy, now), policy, now)


def request_quota(tenant: str | None, quota: Quota) -> Requested:
    """Ask for a pass that brings a tenant to its quota; calls within one tick are one."""
    chosen = storage.open().settings
    turn = int(time.time() / chosen.quota_tick.total_seconds())
    named = digest("quota", tenant, str(turn))
    new = NewOperation(uuid7(), QUOTA_KIND, uuid4(), key=named, fingerprint=named)
    wanted = {"tenant": tenant, "quota": quota.model_dump(mode="json"), "policy": chosen.tier.model_dump(mode="json")}
    return start(new, NewStep(stages.PLAN, wanted))


def start(new: NewOperation, step: NewStep) -> Requested:
    """Write an operation of one step with its message, and publish it after the commit."""
    patience = storage.open().patience
    with connection() as conn:
        operation, fresh = operations.create(conn, new)
        if not fresh:
            return Requested(operation.id, new=False)
        step_id = steps.add(conn, new.id, [step], retry_for=patience.retry_for, nudge_after=patience.nudge_after)[0]
        message = outbox.announce(
            conn, step.stage, step_id, operation_id=new.id, trace_id=new.trace_id, delay=patience.grace
        )
    publish_after_commit([message])
    return Requested(new.id, new=True)
