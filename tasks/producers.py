"""What other programs import: each call is durable when it returns, and the work behind it is on its way.

    from isotherm.tasks.producers import remember, recall, reconcile, ingest_session, interests, put, search, expand

No worker, and not even the broker, has to be up for a producer to answer; PostgreSQL has to.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace, check_names
from isotherm.pipeline.tier.answers import Recall
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.packing import Packed
from isotherm.pipeline.tier.plan import MigrationPlan, Move
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import quota_of
from isotherm.pipeline.tier.ranking import Touch
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.storage import tier_context
from isotherm.storage.postgres import namespaces, operations, outbox, tier_held, tier_index, tier_move, tier_recall
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.operations import NewOperation, Operation
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import of_owner, over_all
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.postgres.tier_held import SetAside
from isotherm.tasks import passes
from isotherm.tasks.accepted import Accepted
from isotherm.tasks.produce_brain import (
    continue_,
    expand,
    find_exact,
    find_links,
    find_objects,
    knowledge,
    link,
    list_children,
    put,
    put_many,
    read,
    save_discovery,
    save_fact,
    save_memory,
    search,
    soft_delete,
    unlink,
)
from isotherm.tasks.produce_forget import (
    forget,
    forget_agent,
    forget_interests,
    forget_objects,
    forget_receipt,
    forget_session,
    forget_tenant,
    rewrite_files,
)
from isotherm.tasks.produce_import import import_files
from isotherm.tasks.produce_interest import (
    contradictions,
    ingest_session,
    interest_context,
    interests,
    recall_interests,
    reopen_contradiction,
    resolve_contradiction,
    undo_change,
)
from isotherm.tasks.produce_records import MAX_BATCH, remember, remember_messages, remember_records
from isotherm.tasks.produce_tier import explain, get, list_all, list_namespaces, pin, unpin, update
from isotherm.tasks.produce_transfer import export, import_records
from isotherm.tasks.publish import flush, publish_after_commit

__all__ = [
    "MAX_BATCH",
    "Accepted",
    "cancel",
    "continue_",
    "contradictions",
    "expand",
    "explain",
    "export",
    "find_exact",
    "find_links",
    "find_objects",
    "flush",
    "forget",
    "forget_agent",
    "forget_interests",
    "forget_objects",
    "forget_receipt",
    "forget_session",
    "forget_tenant",
    "get",
    "import_files",
    "import_records",
    "ingest_session",
    "interest_context",
    "interests",
    "knowledge",
    "link",
    "list_all",
    "list_children",
    "list_namespaces",
    "operation",
    "pin",
    "plan",
    "plan_for_quota",
    "put",
    "put_many",
    "read",
    "recall",
    "recall_context",
    "recall_interests",
    "reconcile",
    "release",
    "remember",
    "remember_messages",
    "remember_records",
    "reopen_contradiction",
    "resolve_contradiction",
    "restore",
    "retry",
    "rewrite_files",
    "save_discovery",
    "save_fact",
    "save_memory",
    "search",
    "set_aside",
    "soft_delete",
    "undo_change",
    "unlink",
    "unpin",
    "update",
]


def recall(
    scope: Namespace | Bank,
    query: str,
    *,
    sessions: Sequence[str] | None = None,
    budget: RecallBudget | None = None,
    weights: RecallWeights | None = None,
    touch: bool | Touch = Touch.RELEVANT,
    newest_first: bool = True,
    graph: bool = False,
    learned: bool = False,
) -> Recall:
    """The records of a namespace, or of a bank with all or the listed sessions, that matter most for a query.

    Reads in this process: no worker takes part. Args: newest_first: whether a statement comes before an older one that it
    renews; graph: whether to walk from what was found over names that the agent's knowledge has, and over what was learned;
    learned: whether points of interests that match bring the records they stand on.
    Raises: TransientError when PostgreSQL cannot be reached.
    """
    return storage.open().tier.recall(
        _scope(scope, sessions),
        query,
        budget=budget,
        weights=weights,
        touch=touch,
        newest_first=newest_first,
        graph=graph,
        learned=learned,
    )


def recall_context(
    scope: Namespace | Bank,
    query: str,
    *,
    sessions: Sequence[str] | None = None,
    tokens: int = tier_context.TOKENS,
    window: int = tier_context.WINDOW,
    limit: int = tier_context.LIMIT,
    touch: bool | Touch = Touch.RELEVANT,
    graph: bool = False,
    learned: bool = True,
) -> Packed:
    """What `recall` finds as one text for a prompt: in order of time, with the turns around each hit, within a budget.

    Args: tokens: for the whole text, estimated; window: turns before and after each hit, 0 to 20; limit: hits at most;
    graph: as for `recall`; learned: whether points of interests that match bring their records, and stand there, marked.
    Raises: RejectedError for another window; TransientError when PostgreSQL cannot be reached.
    """
    where = _scope(scope, sessions)
    memory = storage.open().tier
    return tier_context.context(
        memory, where, query, tokens=tokens, window=window, limit=limit, touch=touch, graph=graph, learned=learned
    )


def _scope(scope: Namespace | Bank, sessions: Sequence[str] | None) -> Scope:
    listed = None if sessions is None else tuple(sessions)
    return Scope(namespace=scope) if isinstance(scope, Namespace) else Scope(bank=scope, sessions=listed)


@of_owner
def reconcile(namespace: Namespace, policy: Policy | None = None) -> Accepted:
    """Ask for a migration pass over a namespace; one that waits already will do, and goes by the policy that is given here.

    Args: policy: None means the one of the settings, and for a pass that waits the one that it has.
    Raises: TransientError when a pass waits under another policy that somebody gave, or PostgreSQL cannot be reached.
    """
    storage.open()
    wanted = passes.request(namespaces.resolve(namespace).namespace_id, policy)
    return Accepted(wanted.operation_id, new=wanted.new)


@of_owner
def plan(namespace: Namespace, policy: Policy | None = None) -> MigrationPlan:
    """What a migration pass over a namespace would move now; moves nothing.

    Args: policy: None means the one of the settings. Raises: TransientError when PostgreSQL cannot be reached.
    """
    chosen = policy or storage.open().settings.tier
    place = namespaces.find(namespace)
    if place is None:
        return MigrationPlan()
    with connection() as conn:
        return passes.planned(conn, place.namespace_id, chosen)


@over_all
def plan_for_quota(tenant: str | None) -> MigrationPlan:
    """What a pass over a tenant would move now for its quota; nothing where it has none or keeps it. Moves nothing.

    Raises: RejectedError for a blank name; TransientError when PostgreSQL cannot be reached.
    """
    check_names(tenant=tenant)
    chosen = storage.open().settings
    quota = quota_of(chosen.quotas, tenant)
    if quota is None:
        return MigrationPlan()
    with connection() as conn:
        return passes.planned_for_quota(conn, tenant, quota, chosen.tier)[0]


@over_all
def set_aside(tenant: str | None, agent: str | None = None, limit: int = 100) -> list[SetAside]:
    """Records of a tenant that passes leave alone for now, with the reason, the longest waiting first.

    Raises: RejectedError for a blank name; TransientError when PostgreSQL cannot be reached.
    """
    check_names(tenant=tenant, agent=agent)
    storage.open()
    with connection() as conn:
        return tier_held.listed(conn, tenant=tenant, agent=agent, limit=limit)


@over_all
def release(tenant: str | None, agent: str | None = None) -> int:
    """Let passes try the records of a tenant that are set aside again, but for those whose body is lost; returns how many.

    Raises: RejectedError for a blank name; TransientError when PostgreSQL cannot be reached.
    """
    check_names(tenant=tenant, agent=agent)
    storage.open()
    with connection() as conn:
        freed = tier_held.release(conn, tenant=tenant, agent=agent)
        tier_index.mark_due(conn, sorted(set(freed)))
    return len(freed)


@of_owner
def restore(namespace: Namespace, ids: Sequence[str]) -> Accepted:
    """Bring cold records back to warm, byte for byte. Records that are not cold stay as they are.

    Raises: RejectedError when the namespace has no record with one of the ids.
    """
    storage.open()
    wanted = list(dict.fromkeys(ids))
    if not 1 <= len(wanted) <= MAX_BATCH:
        raise RejectedError(f"from 1 to {MAX_BATCH} records can be restored at once, not {len(wanted)}")
    place = namespaces.find(namespace)
    if place is None:
        raise RejectedError("this namespace has no records")
    with connection() as conn:
        found = tier_recall.by_id(conn, namespace, wanted, datetime.now(UTC))
    if missing := len(wanted) - len(found):
        raise RejectedError(f"{missing} of {len(wanted)} records are not in this namespace")
    moves = [
        Move(key, record.version, Tier.COLD, Tier.WARM, Reason.RESTORE)
        for key, record in found.values()
        if record.tier is Tier.COLD
    ]
    new = NewOperation(uuid7(), "tier.restore", uuid4(), place.bank_id, place.namespace_id)
    started = passes.start(new, NewStep(stages.RESTORE, {"moves": tier_move.encode(moves)}))
    return Accepted(started.operation_id, tuple(wanted), written=len(moves))


@over_all
def operation(operation_id: UUID) -> Operation:
    """What became of a call. Raises: RejectedError when there is no such operation."""
    storage.open()
    with connection() as conn:
        return operations.get(conn, operation_id)


@over_all
def retry(operation_id: UUID) -> int:
    """Run the failed, dead and cancelled steps of an operation again; returns how many steps are open now.

    Raises: RejectedError when there is no such operation, or nothing of it failed.
    """
    patience = storage.open().patience
    with connection() as conn:
        known = operations.get(conn, operation_id)
        opened = operations.reopen(conn, operation_id, retry_for=patience.retry_for, nudge_after=patience.nudge_after)
        messages = [
            outbox.announce(
                conn, stage, step_id, operation_id=operation_id, trace_id=known.trace_id, delay=patience.grace
            )
            for step_id, stage in opened
        ]
    publish_after_commit(messages)
    return len(opened)


@over_all
def cancel(operation_id: UUID) -> Operation:
    """Stop what has not ended of an operation. Raises: RejectedError when there is no such operation or it is final."""
    storage.open()
    with connection() as conn:
        return operations.cancel(conn, operation_id)
