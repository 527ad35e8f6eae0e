"""Tiered memory over PostgreSQL and Redis: what programs read, and how writes keep the hot tail honest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain.graph_rank import Walked
from isotherm.pipeline.clean import whole_limit
from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.payloads import TailRefresh
from isotherm.pipeline.ports import Embedder, TextReranker
from isotherm.pipeline.tier import newest, spans
from isotherm.pipeline.tier.answers import Recall, Recalled
from isotherm.pipeline.tier.blobs import BlobStore
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.learned import of_records
from isotherm.pipeline.tier.messages import with_whole_pairs
from isotherm.pipeline.tier.ranking import Lexical, Scored, Touch, rank, select
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.pipeline.tier.spans import DateReader, Span
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.storage import cold, tier_learned
from isotherm.storage.postgres import namespaces, outbox, tier_candidates, tier_edit, tier_recall, tier_write
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.namespaces import Place, Scope
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection, reading, statement
from isotherm.storage.postgres.reach import of_operation, of_owner, reaching
from isotherm.storage.postgres.tier_vectors import Near
from isotherm.storage.postgres.tier_write import Patience, Placed, Remembered
from isotherm.storage.redis.announcements import Announced, Announcements
from isotherm.storage.redis.tail import MOST, Tail, TailRecord
from isotherm.storage.redis.touches import Touches
from isotherm.storage.tier_concluded import added
from isotherm.storage.tier_graph import Walk, walked
from isotherm.storage.tier_seen import Seen
from isotherm.storage.tier_seen import newest_first as put_newest_first

TAIL_REFRESH = "tail_refresh"  # builder of the message that drops tails which Redis could not be told about

# Candidates per leg for each record wanted, and at least so many.
_PER_WANTED = 4
_MIN_QUOTA = 40
_A_DAY = timedelta(days=1)
# Best records that a reranker sees.
_RERANKED = 50
_TIERS = (Tier.HOT, Tier.WARM, Tier.COLD)


Also = Callable[[Connection], list[Message]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """A write that is committed.

    Args: done: its outcome; messages: to publish; announced, rows: what `TierMemory.conclude` brings the hot tails up to
    date with. Until it has, readers of those tails ask the database.
    """

    done: Remembered
    messages: list[Message]
    announced: Announced
    rows: Sequence[Placed]


def _no_embedder() -> None:
    """Recall by words alone."""


def _no_reranker() -> None:
    """Recall in the order of its own scores."""


def refresh_tails(
    conn: Connection, trace_id: UUID, namespace_ids: list[int], *, delay: timedelta = timedelta(0)
) -> Message:
    """Write the message that drops hot tails, in the caller's transaction; `delay` as for `outbox.enqueue`."""
    payload = TailRefresh(trace_id=trace_id, namespace_ids=namespace_ids).model_dump(mode="json")
    return outbox.enqueue(conn, TAIL_REFRESH, payload, delay=delay)


class TierMemory:
    """Reads and writes of tiered memory in this process; the pool must be open.

    Args: tail, touches: the Redis side; patience: how long the background work of a write is retried; embedder: gives the
    model that embeds queries, None to go without vectors; blobs: where large bodies of cold records are; reranker: gives what orders
    the best of a recall once more, None to keep the order of scores; dates: reads the times that
    queries name, None to go by words.
    """

    def __init__(
        self,
        tail: Tail,
        touches: Touches,
        patience: Patience,
        embedder: Callable[[], Embedder | None] = _no_embedder,
        *,
        blobs: BlobStore,
        reranker: Callable[[], TextReranker | None] = _no_reranker,
        dates: DateReader | None = None,
    ) -> None:
        self._tail = tail
        self._announcements = Announcements(tail)
        self._blobs = blobs
        self._touches = touches
        self._patience = patience
        self._embedder = embedder
        self._reranker = reranker
        self._dates = dates

    @of_operation
    def remember(
        self,
        new: NewOperation,
        rows: Sequence[Placed],
        sent: Sequence[int] = (),
        also: Also | None = None,
        *,
        max_pinned: int | None = None,
    ) -> Stored:
        """Store records durably. The caller publishes the messages and calls `conclude` with it, in its own time.

        Args: also: written in the same transaction, unless the call repeats an earlier one; returns messages to publish;
        max_pinned: how many records of a namespace may be pinned, None for any number.
        Raises: RejectedError when the key was used with another body, the embedder's settings are incomplete, or too many
        records would be pinned;
        TransientError when PostgreSQL cannot be reached.
        """
        announcing = self._announcements.begin({p.place.namespace_id for p in rows})
        announced = Announced()
        messages: list[Message] = []
        try:
            try:
                embed = self._embedder() is not None
                written = tier_write.columns(rows)
            finally:
                announced = announcing()
            untold = announced.untold
            pinning = [] if max_pinned is None else sorted({p.place.namespace_id for p in rows if p.record.pinned})
            # One statement needs no transaction around it, and so two round trips less.
            with connection() if untold or also or pinning else statement() as conn:
                if pinning:
                    tier_edit.hold(conn, pinning)
                done = tier_write.remember(conn, new, written, self._patience, sent, embed=embed)
                if max_pinned is not None and pinning and done.written:
                    tier_edit.check_pins(conn, pinning, max_pinned)
                if done.new and untold:
                    messages.append(refresh_tails(conn, new.trace_id, [*untold], delay=self._patience.grace))
                if done.new and also:
                    messages += also(conn)
        except BaseException:
            self._announcements.end([(announced, {})])
            raise
        return Stored(done, [*done.messages, *messages], announced, rows)

    def conclude(self, writes: Sequence[Stored]) -> None:
        """Bring the hot tails up to date with writes, in their order and in one round trip."""
        self._announcements.end([(w.announced, added(w.announced.namespace_ids, w.done, w.rows)) for w in writes])

    def change(
        self, namespace_ids: Sequence[int], trace_id: UUID, write: Callable[[Connection], tuple[T, list[Message]]]
    ) -> tuple[T, list[Message]]:
        """Run a transaction that changes or removes records in place; readers of the hot tails see its outcome at once.

        Args: write: in the transaction; returns its outcome and messages. Returns: both, to publish after.
        Raises: what `write` raises; TransientError when PostgreSQL cannot be reached.
        """
        announced = self._announcements.begin(set(namespace_ids), alone=True)()
        untold = announced.untold
        try:
            with connection() as conn:
                done, messages = write(conn)
                if untold:
                    messages = [*messages, refresh_tails(conn, trace_id, [*untold], delay=self._patience.grace)]
        finally:
            self._announcements.end([(announced, {})])
        return done, messages

    @of_owner
    def recall(
        self,
        scope: Scope,
        query: str,
        *,
        budget: RecallBudget | None = None,
        weights: RecallWeights | None = None,
        now: datetime | None = None,
        touch: bool | Touch = Touch.RELEVANT,
        lexical: Lexical = Lexical.RARITY,
        newest_first: bool = True,
        graph: bool = False,
        learned: bool = False,
    ) -> Recall:
        """The records of a scope that matter most for a query, in chronological order.

        Writes nothing to the database and asks no chat model; an embedder that fails leaves its vectors out. A query counts
        as an access of what `touch` says, by itself of what it found; a blank query finds the newest and counts nothing.

        Args: newest_first: whether a statement comes before an older one that it renews, see `isotherm.pipeline.tier.newest`;
        graph: whether to walk from what was found, see `isotherm.storage.tier_graph`; the answer says what was read;
        learned: whether points of interests that match bring the records they stand on, see `isotherm.storage.tier_learned`;
        they come along in the answer.
        Raises: TransientError when PostgreSQL cannot be reached.
        """
        moment = now or datetime.now(UTC)
        normal = (budget or RecallBudget()).normalize()
        tiers = [tier for tier in _TIERS if not normal.is_off(tier)]
        if not tiers or not normal.total:
            return Recall()
        quota = max(_MIN_QUOTA, _PER_WANTED * normal.total)
        near, degraded = self._near(query)  # before a connection is taken
        points, away = tier_learned.asked(scope, query, near) if learned and query.strip() else ((), ())
        degraded += away
        # Names that an agent's knowledge has stand in other namespaces of its bank.
        with reaching(scope.whole_bank) if graph else nullcontext(), reading() as conn:
            quotas = tier_candidates.Quotas(quota, quota, quota)
            span = self._span(conn, scope, query, moment)
            found = tier_candidates.candidates(
                conn, scope, query, tiers, quotas, lexical, near, span, of_records(points)
            )
            ranked: Sequence[Scored] = rank(found.candidates, weights or RecallWeights(), moment, lexical)
            chosen = select(ranked, normal)
            seen = Seen(conn, scope, (s.candidate.key for s in chosen))
            told: Walked | None = None
            first, renewed = ranked, dict[int, int]()
            if graph and query.strip():
                walk = Walk(scope, query, weights or RecallWeights(), moment, tiers, seen.rows)
                ranked, told = walked(conn, walk, ranked)
            if newest_first and found.weights and lexical is Lexical.RARITY and newest.asks_for_the_present(query):
                ranked, renewed = put_newest_first(seen, query, ranked, found.weights)
            ranked, away = self._reranked(query, ranked, seen)
            degraded += away
            if ranked is not first:
                chosen = select(ranked, normal)
            rows = seen.rows([s.candidate.key for s in chosen])
        ids = {s.candidate.key: s.candidate.id for s in ranked} if renewed else {}
        mode = Touch.of(touch)
        wanted = [s.candidate.key for s in chosen if s.candidate.key in rows and mode.counts(s.parts)]
        counting = self._counting(wanted if query.strip() else ())
        try:
            items = tuple(
                Recalled(row.record(moment), s.parts, s.candidate.legs, ids.get(renewed.get(key, -1)), key)
                for key, s in ((s.candidate.key, s) for s in chosen)
                if (row := rows.get(key)) is not None
            )
        finally:
            degraded += counting()
        return Recall(items, degraded, found.truncated, told, points)

    def _span(self, conn: Connection, scope: Scope, query: str, now: datetime) -> Span | None:
        """The time that a query asks about. Where it does not say which May, it is the last one of this memory."""
        if self._dates is None or not spans.names_a_time(query):
            return None
        newest_at = tier_recall.newest_at(conn, scope)
        return None if newest_at is None else spans.span_of(query, min(now, newest_at + _A_DAY), self._dates)

    def _reranked(self, query: str, ranked: Sequence[Scored], seen: Seen) -> tuple[Sequence[Scored], tuple[str, ...]]:
        """The best in the order of the reranker, those it leaves out behind; as they were when it is out of reach."""
        try:
            reranker = self._reranker()
            best = (
                [] if reranker is None or not query.strip() else [s for s in ranked[:_RERANKED] if s.parts.is_relevant]
            )
            if reranker is None or not best:
                return ranked, ()
            rows = seen.rows([item.candidate.key for item in best])
            there = [item for item in best if item.candidate.key in rows]
            rated = reranker.rerank(query, [rows[item.candidate.key].text for item in there])
        except Exception:  # noqa: BLE001 - whatever befell a model, the order before it stands
            return ranked, ("rerank",)
        first = [there[at]._replace(parts=replace(there[at].parts, relevance=score)) for at, score in rated]
        taken = {item.candidate.key for item in first}
        return [*first, *(item for item in ranked if item.candidate.key not in taken)], ()

    @of_owner
    def tail(self, namespace: Namespace, limit: int = MOST) -> list[TailRecord]:
        """The newest records of a namespace with their original text, oldest first; one round trip to Redis as a rule.

        Calls of tools and their answers come whole or not at all, so that a chat model takes what is replayed.

        Args: limit: 1 to 200; how many are read.
        Raises: RejectedError for another limit; TransientError when PostgreSQL is needed and cannot be reached.
        """
        whole_limit(limit, MOST)
        place = namespaces.find(namespace)
        if place is None:
            return []
        return with_whole_pairs(self._tail_of(place, namespace, limit))

    def _tail_of(self, place: Place, namespace: Namespace, limit: int) -> list[TailRecord]:
        try:
            hit, generation = self._tail.read(place.namespace_id, limit)
        except UnavailableError:
            return self._newest(namespace, limit)
        if hit is not None and all(record.content is not None for record in hit):
            return hit
        newest = self._newest(namespace, MOST)
        if hit is None and namespaces.find(namespace, again=True) == place:
            self._offer(place.namespace_id, generation, newest)
        return newest[-limit:]

    @of_owner
    def get(self, namespace: Namespace, record_id: str, *, now: datetime | None = None) -> Record:
        """One record by its id. Raises RejectedError when the namespace has no such record."""
        with connection() as conn:
            found = tier_recall.by_id(conn, namespace, [record_id], now or datetime.now(UTC))
        if record_id not in found:
            raise RejectedError("no such record in this namespace")
        return found[record_id][1]

    @of_owner
    def original(self, namespace: Namespace, record_id: str) -> str | None:
        """The whole text of a record at any tier, None when what is stored of it is missing or damaged.

        Raises: RejectedError when the namespace has no such record; TransientError when a server cannot be reached.
        """
        with connection() as conn:
            found = tier_recall.stored(conn, namespace, record_id)
        if found is None:
            raise RejectedError("no such record in this namespace")
        return self._whole(*found)

    def _near(self, query: str) -> tuple[Near | None, tuple[str, ...]]:
        """The query as a vector, and what the answer must say when there is none although there should be."""
        if not text.terms(query):
            return None, ()
        try:
            embedder = self._embedder()
            if embedder is None:
                return None, ()
            vector = embedder.embed([query])[0]
        except Exception:  # noqa: BLE001 - whatever befell a model, words still find
            return None, ("vectors",)
        return Near(embedder.model, vector), ()

    def _newest(self, namespace: Namespace, limit: int) -> list[TailRecord]:
        with connection() as conn:
            rows = tier_recall.newest(conn, namespace, limit)
        return [
            TailRecord(r.id, r.key, r.role, r.created_at, self._replayed(r.content, r.stored), r.metadata) for r in rows
        ]

    def _replayed(self, content: str | None, stored: StoredBody) -> str | None:
        """The text of a record, None as well while the blob store is away: the others of the tail are worth having."""
        try:
            return self._whole(content, stored)
        except TransientError:
            return None

    def _whole(self, content: str | None, stored: StoredBody) -> str | None:
        """The text of a record wherever it is, None when what is stored of it is missing or damaged."""
        return content if content is not None else cold.text(stored, self._blobs)

    def _offer(self, namespace_id: int, generation: str, newest: Sequence[TailRecord]) -> None:
        try:
            self._tail.offer(namespace_id, generation, newest)
        except UnavailableError:
            return  # the answer stands; the next reader fills the tail

    def _counting(self, keys: Sequence[int]) -> Callable[[], tuple[str, ...]]:
        """Count accesses; what it returns has to be called, and says whether that failed."""
        answered = self._touches.begin(keys)

        def failed() -> tuple[str, ...]:
            try:
                answered()
            except UnavailableError:
                return ("touches",)
            return ()

        return failed
