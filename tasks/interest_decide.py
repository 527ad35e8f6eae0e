"""Stages of interests that decide and write: s2 cluster, V1.2 adjudicate, V1.3 persist.

They run in the bank's turn: of one agent's sessions only one decides at a time, and each sees what the one before it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import LostLeaseError, RejectedError
from isotherm.pipeline.events import InterestsPersisted, PointsClustered, UnitsAdjudicated
from isotherm.pipeline.interest import codec, s2, v1_2, v1_3
from isotherm.pipeline.interest.budget import StoodIn
from isotherm.pipeline.interest.candidates import HistPoint, Outcome, Point, Status, Vector
from isotherm.pipeline.interest.pairs import contradictions_by_rules, relate_by_rules
from isotherm.pipeline.interest.s2 import ClusterResult, Component
from isotherm.pipeline.interest.v1_2 import Unit
from isotherm.storage.models import factory
from isotherm.storage.postgres import (
    interest_history,
    interest_steps,
    interest_turn,
    interest_usage,
    namespaces,
    outbox,
    steps,
)
from isotherm.storage.postgres.interest_history import Near, Statement
from isotherm.storage.postgres.interest_write import PlanWriter, Written
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.tasks.interest_models import PER_STEP
from isotherm.tasks.interest_run import (
    Json,
    ask_each,
    batches,
    cost_of,
    end,
    follow,
    next_step,
    only,
    readers,
    report,
)
from isotherm.tasks.onward import go_on
from isotherm.tasks.stage import claimed, stage_task, tell

# A run that waits is called when the one before it is written. Should that one end otherwise, it looks again by itself.
_LOOK_AGAIN = timedelta(seconds=10)
# Points of a session whose history is looked up at a time.
_TOGETHER = 100
_NOT_YET = "another session of this agent decides first"


@stage_task(stages.S2_CLUSTER)
def cluster(payload: Json) -> Json:
    """Link the points of a session with each other and with stored ones, once it is this run's turn."""
    with claimed(payload) as step:
        with connection() as conn:
            if not has_turn(conn, step):
                return step.receipt
            judged = _judged_points(conn, step)
            points = [point for point, _ in judged.points]
            stated = interest_history.known(conn, bank_of(step), _statements(points))
            waiting = interest_history.pending(conn, bank_of(step), sorted({i for ids in stated.values() for i in ids}))
            kept = [one for one in judged.points if not _settled(stated, waiting, one[0])]
            new = [point for point, _ in kept]

            def near(some: Sequence[Point]) -> Near:
                return _without(interest_history.near(conn, bank_of(step), some, judged.model), waiting)

            history, links = touched_history(new, stated, near)
        found = s2.cluster(
            new, history, relate_by_rules, known=links, proposed=(), contradicting=contradictions_by_rules
        )
        counts = {"points": len(points), "known": len(points) - len(new), "components": len(found.components)}
        counts |= {"queues": len(found.queues), "isolated": len(found.isolated)}
        unjudged = [place for place, (_, is_judged) in enumerate(kept) if not is_judged]
        answer = {"points": codec.dump_points(new), "hist": codec.dump_history(history), "model": judged.model}
        with connection() as conn:
            steps.store_answer(conn, step, {**answer, "clusters": codec.dump_clusters(found), "unjudged": unjudged})
            messages = follow(conn, step, next_step(stages.V1_3_PERSIST), *_units(found))
            step.settle(conn, counts)
        go_on(step, messages)
        tell(step, PointsClustered(**counts))
    return step.receipt


def bank_of(step: ClaimedStep) -> int:
    """The bank that a step belongs to. Raises: RejectedError when it belongs to none."""
    if step.bank_id is None:
        raise RejectedError(f"operation {step.operation_id} belongs to no bank")
    return step.bank_id


def has_turn(conn: Connection, step: ClaimedStep) -> bool:
    """Take the bank's turn, or give the step back, uncounted, to be called when the turn comes.

    Raises: RejectedError when it has waited for longer than anything is waited for; LostLeaseError when the step is not
    ours any more.
    """
    if interest_turn.take(conn, bank_of(step), step.operation_id) is not None:
        return True
    if steps.is_late(conn, step.id):
        raise RejectedError("gave up waiting for the turn of its agent")
    nudge = storage.open().patience.nudge_after
    outbox.announce(
        conn, step.stage, step.id, operation_id=step.operation_id, trace_id=step.trace_id, delay=_LOOK_AGAIN
    )
    if not steps.give_back(conn, step, delay=_LOOK_AGAIN, nudge_after=nudge, counted=False, error=_NOT_YET):
        raise LostLeaseError(f"step {step.id} has another runner")
    step.receipt = {"state": "postponed", "reason": _NOT_YET}
    return False


class _Judged(NamedTuple):
    """The points after s1, in order, each with whether a judge has seen it beside those it is like; the vectors' model."""

    points: list[tuple[Point, bool]]
    model: str | None


def _judged_points(conn: Connection, step: ClaimedStep) -> _Judged:
    """What s1 came to; a group that nobody could judge is kept as it is, and marked."""
    folded = only(conn, step, stages.S1_FOLD)
    judged: dict[str, list[Json]] = {}
    unjudged: set[str] = set()
    for one in interest_steps.answers(conn, step, stages.S1_JUDGE).values():
        judged |= one["points"]
        unjudged |= one.get("stood_in", {}).keys()
    raw: list[tuple[Json, bool]] = []
    for n, group in enumerate(folded["groups"]):
        kept = judged.get(str(n)) or [folded["points"][i] for i in group]
        known = len(group) == 1 or (str(n) in judged and str(n) not in unjudged)
        raw += [(point, known) for point in kept]
    points = codec.load_points([point for point, _ in raw])
    return _Judged(list(zip(points, (known for _, known in raw), strict=True)), folded["model"])


def _settled(stated: Mapping[Statement, Sequence[UUID]], waiting: Collection[UUID], point: Point) -> bool:
    """Whether all that is said for a point is evidence already, of points that do not wait for review."""
    ids = interest_history.by_statement(stated, point)
    return ids is not None and not any(i in waiting for i in ids)


def _without(near: Near, gone: Collection[UUID]) -> Near:
    """What is stored near points of a session, without those that an earlier try of the session left for review."""
    pairs = frozenset(pair for pair in near.pairs if pair[1] not in gone)
    return Near(tuple(point for point in near.points if point.id not in gone), pairs)


def _statements(points: Sequence[Point]) -> list[Statement]:
    return [(s.record_key, s.statement) for p in points for s in p.candidate.sources]


def touched_history(
    points: Sequence[Point], stated: Mapping[Statement, Sequence[UUID]], find: Callable[[Sequence[Point]], Near]
) -> tuple[list[HistPoint], set[tuple[int, UUID]]]:
    """The stored points that points of the session touch, and (place, id) of who touches whom.

    A batch at a time: of the many that are near in a large bank only those that are touched are kept.
    """
    kept: dict[UUID, HistPoint] = {}
    links: set[tuple[int, UUID]] = set()
    for start in range(0, len(points), _TOGETHER):
        some = points[start : start + _TOGETHER]
        near = find(some)
        known = _shared(some, stated, near)
        found = s2.touching(some, near.points, relate_by_rules, known=known, proposed=near.pairs)
        touched = {stored for _, stored in found}
        kept |= {h.id: h for h in near.points if h.id in touched}
        links |= {(start + place, stored) for place, stored in found}
    return [kept[stored] for stored in sorted(kept)], links


def _shared(points: Sequence[Point], stated: Mapping[Statement, Sequence[UUID]], near: Near) -> set[tuple[int, UUID]]:
    """(place, id) of points and stored points that share a statement."""
    ids = {h.id for h in near.points}
    return {
        (place, known)
        for place, point in enumerate(points)
        for source in point.candidate.sources
        for known in stated.get((source.record_key, source.statement), ())
        if known in ids
    }


def _units(found: ClusterResult) -> list[list[NewStep]]:
    """Steps of V1.2: components that stand alone in batches, queues one step after the other."""
    stage = stages.V1_2_ADJUDICATE
    alone = [n for n, component in enumerate(found.components) if component.judged]
    # One that a model judges is a step of its own: should it fail, it is named and tried again without the others.
    by_rules = factory.chat_model(storage.open().settings) is None
    batched = batches(alone, PER_STEP) if by_rules else batches(alone, 1)
    lines = [[next_step(stage, f"c{n}", {"components": batch})] for n, batch in enumerate(batched)]
    for n, queue in enumerate(found.queues):
        lines.append([
            next_step(stage, f"q{n}.{k}", {"queue": n, "place": k}, *([f"{stage}/q{n}.{k - 1}"] if k else []))
            for k in range(len(queue))
        ])  # fmt: skip
    return lines


class _Run:
    """What s2 found, with handles for the points of the session."""

    def __init__(self, conn: Connection, step: ClaimedStep) -> None:
        answer = only(conn, step, stages.S2_CLUSTER)
        self.points = {f"p{n}": point for n, point in enumerate(codec.load_points(answer["points"]))}
        self.hist: list[HistPoint] = codec.load_history(answer["hist"])
        self.clusters = codec.load_clusters(answer["clusters"])
        self.model: str | None = answer["model"]
        self._unjudged = set(answer.get("unjudged", ()))

    def components(self, wanted: Json) -> list[Component]:
        """The components of a step of V1.2."""
        if "queue" in wanted:
            return [self.clusters.queues[wanted["queue"]][wanted["place"]]]
        return [self.clusters.components[n] for n in wanted["components"]]

    def unit(self, component: Component, earlier: Sequence[Outcome]) -> Unit:
        """A component as it is judged."""
        members = {f"p{n}": self.points[f"p{n}"] for n in component.members}
        return Unit(members, tuple(self.hist[n] for n in component.hist), tuple(earlier), self.points)

    def settled(self) -> Outcome:
        """What needs no judgement: points that touch nothing stored become new ones.

        Those that s1 could not judge wait for review: they may be one, and somebody has to say so.
        """
        free = [self.clusters.isolated, *(c.members for c in self.clusters.components if not c.judged)]
        places = [n for members in free for n in members]
        new = v1_2.as_new({f"p{n}": self.points[f"p{n}"] for n in places if n not in self._unjudged})
        waiting = {f"p{n}": self.points[f"p{n}"] for n in places if n in self._unjudged}
        left = v1_2.as_new(waiting, "not_judged", Status.PENDING_REVIEW)
        return Outcome((*new.decisions, *left.decisions))


@stage_task(stages.V1_2_ADJUDICATE)
def adjudicate(payload: Json) -> Json:
    """Decide what becomes of the points of a unit; what cannot be judged waits for review."""
    with claimed(payload) as step:
        who = readers(step)
        with connection() as conn:
            run = _Run(conn, step)
            earlier = _earlier(conn, step)
        units = {str(n): run.unit(c, earlier) for n, c in enumerate(run.components(step.input))}

        def read(unit: Unit) -> tuple[Json, StoodIn | None]:
            outcome, why = who.adjudicate(unit)
            return codec.dump_outcomes([outcome])[0], why

        asked = ask_each(step, who, {n: lambda u=u: read(u) for n, u in units.items()})  # type: ignore[misc]
        outcomes = codec.load_outcomes(list(asked.said.values()))
        vectors = {h: codec.pack(v) for h, v in who.reworded(outcomes, run.points).items()}
        counts = {"units": len(outcomes), "decisions": sum(len(o.decisions) for o in outcomes)}
        counts |= {"contradictions": sum(len(o.contradictions) for o in outcomes), "fallbacks": len(asked.stood_in)}
        with connection() as conn:
            end(conn, step, asked, counts, {"vectors": vectors})
        report(step, UnitsAdjudicated(**counts))
    return step.receipt


def _earlier(conn: Connection, step: ClaimedStep) -> list[Outcome]:
    """What the units before this one in its queue came to."""
    if "queue" not in step.input:
        return []
    found = interest_steps.answers(conn, step, stages.V1_2_ADJUDICATE)
    units = [f"q{step.input['queue']}.{place}" for place in range(step.input["place"])]
    return [one for unit in units if unit in found for one in codec.load_outcomes(list(found[unit]["said"].values()))]


@stage_task(stages.V1_3_PERSIST)
def persist(payload: Json) -> Json:
    """Write a run in one transaction, and hand the turn over. Points without a decision wait for review."""
    with claimed(payload) as step:
        with connection() as conn:
            if not has_turn(conn, step):
                return step.receipt
            written = _write(conn, step)
            messages = interest_turn.release(conn, bank_of(step), step.operation_id, changed=written.changed)
            cost = cost_of(interest_usage.spent(conn, step.operation_id))
            step.settle(conn, {**asdict(written), **cost}, is_result=True)
        go_on(step, messages)
        tell(step, InterestsPersisted(**asdict(written)))
    return step.receipt


def _write(conn: Connection, step: ClaimedStep) -> Written:
    bank_id, run = bank_of(step), _Run(conn, step)
    parts = interest_steps.answers(conn, step, stages.V1_2_ADJUDICATE).values()
    outcomes = [run.settled()]
    vectors: dict[str, Vector] = {}
    for part in parts:
        outcomes += codec.load_outcomes(list(part["said"].values()))
        vectors |= {h: v for h, packed in part["vectors"].items() if (v := codec.unpack(packed)) is not None}
    stored = _stored(conn, bank_id, run, outcomes)
    planned = v1_3.plan(run.points, outcomes, run.hist, stored, vectors)
    return PlanWriter(conn, bank_id, step.operation_id, model=run.model, pending=stored.pending).write(planned)


def _by_first_said(stated: Mapping[Statement, Sequence[UUID]], point: Point) -> list[UUID]:
    """The points that have every statement of a point, none when one is new: first the one that was said first."""
    if interest_history.by_statement(stated, point) is None:
        return []
    said = (stated[s.record_key, s.statement] for s in point.candidate.sources)
    return list(dict.fromkeys(known for ids in said for known in ids))


def _stored(conn: Connection, bank_id: int, run: _Run, outcomes: Sequence[Outcome]) -> v1_3.Stored:
    """What is in the bank now; where an earlier try of this run wrote, its points are known by their statements."""
    found = interest_history.known(conn, bank_id, _statements(list(run.points.values())))
    stated = {h: ids for h, point in run.points.items() if (ids := _by_first_said(found, point))}
    decided = [d for outcome in outcomes for d in outcome.decisions]
    names = {v1_2.reworded(run.points[d.members[0]].candidate, d).name for d in decided}
    names |= {point.candidate.name for point in run.points.values()}
    used, retired = interest_history.names(conn, bank_id, sorted(names))
    seen = [*(i for ids in stated.values() for i in ids), *(h.id for h in run.hist)]
    pending = frozenset(interest_history.pending(conn, bank_id, seen))
    return v1_3.Stored(namespaces.bank_of(conn, bank_id).key, used, retired, stated, pending)
