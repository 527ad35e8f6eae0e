"""The values of the interest pipeline, from what a session says to what is stored. Each stage turns one kind into the next."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.hashing import digest

TAGS_MAX = 5
Vector = NDArray[np.float32]


class Kind(StrEnum):
    """What sort of thing an interest is. Only things of one sort are taken for the same by a shared word alone."""

    INTEREST = "interest"  # a hobby, a taste, a subject
    PREFERENCE = "preference"
    FACT = "fact"
    PLAN = "plan"
    SCHEDULE = "schedule"
    TOOL = "tool"


class Status(StrEnum):
    """Whether a stored point counts. Pending points are visible and marked; archived ones lead to a successor."""

    ACTIVE = "active"
    PENDING_REVIEW = "pending_review"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Source:
    """Where something was said: a message, its place in the session, and the place of the words in it; no text.

    Args: record_key, record_id: of the message; turn: 0-based index of the message in its session; at: when it was said;
        start, end: offsets of the statement in the message, equal when it is the message as a whole; statement: digest of
        the statement, by which it is known again.
    """

    namespace_id: int
    record_key: int
    record_id: str
    turn: int
    at: datetime
    start: int
    end: int
    statement: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that a session says about what its user cares about.

    Args: topic: a short phrase; reason: the statement it was read from; confidence, importance: in [0, 1], that it was
        read rightly and how much it matters; tags: at most five; turn_range: first and last message, 0-based, None when
        unknown; subjective: the user's own preference; wiki_worthy: None when nobody judged; ttl_days: how long it stays fresh
        after it was said, None for the default.
    """

    topic: str
    reason: str = ""
    confidence: float = 0.5
    tags: tuple[str, ...] = ()
    turn_range: tuple[int, int] | None = None
    subjective: bool = False
    wiki_worthy: bool | None = None
    event_time: datetime | None = None
    kind: Kind = Kind.INTEREST
    importance: float = 0.5
    sources: tuple[Source, ...] = ()
    ttl_days: int | None = None

    @property
    def name(self) -> str:
        """The topic as names are compared."""
        return normalize(self.topic)

    @property
    def text(self) -> str:
        """What is embedded: the topic, and the reason on a line of its own when there is one."""
        return f"{self.topic}\n{self.reason}" if self.reason else self.topic

    def with_sources_of(self, others: Iterable[Candidate]) -> Candidate:
        """This candidate with what was said elsewhere for it: sources, turns, tags; its own words stay.

        The time is the earliest, as the first of a session; sources are in the order of the session, each once.
        """
        every: list[Candidate] = [self, *others]
        times = [c.event_time for c in every if c.event_time is not None]
        ranges = [c.turn_range for c in every if c.turn_range is not None]
        worthy = [c.wiki_worthy for c in every if c.wiki_worthy is not None]
        found = {(s.record_key, s.statement): s for c in every for s in c.sources}
        return replace(
            self,
            tags=tuple(dict.fromkeys(tag for c in every for tag in c.tags))[:TAGS_MAX],
            event_time=min(times, default=None),
            turn_range=(min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else None,
            wiki_worthy=worthy[0] if worthy else None,
            sources=tuple(sorted(found.values(), key=lambda s: (s.at, s.turn, s.start, s.statement))),
        )


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate with its vector, of unit length; None when nothing embeds."""

    candidate: Candidate
    vec: Vector | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class HistPoint:
    """A stored point as a run sees it."""

    id: UUID
    name: str
    summary: str
    tags: tuple[str, ...] = ()
    kind: Kind = Kind.INTEREST
    status: Status = Status.ACTIVE
    confidence: float = 0.5
    importance: float = 0.5
    reliability: float = 0.5
    last_seen_at: datetime | None = None
    version: int = 1
    vec: Vector | None = field(default=None, compare=False)


class Action(StrEnum):
    """What becomes of a point."""

    CREATE = "create"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one or more points of a session.

    Args: members: their handles, at least one; the first one names the decision; target: id of a stored point, or handle
        of another decision, that they become a part of; None makes a new point; topic, reason: words to use instead of
        the members' own, empty for those; rewrite: whether the words replace those of the target; status: of a new
        point; archives: ids of stored points that it takes the place of; rule: why.
    """

    members: tuple[str, ...]
    target: str | None = None
    topic: str = ""
    reason: str = ""
    rewrite: bool = False
    status: Status = Status.ACTIVE
    archives: tuple[str, ...] = ()
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Revision:
    """Better words for a stored point that no member becomes a part of. Args: target: its id; topic: not blank."""

    target: str
    topic: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two points that cannot both hold.

    Args: left, right: handles of points of the session, or ids of stored ones; rule: which rule, or the model; words:
        what it saw on the left and on the right; description: for people, may be empty.
    """

    left: str
    right: str
    rule: str
    words: tuple[str, str] = ("", "")
    description: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided about a unit of points: each is a member of exactly one decision; stored ones may get better words."""

    decisions: tuple[Decision, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    revisions: tuple[Revision, ...] = ()


@dataclass(frozen=True, slots=True)
class FinalPoint:
    """A point to write: a new one, or what a session adds to a stored one.

    Args: id: of the point; revival: how often its name had been used up before, for a new one; rewrite: whether words and
        vector replace the stored ones, if nobody changed them meanwhile; version: of the stored point as it was judged;
        succeeds: archived points that it takes the place of.
    """

    id: UUID
    action: Action
    candidate: Candidate
    canonical: str = ""
    revival: int = 0
    status: Status = Status.ACTIVE
    rewrite: bool = False
    version: int = 0
    rule: str = ""
    succeeds: tuple[UUID, ...] = ()
    vec: Vector | None = field(default=None, compare=False)


def normalize(name: str) -> str:
    """The form in which names are compared: NFKC, case folded, white space collapsed; twice is the same as once."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(folded.split())


def statement_digest(text: str) -> str:
    """32 hexadecimal characters by which a statement is known again."""
    return digest("statement", normalize(text)).hex()[:32]
