"""Stage V1.3: what a run writes, as a plan. Nothing here knows a database; one transaction carries the plan out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from isotherm.pipeline.hashing import digest
from isotherm.pipeline.interest.candidates import (
    TAGS_MAX,
    Action,
    Candidate,
    Contradiction,
    Decision,
    FinalPoint,
    HistPoint,
    Outcome,
    Point,
    Revision,
    Status,
    Vector,
)
from isotherm.pipeline.interest.v1_2 import as_new, reworded
from isotherm.pipeline.interest.vectors import cosines

RELATE_SIM = 0.50  # inclusive
BY_HAND = "decided by hand"


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection: `related` holds both ways and is kept once, from the smaller id; `sequel` leads from old to new."""

    source: UUID
    target: UUID
    kind: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Tension:
    """A contradiction between two points, the smaller id on the left."""

    left: UUID
    right: UUID
    rule: str
    words: tuple[str, str]
    description: str

    @property
    def id(self) -> UUID:
        """Of the ordered pair: the same two points have one contradiction."""
        return UUID(bytes=digest("contradiction", self.left.bytes, self.right.bytes)[:16], version=5)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run writes. Each point occurs once; archived points are those that some point succeeds."""

    points: tuple[FinalPoint, ...] = ()
    edges: tuple[Edge, ...] = ()
    tensions: tuple[Tension, ...] = ()

    @property
    def archived(self) -> list[UUID]:
        """Stored points that a new one takes the place of, each once."""
        return sorted({gone for point in self.points for gone in point.succeeds})


@dataclass(frozen=True, slots=True)
class Stored:
    """What a plan has to know of its bank.

    Args: bank_key: of the bank; used: canonical name → how many points ever had it; retired: canonical name → archived
        points that had it; stated: handle → points that have every statement of it as evidence already, as after a run
        that was repeated in part; pending: those of them that wait for review.
    """

    bank_key: bytes
    used: Mapping[str, int] = field(default_factory=dict)
    retired: Mapping[str, Sequence[UUID]] = field(default_factory=dict)
    stated: Mapping[str, Sequence[UUID]] = field(default_factory=dict)
    pending: frozenset[UUID] = frozenset()


def point_id(bank_key: bytes, canonical: str, revival: int) -> UUID:
    """The id of a point, from its bank, its first name and how often that name had been used up before."""
    return UUID(bytes=digest("interest", bank_key, canonical, str(revival))[:16], version=5)


def plan(
    points: Mapping[str, Point],
    outcomes: Sequence[Outcome],
    history: Sequence[HistPoint],
    stored: Stored,
    vectors: Mapping[str, Vector] | None = None,
) -> Plan:
    """Turn decisions into what is written.

    Args: points: of the session, by handle; outcomes: of all units; a point that none of them names waits for review;
        history: the stored points that the units saw; vectors: of points that got new words, by handle.
    """
    decided = [d for outcome in outcomes for d in outcome.decisions]
    named = {member for d in decided for member in d.members}
    decided += as_new(
        {h: p for h, p in points.items() if h not in named}, "not_judged", Status.PENDING_REVIEW
    ).decisions
    planner = _Planner(points, {str(h.id): h for h in history}, stored, vectors or {})
    for decision in decided:
        planner.add(decision)
    for revision in (r for outcome in outcomes for r in outcome.revisions):
        planner.revise(revision)
    final = list(planner.final.values())
    tensions = _tensions([c for outcome in outcomes for c in outcome.contradictions], planner.ids)
    return Plan(tuple(final), (*_related(final, history), *_sequels(final)), tuple(tensions))


class _Planner:
    """Gives every decision its point, one after the other."""

    def __init__(
        self,
        points: Mapping[str, Point],
        history: Mapping[str, HistPoint],
        stored: Stored,
        vectors: Mapping[str, Vector],
    ) -> None:
        self.ids: dict[str, UUID] = {key: point.id for key, point in history.items()}
        self.final: dict[UUID, FinalPoint] = {}
        self._points, self._history, self._stored, self._vectors = points, history, stored, vectors
        self._used = Counter(stored.used)

    def add(self, decision: Decision) -> None:
        known = None if decision.target is None else self.ids.get(decision.target)
        stated = [i for handle in decision.members for i in self._stored.stated.get(handle, ())]
        if known is None and stated:
            known = stated[0]
        made = self._new(decision) if known is None else self._more(decision, known, stated)
        self.ids.update(dict.fromkeys(decision.members, made.id))
        self.final[made.id] = _joined(self.final[made.id], made) if made.id in self.final else made

    def revise(self, revision: Revision) -> None:
        """Give a stored point better words, unless the run has to do with it in another way as well."""
        before = self._history.get(revision.target)
        archived = {gone for point in self.final.values() for gone in point.succeeds}
        if before is None or before.id in self.final or before.id in archived:
            return
        words = Candidate(
            revision.topic, revision.reason or before.summary, before.confidence, before.tags, kind=before.kind,
            importance=before.importance,
        )  # fmt: skip
        self.final[before.id] = FinalPoint(
            id=before.id,
            action=Action.UPDATE,
            candidate=words,
            rewrite=True,
            version=before.version,
            rule="reworded",
            vec=self._vectors.get(revision.target),
        )

    def _words(self, decision: Decision) -> tuple[Candidate, Vector | None]:
        members = [self._points[m] for m in decision.members]
        candidate = reworded(members[0].candidate, decision).with_sources_of(m.candidate for m in members[1:])
        given = self._vectors.get(decision.members[0])
        return candidate, given if given is not None or decision.topic.strip() else members[0].vec

    def _new(self, decision: Decision) -> FinalPoint:
        candidate, vec = self._words(decision)
        revival = self._used[candidate.name]
        self._used[candidate.name] += 1
        gone = {*map(UUID, decision.archives), *self._stored.retired.get(candidate.name, ())}
        return FinalPoint(
            id=point_id(self._stored.bank_key, candidate.name, revival),
            action=Action.CREATE,
            candidate=candidate,
            canonical=candidate.name,
            revival=revival,
            status=decision.status,
            rule=decision.rule,
            succeeds=tuple(sorted(gone)),
            vec=vec,
        )

    def _more(self, decision: Decision, known: UUID, stated: Sequence[UUID]) -> FinalPoint:
        """What a session adds to a point that is stored, or was made by an earlier decision of the same run."""
        candidate, vec = self._words(decision)
        before = self._history.get(str(known))
        if before is not None:
            candidate = replace(candidate, tags=tuple(dict.fromkeys((*before.tags, *candidate.tags)))[:TAGS_MAX])
        gone = {*map(UUID, decision.archives), *(i for i in stated if i in self._stored.pending)}
        return FinalPoint(
            id=known,
            action=Action.UPDATE,
            candidate=candidate,
            status=decision.status,
            rewrite=decision.rewrite,
            version=before.version if before else 0,
            rule=decision.rule,
            succeeds=tuple(sorted(gone - {known})),
            vec=vec if decision.rewrite else None,
        )


def _joined(one: FinalPoint, other: FinalPoint) -> FinalPoint:
    """Two decisions about one point: the words of the one that rewrites, the sources of both."""
    words = other if other.rewrite else one
    rest = one if other.rewrite else other
    return replace(
        one,
        candidate=words.candidate.with_sources_of([rest.candidate]),
        rewrite=one.rewrite or other.rewrite,
        vec=words.vec,
        succeeds=tuple(sorted({*one.succeeds, *other.succeeds})),
    )


def _tensions(found: Iterable[Contradiction], ids: Mapping[str, UUID]) -> list[Tension]:
    by_pair: dict[tuple[UUID, UUID], Tension] = {}
    for one in found:
        left, right = ids.get(one.left), ids.get(one.right)
        if left is None or right is None or left == right:
            continue
        words = one.words
        if right < left:
            left, right, words = right, left, (words[1], words[0])
        by_pair.setdefault((left, right), Tension(left, right, one.rule, words, one.description))
    return list(by_pair.values())


def _related(final: Sequence[FinalPoint], history: Sequence[HistPoint]) -> list[Edge]:
    """Points of the run that are alike, and those of the history they are alike to; what is archived takes no part."""
    gone = {g for point in final for g in point.succeeds}
    vectors = {h.id: h.vec for h in history if h.vec is not None}
    vectors |= {p.id: p.vec for p in final if p.vec is not None}
    mine = [p.id for p in final if p.id in vectors]
    others = [i for i in vectors if i not in gone]
    near = cosines([vectors[i] for i in mine], [vectors[i] for i in others])
    found: dict[tuple[UUID, UUID], Edge] = {}
    for row, one in enumerate(mine):
        for column, other in enumerate(others):
            if one != other and near[row, column] >= RELATE_SIM:
                pair = (min(one, other), max(one, other))
                found[pair] = Edge(*pair, "related", round(float(near[row, column]), 4))
    return list(found.values())


def _sequels(final: Sequence[FinalPoint]) -> list[Edge]:
    return [Edge(gone, point.id, "sequel") for point in final for gone in point.succeeds]


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides which side of a contradiction is the current one."""

    last_said_at: datetime | None
    reliability: float
    confidence: float


def current_side(left: Standing, right: Standing) -> tuple[str, str]:
    """Which side counts now, and why: said later, else more reliable, else read more surely.

    Returns: ("left" or "right", reason), ("", "undecided") when nothing tells them apart.
    """
    if left.last_said_at and right.last_said_at and left.last_said_at != right.last_said_at:
        return ("left" if left.last_said_at > right.last_said_at else "right"), "said later"
    for name, mine, yours in (
        ("more reliable", left.reliability, right.reliability),
        ("read more surely", left.confidence, right.confidence),
    ):
        if mine != yours:
            return ("left" if mine > yours else "right"), name
    return "", "undecided"
