"""Stages of a pass: plan, migrate, report. Passes that wait together are planned, and mostly made, in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import LostLeaseError, RejectedError, TransientError
from isotherm.pipeline.events import MigrationPlanned, MigrationReported, QuotaExceeded, RecordsMoved
from isotherm.pipeline.payloads import FanOut, StepRef
from isotherm.pipeline.tier.cold import ModelSummarizer
from isotherm.pipeline.tier.plan import Batch, BatchKind, MigrationPlan, plan_batches
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import Quota
from isotherm.storage.postgres import (
    namespaces,
    operations,
    outbox,
    steps,
    steps_together,
    tier_held,
    tier_move,
    tier_passes,
    tier_plan,
)
from isotherm.storage.postgres.operations import StepRow
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection, moment
from isotherm.storage.postgres.reach import system
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.storage.postgres.steps_together import Done
from isotherm.storage.postgres.tier_held import Patience
from isotherm.storage.postgres.tier_move import Moved
from isotherm.storage.tier import refresh_tails
from isotherm.tasks import passes
from isotherm.tasks.canvas import FAN_OUT
from isotherm.tasks.cold import summarizer_of
from isotherm.tasks.log import log
from isotherm.tasks.publish import publish_and_remove
from isotherm.tasks.stage import claimed, stage_task, tell, together

_STAGES_OF_KIND = {
    BatchKind.LIFT_AND_LOWER: stages.MIGRATE,
    BatchKind.EVICT: stages.MIGRATE,
    BatchKind.RESTORE: stages.RESTORE,
    BatchKind.ARCHIVE: stages.ARCHIVE,
}
# Summaries of one step, when a model writes them.
_PER_MODEL_STEP = 8
_REPORTED = (stages.MIGRATE, stages.RESTORE, stages.ARCHIVE)
# Passes of one transaction besides the first; writers of their namespaces wait for its end.
_RIDING = 19

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Pass:
    """A pass from its plan on.

    Args: over: what a tenant has beyond its quota; made: the receipt of what was moved at once, None where steps do it.
    """

    step: ClaimedStep
    policy: Policy
    planned: MigrationPlan
    over: QuotaExceeded | None = None
    batches: list[Batch] = field(default_factory=list)
    made: dict[str, Any] | None = None

    @property
    def is_small(self) -> bool:
        """Whether it is made together with its plan.

        Not what leaves for good, whose ids stand in the receipt of a step; and only the first time, since moves that ended
        their runner would end that of every plan.
        """
        return self.step.attempts == 1 and [batch.kind for batch in self.batches] == [BatchKind.LIFT_AND_LOWER]

    @property
    def done(self) -> Done:
        """How its first step ends."""
        counts = dict.fromkeys(("promoted", "demoted", "evicted", "set_aside", "unfinished"), 0)
        if self.made is not None:
            counts |= _totals([self.made])
        ended = self.made is not None or not self.batches
        planned = {
            "moves": len(self.planned.moves),
            "batches": len(self.batches),
            "truncated": self.planned.truncated,
        }
        return Done(self.step, {**planned, **(counts if ended else {})}, is_result=ended)


class _TakenError(Exception):
    """Somebody else runs some of the steps; `taken` are these."""

    def __init__(self, taken: Sequence[ClaimedStep]) -> None:
        super().__init__(f"{len(taken)} steps have another runner")
        self.taken = taken


@stage_task(stages.PLAN)
def plan(payload: dict[str, Any]) -> dict[str, Any]:
    """Decide what a pass over one namespace, or over a tenant for its quota, moves, and write the steps that move it.

    Moves that make one batch and leave all bodies where they are need no steps of their own: they are made at once. Passes over
    other namespaces that wait are planned with it.
    """
    with claimed(payload) as step, together(step, _RIDING if "quota" not in step.input else 0) as more:
        found, messages = _ours(step, [step, *more], _planned)
        publish_and_remove(messages)
        for each in found:
            if not each.is_small:
                _tell(each)
        for group in in_groups([each for each in found if each.is_small]):
            _make(step, group)
            for each in group:
                _tell(each)
    return step.receipt


def _ours(own: ClaimedStep, every: Sequence[ClaimedStep], act: Callable[[Sequence[ClaimedStep]], T]) -> T:
    """Do something for steps, and once more for the others where somebody else has taken some meanwhile.

    Raises: LostLeaseError when the step of the message is not ours any more; what `act` raises besides.
    """
    left = list(every)
    while True:
        try:
            return act(left)
        except _TakenError as error:
            if any(step is own for step in error.taken):
                raise LostLeaseError(f"step {own.id} has another runner") from error
            left = [step for step in left if not any(step is taken for taken in error.taken)]


def _planned(every: Sequence[ClaimedStep]) -> tuple[list[Pass], list[Message]]:
    elsewhere = [_moving_unseen(step) for step in every]
    namespace_ids = [n for step in every if (n := _namespace_of(step)) is not None]
    with connection() as conn:
        tier_plan.begin_passes(conn, namespace_ids, storage.open().settings.hold_base)
        now = moment(conn)
        found = [_decided(conn, step, now, keys) for step, keys in zip(every, elsewhere, strict=True)]
        apart = tier_held.known(conn, [move.key for each in found for move in each.planned.moves])
        archive_size = _archive_size()
        for each in found:
            each.batches = plan_batches(each.planned, each.policy.batch_size, archive_size=archive_size, apart=apart)
        messages = [_fan_out(conn, each) for each in found if each.batches and not each.is_small]
        for each in found:
            if not each.batches:
                _finish_pass(conn, each.step, each.policy, moved=0, held_until=each.planned.held_until)
        _settle(conn, [each for each in found if not each.is_small])
    return found, messages


def _decided(conn: Connection, step: ClaimedStep, now: datetime, elsewhere: frozenset[int]) -> Pass:
    policy = Policy.parse(step.input["policy"])
    if "quota" not in step.input:
        planned = passes.planned(conn, int(step.input["namespace_id"]), policy, now)
        left = tuple(move for move in planned.moves if move.key not in elsewhere)
        return Pass(step, policy, replace(planned, moves=left) if elsewhere else planned)
    tenant = step.input["tenant"]
    planned, over = passes.planned_for_quota(conn, tenant, Quota.parse(step.input["quota"]), policy)
    return Pass(step, policy, planned, QuotaExceeded(tenant, over.records, over.bytes, len(planned.moves)))


def _moving_unseen(step: ClaimedStep) -> frozenset[int]:
    """Row-level security hides passes for a quota from those of a namespace: they belong to nobody."""
    chosen = storage.open().settings
    if "quota" in step.input or not (chosen.rls and chosen.quotas):
        return frozenset()
    with system(), connection() as conn:
        return tier_passes.moving_in(conn, int(step.input["namespace_id"]))


def _settle(conn: Connection, found: Sequence[Pass]) -> None:
    """End the first steps of passes, in the transaction of their effect. Raises: _TakenError."""
    if found and (taken := steps_together.settle(conn, [each.done for each in found])):
        raise _TakenError(taken)


def in_groups(small: Sequence[Pass]) -> Iterator[list[Pass]]:
    """Passes whose moves go as one batch, in the order given: those of a tenant by themselves."""
    group: list[Pass] = []
    for each in small:
        room = each.policy.batch_size - sum(len(one.planned.moves) for one in group)
        alone = any(one.over is not None for one in (each, *group))
        if group and (alone or len(each.planned.moves) > room):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _make(own: ClaimedStep, group: Sequence[Pass]) -> None:
    """The moves and the end of small passes. In a transaction of its own: a plan holds namespaces, which others take after records.

    Moves that fail are left to steps, and these tell the record that is to blame from the others.
    """
    by_step = {each.step.id: each for each in group}
    try:
        _ours(own, [each.step for each in group], lambda left: _moved([by_step[step.id] for step in left]))
    except (TransientError, LostLeaseError):
        raise
    except Exception as error:  # noqa: BLE001 - a step meets it again, and says what it was
        for each in group:
            each.made = None
        if len(group) > 1:
            for each in group:
                _make(own, [each])
            return
        operation_id = group[0].step.operation_id
        log.warning("tier.moves_left_to_steps", error=type(error).__name__, operation_id=str(operation_id))
        publish_and_remove(_ours(own, [group[0].step], lambda left: _left_to_steps(group[: len(left)])))


def _moved(group: Sequence[Pass]) -> None:
    with connection() as conn:
        moved = tier_move.shift_together(conn, {each.step.operation_id: each.planned.moves for each in group})
        for each in group:
            each.made = moved[each.step.operation_id].receipt()
            _note_due(conn, each.step, moved[each.step.operation_id])
        _finish_passes(conn, group, moved)
        _settle(conn, group)


def _finish_passes(conn: Connection, group: Sequence[Pass], moved: Mapping[UUID, Moved]) -> None:
    """As `_finish_pass` does it for one, for passes whose moves were made."""
    own = {namespace_id: each for each in group if (namespace_id := _namespace_of(each.step)) is not None}
    due = [namespace_id for namespace_id, each in own.items() if moved[each.step.operation_id].moves]
    if own:
        namespaces.hold(conn, list(own))
        tier_plan.due_at_once(conn, due)
    for namespace_id, each in own.items():
        if namespace_id not in due:
            _finish_pass(conn, each.step, each.policy, moved=0, held_until=each.planned.held_until)


def _left_to_steps(group: Sequence[Pass]) -> list[Message]:
    with connection() as conn:
        messages = [_fan_out(conn, each) for each in group]
        _settle(conn, group)
    return messages


def _tell(each: Pass) -> None:
    if each.step.operation_state is None:  # somebody else took it, and tells of it
        return
    if each.over is not None:
        tell(each.step, each.over)
    tell(each.step, MigrationPlanned(len(each.planned.moves), len(each.batches), each.planned.truncated))
    if each.made is not None:
        _tell_moved(each.step, each.made)
        tell(each.step, MigrationReported(**_totals([each.made]), unfinished=0))


def _namespace_of(step: ClaimedStep) -> int | None:
    found = step.input.get("namespace_id")
    return None if found is None else int(found)


def _finish_pass(
    conn: Connection, step: ClaimedStep, policy: Policy, *, moved: int, held_until: datetime | None = None
) -> None:
    """A pass over a namespace notes when it is due again; quotas are looked at by a tick of their own."""
    namespace_id = _namespace_of(step)
    if namespace_id is not None:
        again = storage.open().settings.hold_base
        tier_plan.finish_pass(conn, namespace_id, policy, moved=moved, held_until=held_until, again=again)


def _archive_size() -> int | None:
    """A model takes seconds for a summary; the beginning of a text takes nothing."""
    try:
        is_model = isinstance(summarizer_of(storage.open().settings), ModelSummarizer)
    except RejectedError:  # told by the step that needs it: what needs no summary moves all the same
        return _PER_MODEL_STEP
    return _PER_MODEL_STEP if is_model else None


def _fan_out(conn: Connection, each: Pass) -> Message:
    """Write the steps of a pass: batches side by side, summaries before their archive, the report last."""
    patience, step, held_until = storage.open().patience, each.step, each.planned.held_until
    new: list[NewStep] = []
    for number, batch in enumerate(each.batches):
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
            moved = tier_move.shift(conn, step.operation_id, tier_move.decode(step.input["moves"]))
            # What was evicted must not be replayed from the hot tail: its drop leaves with the eviction.
            messages = [refresh_tails(conn, step.trace_id, moved.left)] if moved.left else []
            _note_due(conn, step, moved)
            step.settle(conn, moved.receipt())
        publish_and_remove(messages)
        _tell_moved(step, step.receipt)
    return step.receipt


def _note_due(conn: Connection, step: ClaimedStep, moved: Moved) -> None:
    """A pass for a quota notes for nobody when the next one is due; its moves may be reason for one all the same."""
    if step.namespace_id is None:
        tier_plan.mark_due_of(conn, [move.key for move in moved.moves])


def _tell_moved(step: ClaimedStep, receipt: Mapping[str, Any]) -> None:
    counts = {name: receipt[name] for name in ("promoted", "demoted", "evicted", "changed", "reasons")}
    tell(step, RecordsMoved(**counts, set_aside=len(receipt["set_aside"])))


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
