"""Stage V1.2: what becomes of points that belong together or touch stored ones. Writes nothing.

Whoever judges, a unit ends with every one of its points in exactly one decision, and stored points change only by
decisions that name them. What could not be judged becomes a new point that waits for review.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from isotherm.pipeline.interest.candidates import (
    Candidate,
    Contradiction,
    Decision,
    HistPoint,
    Outcome,
    Point,
    Status,
    Vector,
)
from isotherm.pipeline.interest.pairs import Link, Relate, Relation, Side
from isotherm.pipeline.interest.s1 import side
from isotherm.pipeline.interest.vectors import cosines

_FIRM = ("exact", "near_exact", "same_topic", "same_name")


@dataclass(frozen=True, slots=True)
class Known:
    """A point that a member may become a part of: a stored one, or one that was decided on earlier.

    Args: key: id of the stored point, or handle of the decision.
    """

    key: str
    side: Side
    confidence: float
    vec: Vector | None

    @classmethod
    def stored(cls, point: HistPoint) -> Known:
        """A stored point, by its id."""
        return cls(str(point.id), Side(point.name, point.summary, point.kind), point.confidence, point.vec)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is judged together.

    Args: members: points of the session by handle; hist: stored points; earlier: what the units before it in its queue
        came to, in order.
    """

    members: Mapping[str, Point]
    hist: tuple[HistPoint, ...] = ()
    earlier: tuple[Outcome, ...] = ()
    others: Mapping[str, Point] | None = None

    def known(self) -> list[Known]:
        """What members can become a part of, as the earlier units left it: with new words, without what was archived."""
        found = {str(h.id): Known.stored(h) for h in self.hist}
        for revision in (r for outcome in self.earlier for r in outcome.revisions):
            if revision.target in found:
                side = replace(found[revision.target].side, topic=revision.topic, reason=revision.reason)
                found[revision.target] = replace(found[revision.target], side=side)
        for decision in (d for outcome in self.earlier for d in outcome.decisions):
            for gone in decision.archives:
                found.pop(gone, None)
            point = (self.others or {}).get(decision.members[0])
            if point is None:
                continue
            if decision.target is None:
                found[decision.members[0]] = _made(decision.members[0], reworded(point.candidate, decision), point.vec)
            elif decision.rewrite and decision.target in found:
                found[decision.target] = _made(decision.target, reworded(point.candidate, decision), point.vec)
        return list(found.values())


def _made(key: str, candidate: Candidate, vec: Vector | None) -> Known:
    return Known(key, Side(candidate.topic, candidate.reason, candidate.kind), candidate.confidence, vec)


def reworded(candidate: Candidate, decision: Decision) -> Candidate:
    """A candidate with the words of a decision about it, where it has any."""
    if not decision.topic.strip():
        return candidate
    return replace(candidate, topic=decision.topic.strip(), reason=decision.reason.strip() or candidate.reason)


def adjudicate_by_rules(unit: Unit, relate: Relate) -> Outcome:
    """Judge a unit without a model: same things become one, contradictions are told, and nothing is archived.

    Members are taken in order; each sees what became of those before it.
    """
    known = unit.known()
    decisions: list[Decision] = []
    tensions: list[Contradiction] = []
    for handle, point in unit.members.items():
        relations = _relations(point, known, relate)
        target = _best(relations)
        decision = _decision(handle, point, target)
        decisions.append(decision)
        mine = decision.target or handle
        tensions += [
            Contradiction(mine, other.key, relation.rule, relation.words)
            for other, relation, _ in relations
            if relation.link is Link.CONTRADICTS and other.key != mine
        ]
        if decision.target is None:
            known.append(_made(handle, point.candidate, point.vec))
    return Outcome(tuple(decisions), tuple(tensions))


def _relations(point: Point, known: Sequence[Known], relate: Relate) -> list[tuple[Known, Relation, float]]:
    near = cosines([point.vec], [k.vec for k in known])[0] if known else []
    found = []
    for other, value in zip(known, near, strict=True):
        embedded = point.vec is not None and other.vec is not None
        found.append((other, relate(side(point), other.side, float(value) if embedded else None), float(value)))
    return found


def _best(relations: Iterable[tuple[Known, Relation, float]]) -> tuple[Known, Relation] | None:
    """The point it is most surely the same as: by a firm rule first, then by likeness, then in order."""
    same = [(other, relation, near) for other, relation, near in relations if relation.link is Link.SAME]
    if not same:
        return None
    other, relation, _ = max(same, key=lambda s: (s[1].rule in _FIRM, s[2]))
    return other, relation


def _decision(handle: str, point: Point, target: tuple[Known, Relation] | None) -> Decision:
    if target is None:
        return Decision((handle,), rule="new")
    other, relation = target
    # Clearer words replace the stored ones; the point stays the same point.
    clearer = point.candidate.confidence > other.confidence
    return Decision((handle,), target=other.key, rewrite=clearer, rule=relation.rule)


def as_new(members: Mapping[str, Point], rule: str = "new", status: Status = Status.ACTIVE) -> Outcome:
    """Every point a new one: what touches nothing, or, as pending, what could not be judged."""
    return Outcome(tuple(Decision((handle,), status=status, rule=rule) for handle in members))


def completed(outcome: Outcome, unit: Unit) -> Outcome:
    """An outcome in which every member has exactly one decision, whatever a judge left out or said twice.

    The first decision that names a member has it; a target or an archived point that the unit was not shown voids its
    decision; a member without a valid decision becomes a new point that waits for review. A contradiction is between two
    points that the unit was shown.
    """
    shown = {k.key for k in unit.known()}
    stored = shown & {str(h.id) for h in unit.hist}
    taken: set[str] = set()
    kept: list[Decision] = []
    for decision in outcome.decisions:
        mine = tuple(m for m in dict.fromkeys(decision.members) if m in unit.members and m not in taken)
        made = {d.members[0] for d in kept}
        valid = decision.target is None or decision.target in shown | made
        if mine and valid and set(decision.archives) <= stored:
            taken.update(mine)
            kept.append(replace(decision, members=mine))
    lost = {handle: point for handle, point in unit.members.items() if handle not in taken}
    kept += as_new(lost, "not_judged", Status.PENDING_REVIEW).decisions
    sides = shown | set(unit.members)
    revised = {r.target: r for r in outcome.revisions if r.target in stored and r.topic.strip()}
    for decision in kept:
        for gone in (decision.target, *decision.archives):
            revised.pop(
                gone or "", None
            )  # what a member becomes a part of, or replaces, has its words from that member
    tensions = [c for c in outcome.contradictions if c.left in sides and c.right in sides and c.left != c.right]
    return Outcome(tuple(kept), tuple(tensions), tuple(revised.values()))
