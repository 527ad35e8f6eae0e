"""Migration passes as operations: at most one waits per namespace, whoever asks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.tier.plan import MigrationPlan, plan_migration
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import Amount, Quota, excess, plan_quota
from isotherm.storage.postgres import operations, outbox, quotas, steps, tier_passes, tier_plan
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import Connection, connection, moment
from isotherm.storage.postgres.steps import NewStep
from isotherm.tasks.publish import publish_after_commit

KIND = "tier.reconcile"
QUOTA_KIND = "tier.quota"

_LOOKS = 3  # a pass that waited may begin between two looks


@dataclass(frozen=True, slots=True)
class Requested:
    """The operation that will do what was asked, and whether this call made it."""

    operation_id: UUID
    new: bool


def request(namespace_id: int, policy: Policy | None = None) -> Requested:
    """Ask for a pass over a namespace; a pass that waits already will do, and goes by the policy that is given here.

    Args: policy: None means the one of the settings, and for a pass that waits the one that it has.
    Raises: TransientError when a pass waits under another policy that somebody gave.
    """
    chosen = policy or storage.open().settings.tier
    asked = {} if policy is None else {"asked": True}
    plan = NewStep(stages.PLAN, {"namespace_id": namespace_id, "policy": chosen.model_dump(mode="json"), **asked})
    for _ in range(_LOOKS):
        found = start(NewOperation(uuid7(), KIND, uuid4(), namespace_id=namespace_id), plan)
        if found.new or policy is None:
            return found
        with connection() as conn:
            if tier_passes.adopt(conn, found.operation_id, plan.input):
                return found
    raise TransientError("passes of this namespace begin as fast as they are asked for")


def request_due(namespace_ids: Sequence[int]) -> int:
    """Ask for passes over namespaces, under the policy of the settings, in one transaction; returns how many are new.

    Those that have a pass which waits, and those that are gone, are left out.
    """
    opened = storage.open()
    policy = opened.settings.tier.model_dump(mode="json")
    asked = [tier_passes.Asked(uuid7(), uuid4(), {"namespace_id": n, "policy": policy}) for n in namespace_ids]
    with connection() as conn:
        messages = tier_passes.ask(
            conn,
            asked,
            retry_for=opened.patience.retry_for,
            nudge_after=opened.patience.nudge_after,
            grace=opened.patience.grace,
        )
    publish_after_commit(messages)
    return len(messages)


def planned(conn: Connection, namespace_id: int, policy: Policy, now: datetime | None = None) -> MigrationPlan:
    """What a pass over a namespace would move now, from one snapshot; moves nothing."""
    now = now or moment(conn)
    return plan_migration(tier_plan.snapshot(conn, namespace_id, policy, now), policy, now)


def planned_for_quota(
    conn: Connection, tenant: str | None, quota: Quota, policy: Policy
) -> tuple[MigrationPlan, Amount]:
    """What a pass over a tenant would move now for its quota, and what the tenant has beyond that; moves nothing."""
    now = moment(conn)
    usage = quotas.usage(conn, tenant)
    weakest = quotas.weakest(conn, tenant, most=policy.max_moves, cold=policy.evicts, now=now)
    found = plan_quota(usage, weakest, quota, policy, now)
    moving = tier_passes.moving(conn, [move.key for move in found.moves])
    left = tuple(move for move in found.moves if move.key not in moving)
    return replace(found, moves=left), excess(usage, quota, cold=policy.evicts)


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
