"""What a bank's users care about, read in this process: lists, recall and contradictions, with what was said for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.clean import whole_limit
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Bank
from isotherm.pipeline.interest.candidates import Status, Vector
from isotherm.pipeline.interest.context import Block, Known, block
from isotherm.pipeline.interest.ranking import LEAST_SIMILARITY, Score, Span, Weights, score
from isotherm.pipeline.ports import Embedder
from isotherm.storage.postgres import interest_changes, interest_read, interest_themes
from isotherm.storage.postgres.interest_changes import LogEntry
from isotherm.storage.postgres.interest_read import ContradictionRow, Evidence, Hit, Interest
from isotherm.storage.postgres.interest_themes import ListedTheme
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import of_owner

VISIBLE = (Status.ACTIVE, Status.PENDING_REVIEW)
_PER_WANTED = 4
_MIN_QUOTA = 40
LIMIT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class RecalledInterest:
    """A point of an answer with the parts of its score."""

    interest: Interest
    score: Score


@dataclass(frozen=True, slots=True)
class InterestRecall:
    """The answer of a recall, best first. `degraded` names parts that were out of reach and left out."""

    items: tuple[RecalledInterest, ...] = ()
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a contradiction: the point, and the statement that contradicts, None when it is gone."""

    interest: Interest
    words: str
    evidence: Evidence | None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two points that cannot both hold.

    Args: current: the side that counts, None when nothing tells them apart; because: why it does.
    """

    id: UUID
    left: Side
    right: Side
    rule: str
    description: str
    current: Side | None
    because: str
    status: str
    found_at: datetime


class InterestMemory:
    """Reads of interests; the pool must be open. Nothing here writes.

    Args: embedder: makes the embedder for queries, None when there is none.
    """

    def __init__(self, embedder: Callable[[], Embedder | None]) -> None:
        self._embedder = embedder

    @of_owner
    def listed(self, bank: Bank, *, limit: int = 100, archived: bool = False) -> list[Interest]:
        """Points of a bank: those of most sessions first, then the most important and the newest.

        Args: limit: 1 to 1,000; archived: whether archived ones are among them.
        Raises: RejectedError for another limit; TransientError when PostgreSQL cannot be reached.
        """
        statuses = [*VISIBLE, Status.ARCHIVED] if archived else [*VISIBLE]
        with connection() as conn:
            return interest_read.listed(conn, bank, [s.value for s in statuses], whole_limit(limit, LIMIT_MAX))

    @of_owner
    def recall(
        self,
        bank: Bank,
        query: str,
        *,
        limit: int = 8,
        span: Span | None = None,
        now: datetime | None = None,
        weights: Weights | None = None,
    ) -> InterestRecall:
        """Points of a bank that have to do with a query, best first: by likeness, freshness, sessions and reliability.

        Points that wait for review are among them, marked by their status; an archived one stands for its successor.
        Args: span: only points for which something was said then; None is always.
        Raises: as `listed`.
        """
        whole_limit(limit, LIMIT_MAX)
        if not query.strip():
            return InterestRecall()
        terms = text.terms(query)
        vec, model, degraded = self._embedded(query)
        quota = max(_MIN_QUOTA, _PER_WANTED * limit)
        moment = now or datetime.now(UTC)
        after, before = (span or Span()).bounds(moment)
        with connection() as conn:
            hits = interest_read.candidates(
                conn, bank, terms=terms, vec=vec, model=model, quota=quota, after=after, before=before
            )
            points = interest_read.by_id(conn, bank, [hit.id for hit in hits])
        found = [_ranked(points[h.id], h, len(terms), moment, weights) for h in hits if h.id in points]
        near = [item for item in found if item.score.similarity >= LEAST_SIMILARITY]
        near.sort(key=lambda item: (-item.score.total, str(item.interest.id)))
        return InterestRecall(tuple(near[:limit]), degraded)

    def context(self, bank: Bank, query: str, *, budget: int = 400, limit: int = 8, span: Span | None = None) -> Block:
        """What `recall` finds, as a block of text for an agent's prompt.

        Args: budget: of tokens for the whole block.
        Raises: as `recall`.
        """
        now = datetime.now(UTC)
        items = self.recall(bank, query, limit=limit, span=span, now=now).items
        said = self.evidence(bank, [item.interest.id for item in items])
        return block([_known(item.interest, said[item.interest.id], now) for item in items], budget)

    @of_owner
    def evidence(self, bank: Bank, points: Sequence[UUID]) -> dict[UUID, list[Evidence]]:
        """What was said for points, oldest first, by point. Raises: TransientError."""
        with connection() as conn:
            found = interest_read.evidence(conn, bank, points=points)
        by_point: dict[UUID, list[Evidence]] = {point: [] for point in points}
        for one in found:
            by_point[one.point_id].append(one)
        return by_point

    @of_owner
    def contradictions(self, bank: Bank, *, limit: int = 100, resolved: bool = False) -> list[Contradiction]:
        """Contradictions of a bank, newest first, with both sides and what was said for each.

        Args: resolved: whether resolved ones are among them.
        Raises: as `listed`.
        """
        statuses = ["open", "resolved"] if resolved else ["open"]
        with connection() as conn:
            rows = interest_read.contradictions(conn, bank, statuses, whole_limit(limit, LIMIT_MAX))
            points = interest_read.by_id(conn, bank, sorted({i for row in rows for i in (row.left_id, row.right_id)}))
            said = interest_read.evidence(conn, bank, ids=sorted(_evidence_ids(rows)))
        by_id = {one.id: one for one in said}
        return [_contradiction(row, points, by_id) for row in rows if {row.left_id, row.right_id} <= points.keys()]

    @of_owner
    def contradiction(self, bank: Bank, wanted: UUID) -> Contradiction:
        """One contradiction, with both sides. Raises: RejectedError when the bank has none of this id; TransientError."""
        with connection() as conn:
            row = interest_read.contradiction(conn, bank, wanted)
            if row is None:
                raise RejectedError(f"contradiction {wanted}: not known here")
            points = interest_read.by_id(conn, bank, [row.left_id, row.right_id])
            said = interest_read.evidence(conn, bank, ids=sorted(_evidence_ids([row])))
        return _contradiction(row, points, {one.id: one for one in said})

    @of_owner
    def point(self, bank: Bank, wanted: UUID) -> Interest:
        """One point, archived ones too. Raises: RejectedError when the bank has none of this id; TransientError."""
        with connection() as conn:
            found = interest_read.by_id(conn, bank, [wanted])
        if wanted not in found:
            raise RejectedError(f"interest {wanted}: not known here")
        return found[wanted]

    @of_owner
    def themes(self, bank: Bank, *, limit: int = 50) -> list[ListedTheme]:
        """What a bank's points are about, grouped in the background; what was said most often first. Raises: as `listed`."""
        with connection() as conn:
            return interest_themes.listed(conn, bank, whole_limit(limit, LIMIT_MAX))

    @of_owner
    def log(self, bank: Bank, *, limit: int = 50, offset: int = 0, point: UUID | None = None) -> list[LogEntry]:
        """Changes of a bank, or of one point, newest first. Args: limit: 1 to 1,000; offset: how many to pass over.

        Raises: as `listed`.
        """
        if offset < 0:
            raise RejectedError("offset: 0 or more")
        with connection() as conn:
            return interest_changes.entries(conn, bank, limit=whole_limit(limit, LIMIT_MAX), offset=offset, point=point)

    def _embedded(self, query: str) -> tuple[Vector | None, str | None, tuple[str, ...]]:
        embedder = self._embedder()
        if embedder is None:
            return None, None, ()
        try:
            return embedder.embed([query])[0], embedder.model, ()
        except (TransientError, RejectedError):
            return None, None, ("vectors",)  # words still find much of it


def _ranked(point: Interest, hit: Hit, asked: int, now: datetime, weights: Weights | None) -> RecalledInterest:
    shared = hit.words / asked if asked else 0.0
    reliability = point.reliability / 2 if point.contested else point.reliability
    likeness = max(hit.cosine or 0.0, shared)
    return RecalledInterest(point, score(likeness, point.freshness(now), point.sessions, reliability, weights))


def _known(one: Interest, said: Sequence[Evidence], now: datetime) -> Known:
    marks = [one.freshness(now).value]
    marks += ["waits for review"] if one.status is Status.PENDING_REVIEW else []
    marks += ["no longer current"] if one.contested else []
    return Known(one.name, one.summary, marks, one.sessions, one.last_seen_at, said[-1].record_id if said else "")


def _evidence_ids(rows: Iterable[ContradictionRow]) -> set[int]:
    return {i for row in rows for i in (row.left_evidence, row.right_evidence) if i is not None}


def _contradiction(row: ContradictionRow, points: dict[UUID, Interest], said: dict[int, Evidence]) -> Contradiction:
    left = Side(points[row.left_id], row.left_words, said.get(row.left_evidence or 0))
    right = Side(points[row.right_id], row.right_words, said.get(row.right_evidence or 0))
    current = {"left": left, "right": right}.get(row.current_side or "")
    return Contradiction(
        row.id, left, right, row.rule, row.description, current, row.current_because, row.status, row.created_at
    )
