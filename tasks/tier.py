"""Stages of tiered memory: index, plan, migrate, restore, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from isotherm import storage
from isotherm.pipeline import stages, text
from isotherm.pipeline.errors import LostLeaseError, RejectedError, TransientError
from isotherm.pipeline.events import (
    MigrationPlanned,
    MigrationReported,
    QuotaExceeded,
    RecordsIndexed,
    RecordsMoved,
    RecordsRestored,
)
from isotherm.pipeline.payloads import FanOut, StepRef
from isotherm.pipeline.tier.cold import ModelSummarizer
from isotherm.pipeline.tier.plan import Batch, BatchKind, MigrationPlan, Move, plan_batches
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import Quota
from isotherm.storage import cold
from isotherm.storage.models import factory
from isotherm.storage.postgres import (
    operations,
    outbox,
    steps,
    tier_held,
    tier_index,
    tier_move,
    tier_passes,
    tier_plan,
)
from isotherm.storage.postgres.operations import StepRow
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.storage.postgres.tier_held import Patience
from isotherm.storage.postgres.tier_move import Moved
from isotherm.storage.tier import refresh_tails
from isotherm.tasks import passes
from isotherm.tasks.canvas import FAN_OUT
from isotherm.tasks.cold import summarizer_of
from isotherm.tasks.log import log
from isotherm.tasks.publish import publish_and_remove
from isotherm.tasks.stage import claimed, stage_task, tell

_STAGES_OF_KIND = {
    BatchKind.LIFT_AND_LOWER: stages.MIGRATE,
    BatchKind.EVICT: stages.MIGRATE,
    BatchKind.RESTORE: stages.RESTORE,
    BatchKind.ARCHIVE: stages.ARCHIVE,
}
# Summaries of one step, when a model writes them.
_PER_MODEL_STEP = 8
_REPORTED = (stages.MIGRATE, stages.RESTORE, stages.ARCHIVE)


@stage_task(stages.INDEX)
def index(payload: dict[str, Any]) -> dict[str, Any]:
    """Write the words of new and changed records into the index."""
    with claimed(payload) as step:
        with connection() as conn:
            found = tier_index.unindexed(conn, step.input["keys"])
        words = [(record, text.terms(record.text)) for record in found]
        with connection() as conn:
            indexed = tier_index.write_terms(conn, words)
            step.settle(conn, {"records": len(step.input["keys"]), "indexed": indexed}, is_result=True)
        tell(step, RecordsIndexed(indexed))
    return step.receipt


@stage_task(stages.PLAN)
def plan(payload: dict[str, Any]) -> dict[str, Any]:
    """Decide what a pass over one namespace, or over a tenant for its quota, moves, and write the steps that move it.

    Moves that make one batch and leave all bodies where they are need no steps of their own: they are made at once.
    """
    with claimed(payload) as step:
        policy = Policy.parse(step.input["policy"])
        over: QuotaExceeded | None = None
        elsewhere = _moving_unseen(step)
        with connection() as conn:
            if "quota" in step.input:
                planned, over = _quota_plan(conn, step, policy)
            else:
                again = storage.open().settings.hold_base
                tier_plan.begin_pass(conn, int(step.input["namespace_id"]), again)
                planned = _without(passes.planned(conn, int(step.input["namespace_id"]), policy), elsewhere)
            apart = tier_held.known(conn, [move.key for move in planned.moves])
            batches = plan_batches(planned, policy.batch_size, archive_size=_archive_size(), apart=apart)
            receipt = _plan_receipt(planned, batches)
            at_once = _goes_at_once(step, batches)
            messages = [_fan_out(conn, step, batches, planned.held_until)] if batches and not at_once else []
            if not batches:
                _finish_pass(conn, step, policy, moved=0, held_until=planned.held_until)
            if not at_once:
                step.settle(conn, receipt, is_result=not batches)
        # In a transaction of its own: the one above holds the namespace, which others take after its records.
        moved, further = _move_at_once(step, policy, batches, receipt, planned) if at_once else (None, [])
        messages += further
        publish_and_remove(messages)
        if over is not None:
            tell(step, over)
        tell(step, MigrationPlanned(len(planned.moves), len(batches), planned.truncated))
        if moved is not None:
            _tell_moved(step, moved)
            tell(step, MigrationReported(**_totals([moved.receipt()]), unfinished=0))
    return step.receipt


def _without(planned: MigrationPlan, keys: frozenset[int]) -> MigrationPlan:
    return replace(planned, moves=tuple(move for move in planned.moves if move.key not in keys)) if keys else planned


def _moving_unseen(step: ClaimedStep) -> frozenset[int]:
    """Row-level security hides passes for a quota from those of a namespace: they belong to nobody."""
    chosen = storage.open().settings
    if "quota" in step.input or not (chosen.rls and chosen.quotas):
        return frozenset()
    with system(), connection() as conn:
        return tier_passes.moving_in(conn, int(step.input["namespace_id"]))


def _goes_at_once(step: ClaimedStep, batches: list[Batch]) -> bool:
    """Whether a plan is made together with its moves.

    Not what leaves for good, whose ids stand in the receipt of a step; and only the first time, since moves that ended their
    runner would end that of every plan.
    """
    return step.attempts == 1 and [batch.kind for batch in batches] == [BatchKind.LIFT_AND_LOWER]


def _move_at_once(
    step: ClaimedStep, policy: Policy, batches: list[Batch], receipt: dict[str, Any], planned: MigrationPlan
) -> tuple[Moved | None, list[Message]]:
    """The moves and the end of their pass.

    Moves that fail are left to steps, and these tell the record that is to blame from the others.
    """
    try:
        with connection() as conn:
            moved, messages = _shift(conn, step, batches[0].moves)
            _finish_pass(conn, step, policy, moved=len(moved.moves), held_until=planned.held_until)
            step.settle(conn, {**receipt, **_totals([moved.receipt()]), "unfinished": 0}, is_result=True)
    except (TransientError, LostLeaseError):
        raise
    except Exception as error:  # noqa: BLE001 - a step meets it again, and says what it was
        log.warning("tier.moves_left_to_steps", error=type(error).__name__, operation_id=str(step.operation_id))
    else:
        return moved, messages
    with connection() as conn:
        messages = [_fan_out(conn, step, batches, planned.held_until)]
        step.settle(conn, receipt)
    return None, messages


def _quota_plan(conn: Connection, step: ClaimedStep, policy: Policy) -> tuple[MigrationPlan, QuotaExceeded]:
    tenant = step.input["tenant"]
    planned, over = passes.planned_for_quota(conn, tenant, Quota.parse(step.input["quota"]), policy)
    return planned, QuotaExceeded(tenant, over.records, over.bytes, len(planned.moves))


def _finish_pass(
    conn: Connection, step: ClaimedStep, policy: Policy, *, moved: int, held_until: datetime | None = None
) -> None:
    """A pass over a namespace notes when it is due again; quotas are looked at by a tick of their own."""
    namespace_id = step.input.get("namespace_id")
    if namespace_id is not None:
        again = storage.open().settings.hold_base
        tier_plan.finish_pass(conn, int(namespace_id), policy, moved=moved, held_until=held_until, again=again)


def _archive_size() -> int | None:
    """A model takes seconds for a summary; the beginning of a text takes nothing."""
    try:
        is_model = isinstance(summarizer_of(storage.open().settings), ModelSummarizer)
    except RejectedError:  # told by the step that needs it: what needs no summary moves all the same
        return _PER_MODEL_STEP
    return _PER_MODEL_STEP if is_model else None


def _plan_receipt(planned: MigrationPlan, batches: list[Batch]) -> dict[str, Any]:
    counts = {} if batches else {"promoted": 0, "demoted": 0, "evicted": 0, "set_aside": 0, "unfinished": 0}
    return {"moves": len(planned.moves), "batches": len(batches), "truncated": planned.truncated, **counts}


def _fan_out(conn: Connection, step: ClaimedStep, batches: list[Batch], held_until: datetime | None) -> Message:
    """Write the steps of a pass: batches side by side, summaries before their archive, the report last."""
    patience = storage.open().patience
    new: list[NewStep] = []
    for number, batch in enumerate(batches):
        unit, moves = str(number), {"moves": tier_move.encode(batch.moves)}
        waits: tuple[str, ...] = ()
        if batch.kind is BatchKind.ARCHIVE:
            new.append(NewStep(stages.SUMMARIZE, moves, unit))
            waits = (f"{stages.SUMMARIZE}/{unit}",)
        new.append(NewStep(_STAGES_OF_KIND[batch.kind], moves, unit, waits))
    report_input = {
        "namespace_id": step.input.get("namespace_id"),
        "policy": step.input["policy"],
        "held_until": None if held_until is None else held_until.isoformat(),
    }
    new.append(NewStep(stages.REPORT, report_input, waits_for=(*_REPORTED, stages.SUMMARIZE)))
    ids = steps.add(conn, step.operation_id, new, retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    lines: dict[str, list[StepRef]] = {}
    for step_id, one in zip(ids[:-1], new[:-1], strict=True):
        lines.setdefault(one.unit, []).append(StepRef(step_id=step_id, stage=one.stage))
    wanted = FanOut(
        trace_id=step.trace_id,
        operation_id=step.operation_id,
        header=list(lines.values()),
        body=StepRef(step_id=ids[-1], stage=stages.REPORT),
    )
    return outbox.enqueue(
        conn, FAN_OUT, wanted.model_dump(mode="json"), operation_id=step.operation_id, delay=patience.grace
    )


@stage_task(stages.MIGRATE)
def migrate(payload: dict[str, Any]) -> dict[str, Any]:
    """Move a batch of records whose bodies stay where they are, or evict it where the policy asks for that."""
    with claimed(payload) as step:
        with connection() as conn:
            moved, messages = _shift(conn, step, tier_move.decode(step.input["moves"]))
            step.settle(conn, moved.receipt())
        publish_and_remove(messages)
        _tell_moved(step, moved)
    return step.receipt


def _shift(conn: Connection, step: ClaimedStep, moves: Sequence[Move]) -> tuple[Moved, list[Message]]:
    moved = tier_move.shift(conn, step.operation_id, moves)
    messages = _tails_without(conn, step, moved.left)
    if step.namespace_id is None:  # a pass for a quota notes for nobody when the next one is due
        tier_plan.mark_due_of(conn, [move.key for move in moved.moves])
    return moved, messages


def _tell_moved(step: ClaimedStep, moved: Moved) -> None:
    receipt = moved.receipt()
    counts = {name: receipt[name] for name in ("promoted", "demoted", "evicted", "changed", "reasons")}
    tell(step, RecordsMoved(**counts, set_aside=len(moved.set_aside)))


def _tails_without(conn: Connection, step: ClaimedStep, namespace_ids: list[int]) -> list[Message]:
    """What was evicted must not be replayed from the hot tail: its drop leaves with the eviction."""
    return [refresh_tails(conn, step.trace_id, namespace_ids)] if namespace_ids else []


@stage_task(stages.RESTORE)
def restore(payload: dict[str, Any]) -> dict[str, Any]:
    """Bring a batch of cold records back, byte for byte."""
    with claimed(payload) as step:
        opened = storage.open()
        chosen = opened.settings
        moves = tier_move.decode(step.input["moves"])
        fetched = cold.fetch(moves, opened.blobs)
        embeds = factory.embedder(chosen) is not None
        with connection() as conn:
            moved = tier_move.restore(
                conn,
                step.operation_id,
                moves,
                fetched=fetched,
                embeds=embeds,
                patience=Patience(chosen.hold_base, chosen.hold_cap),
            )
            messages = _embed_again(conn, step, moved.unembedded)
            step.settle(conn, moved.receipt(), is_result=True)
        publish_and_remove(messages)
        tell(step, RecordsRestored(len(moved.moves), len(moved.set_aside), step.receipt["reasons"]))
    return step.receipt


def _embed_again(conn: Connection, step: ClaimedStep, keys: list[int]) -> list[Message]:
    """Texts that came back get their vectors in a step of the same operation."""
    if not keys:
        return []
    patience = storage.open().patience
    new = NewStep(stages.TIER_EMBED, {"keys": keys}, step.unit)
    ids = steps.add(conn, step.operation_id, [new], retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    return [
        outbox.announce(
            conn,
            stages.TIER_EMBED,
            ids[0],
            operation_id=step.operation_id,
            trace_id=step.trace_id,
            delay=patience.grace,
        )
    ]


@stage_task(stages.REPORT)
def report(payload: dict[str, Any]) -> dict[str, Any]:
    """Sum up a pass from its steps, and note when the namespace is due again."""
    with claimed(payload) as step:
        policy = Policy.parse(step.input["policy"])
        with connection() as conn:
            parts = [s for s in operations.steps_of(conn, step.operation_id) if s.stage in _REPORTED]
            totals = _totals([s.receipt or {} for s in parts if s.state == "done"])
            totals["unfinished"] = sum(s.state != "done" for s in parts)
            totals["set_aside"] += _hold_unfinished(conn, parts)
            moved = totals["promoted"] + totals["demoted"] + totals["evicted"]
            held = step.input.get("held_until")
            held_until = None if held is None else datetime.fromisoformat(held)
            _finish_pass(conn, step, policy, moved=moved, held_until=held_until)
            step.settle(conn, totals, is_result=True)
        tell(step, MigrationReported(**totals))
    return step.receipt


def _hold_unfinished(conn: Connection, parts: list[StepRow]) -> int:
    """Set aside what was to move in steps that ended without; returns how many records. Else the next pass plans the same."""
    chosen = storage.open().settings
    held = 0
    for part in parts:
        if part.state != "done":
            moves = tier_move.decode(steps.input_of(conn, part.id).get("moves", ()))
            reason = f"{part.stage} {part.state}: {part.last_error or 'no reason given'}"
            held += tier_held.hold(
                conn,
                dict.fromkeys((move.key for move in moves), reason),
                Patience(chosen.hold_base, chosen.hold_cap),
                versions={move.key: move.version for move in moves},
            )
    return held


def _totals(receipts: list[dict[str, Any]]) -> dict[str, int]:
    totals = {name: sum(int(r.get(name, 0)) for r in receipts) for name in ("promoted", "demoted", "evicted")}
    totals["set_aside"] = sum(len(r.get("set_aside", {})) for r in receipts)
    return totals
