"""Carries out the plan of a run: points, evidence, edges, contradictions and the log, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pgvector import HalfVector
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from isotherm.pipeline.interest.candidates import Action, FinalPoint
from isotherm.pipeline.interest.freshness import reliability
from isotherm.pipeline.interest.v1_3 import Edge, Plan, Standing, Tension, current_side
from isotherm.storage.postgres import interest_links
from isotherm.storage.postgres.interest_history import terms_of
from isotherm.storage.postgres.pool import Connection

_INSERT = """
INSERT INTO interest_points (
    id, bank_id, name, canonical, revival, summary, keywords, kind, importance, confidence, reliability, status, subjective,
    wiki_worthy, ttl_days, first_seen_at, last_seen_at, seen_count, terms, embedding, embedding_model, embedding_dim)
VALUES (
    %(id)s, %(bank)s, %(name)s, %(canonical)s, %(revival)s, %(summary)s, %(keywords)s, %(kind)s, %(importance)s,
    %(confidence)s, %(reliability)s, %(status)s, %(subjective)s, %(worthy)s, %(ttl_days)s, %(first)s, %(last)s, %(sessions)s,
    %(terms)s, %(vec)s, %(model)s, %(dimension)s)"""

# Only the words that were judged are replaced: whoever changed the point since then is right.
_REWRITE = """
UPDATE interest_points SET
    name = %(name)s, summary = %(summary)s, keywords = %(keywords)s, confidence = %(confidence)s,
    importance = greatest(importance, %(importance)s), terms = %(terms)s,
    embedding = %(vec)s, embedding_model = %(model)s, embedding_dim = %(dimension)s, placed_at = NULL, version = version + 1, updated_at = now()
WHERE id = %(id)s AND bank_id = %(bank)s AND version = %(version)s AND status <> 'archived'"""

_CONFIRM = """
UPDATE interest_points SET status = 'active', version = version + 1, updated_at = now()
WHERE id = %(id)s AND bank_id = %(bank)s AND status = 'pending_review'"""

_EVIDENCE = """
INSERT INTO interest_evidence (
    point_id, bank_id, namespace_id, record_key, record_id, turn, start_char, end_char, statement, event_time, operation_id)
SELECT %(point)s, %(bank)s, %(namespace)s, %(key)s, %(record)s, %(turn)s, %(start)s, %(end)s, decode(%(statement)s, 'hex'),
       %(at)s, %(operation)s
WHERE EXISTS (SELECT 1 FROM interest_points WHERE id = %(point)s AND bank_id = %(bank)s)
ON CONFLICT (point_id, record_key, statement) DO NOTHING RETURNING id"""

_COUNTED = """
SELECT p.id, count(DISTINCT e.namespace_id)::int, min(e.event_time), max(e.event_time)
FROM interest_points AS p JOIN interest_evidence AS e ON e.point_id = p.id
WHERE p.id = ANY(%(ids)s) AND p.bank_id = %(bank)s GROUP BY p.id
HAVING (p.seen_count, p.first_seen_at, p.last_seen_at)
       IS DISTINCT FROM (count(DISTINCT e.namespace_id)::int, min(e.event_time), max(e.event_time)) ORDER BY p.id"""

_SEEN = """
UPDATE interest_points SET
    seen_count = %(sessions)s, reliability = %(reliability)s, first_seen_at = %(first)s, last_seen_at = %(last)s,
    look_at = now(), version = version + (CASE WHEN seen_count = 0 THEN 0 ELSE 1 END), updated_at = now()
WHERE id = %(id)s"""

# An archived point keeps its words and evidence; without a vector no likeness finds it any more.
_ARCHIVE = """
UPDATE interest_points SET
    status = 'archived', embedding = NULL, embedding_model = NULL, embedding_dim = NULL, version = version + 1,
    updated_at = now()
WHERE id = ANY(%(ids)s) AND bank_id = %(bank)s AND status <> 'archived' RETURNING id"""

_LATEST = (
    "(SELECT e.id FROM interest_evidence AS e WHERE e.point_id = {} ORDER BY e.event_time DESC, e.id DESC LIMIT 1)"
)

_TENSION = f"""
INSERT INTO interest_contradictions (
    id, bank_id, left_id, right_id, rule, left_words, right_words, description, left_evidence, right_evidence,
    current_because, operation_id)
SELECT %(id)s, %(bank)s, %(left)s, %(right)s, %(rule)s, %(left_words)s, %(right_words)s, %(description)s,
       {_LATEST.format("%(left)s")}, {_LATEST.format("%(right)s")}, 'undecided', %(operation)s
WHERE 2 = (SELECT count(*) FROM interest_points WHERE id IN (%(left)s, %(right)s) AND bank_id = %(bank)s)
ON CONFLICT (left_id, right_id) DO NOTHING"""

_STANDINGS = """
SELECT c.id, c.current_side, c.current_because, l.last_seen_at, l.reliability, l.confidence,
       r.last_seen_at, r.reliability, r.confidence
FROM interest_contradictions AS c
JOIN interest_points AS l ON l.id = c.left_id JOIN interest_points AS r ON r.id = c.right_id
WHERE c.bank_id = %(bank)s AND c.status = 'open' AND (c.left_id = ANY(%(ids)s) OR c.right_id = ANY(%(ids)s))"""

_STAND = "UPDATE interest_contradictions SET current_side = %(side)s, current_because = %(why)s WHERE id = %(id)s"

_LOG = """
INSERT INTO interest_log (bank_id, point_id, operation_id, action, detail)
VALUES (%(bank)s, %(point)s, %(operation)s, %(action)s, %(detail)s) RETURNING id"""

# What a point's words were before it got others, and what was joined to it: enough to take it out again.
_BEFORE = """
SELECT jsonb_build_object('name', name, 'summary', summary, 'keywords', keywords, 'confidence', confidence,
                          'importance', importance) FROM interest_points WHERE id = %(id)s AND bank_id = %(bank)s"""
_MERGE = """
INSERT INTO interest_merges (log_id, bank_id, point_id, words, before, evidence)
VALUES (%(log)s, %(bank)s, %(point)s, %(words)s, %(before)s, %(evidence)s)"""


@dataclass(frozen=True, slots=True)
class Written:
    """What a plan changed: new points, points with new words or evidence, archived ones, new contradictions and edges."""

    created: int = 0
    updated: int = 0
    archived: int = 0
    contradictions: int = 0
    edges: int = 0

    @property
    def changed(self) -> bool:
        """Whether anything is different from before."""
        return any((self.created, self.updated, self.archived, self.contradictions, self.edges))


class PlanWriter:
    """Writes one plan of one run.

    Args: conn: in the transaction of the run's last step, the bank's turn taken; model: stamp of the plan's vectors;
        pending: points of the plan that wait for review.
    """

    def __init__(
        self, conn: Connection, bank_id: int, operation_id: UUID, *, model: str | None, pending: Collection[UUID] = ()
    ) -> None:
        self._conn = conn
        self._ids: dict[str, Any] = {"bank": bank_id, "operation": operation_id}
        self._model = model
        self._pending = frozenset(pending)
        self._before: dict[UUID, Any] = {}
        self._said: dict[UUID, list[int]] = {}

    def write(self, plan: Plan) -> Written:
        """Write all of it; a plan that was written before changes nothing."""
        new = [p for p in plan.points if p.action is Action.CREATE]
        more = [p for p in plan.points if p.action is Action.UPDATE]
        with self._conn.cursor() as cursor:
            cursor.executemany(_INSERT, [{**self._words(point), **self._birth(point)} for point in new])
        reworded = {p.id for p in more if self._change(p)}
        changed = [*new, *(p for p in more if p.rewrite and p.id in reworded)]
        counted = self._evidence(plan.points)
        archived = self._archive(plan.archived)
        tensions = [t for t in plan.tensions if self._tension(t)]
        dropped = interest_links.drop(self._conn, self._ids["bank"], [p.id for p in changed])
        wanted = [*self._alike(changed), *plan.edges, *map(_opposed, plan.tensions)]
        before = {(e.source, e.target, e.kind): e.weight for e in dropped}
        edges = interest_links.add(self._conn, self._ids["bank"], wanted)
        edges = [e for e in edges if before.pop((e.source, e.target, e.kind), None) != e.weight]
        gone = [e for e in dropped if (e.source, e.target, e.kind) in before]
        stand(self._conn, self._ids["bank"], [p.id for p in plan.points])
        grown = {p.id for p in more if p.id in counted or p.id in reworded}
        self._log([*new, *(p for p in more if p.id in grown)], archived, tensions, edges, gone)
        return Written(len(new), len(grown), len(archived), len(tensions), len(edges))

    def _words(self, point: FinalPoint) -> dict[str, Any]:
        words = point.candidate
        return {
            **self._ids,
            "id": point.id,
            "name": words.topic,
            "summary": words.reason,
            "keywords": list(words.tags),
            "confidence": _bounded(words.confidence),
            "importance": _bounded(words.importance),
            "terms": terms_of(words.topic, words.reason, words.tags),
            "vec": None if point.vec is None else HalfVector(point.vec),
            "model": None if point.vec is None else self._model,
            "dimension": None if point.vec is None else len(point.vec),
            "version": point.version,
        }

    def _birth(self, point: FinalPoint) -> dict[str, Any]:
        """What a new point is born with. It was said where its sources say, and no row has to be written twice for that."""
        words = point.candidate
        sessions = len({source.namespace_id for source in words.sources})
        said = [source.at for source in words.sources]
        return {
            "canonical": point.canonical,
            "revival": point.revival,
            "kind": words.kind.value,
            "status": point.status.value,
            "subjective": words.subjective,
            "worthy": words.wiki_worthy,
            "first": min(said, default=words.event_time),
            "last": max(said, default=words.event_time),
            "sessions": sessions,
            "reliability": reliability(sessions) if sessions else 0,
            "ttl_days": words.ttl_days,
        }

    def _change(self, point: FinalPoint) -> bool:
        changed = False
        if point.rewrite:
            row = self._conn.execute(_BEFORE, {**self._ids, "id": point.id}).fetchone()
            changed = bool(self._conn.execute(_REWRITE, self._words(point)).rowcount)
            if changed and row:
                self._before[point.id] = row[0]
        if point.id in self._pending and point.status.value == "active":
            changed |= bool(self._conn.execute(_CONFIRM, {**self._ids, "id": point.id}).rowcount)
        return changed

    def _evidence(self, points: Sequence[FinalPoint]) -> set[UUID]:
        """Add what was said; returns the points that were said once more."""
        said = [(point.id, source) for point in points for source in point.candidate.sources]
        values = [
            {
                **self._ids, "point": point, "namespace": source.namespace_id, "key": source.record_key,
                "record": source.record_id, "turn": source.turn, "start": source.start, "end": source.end,
                "statement": source.statement, "at": source.at,
            }
            for point, source in said
        ]  # fmt: skip
        for (point, _), row in zip(said, _each(self._conn, _EVIDENCE, values), strict=True):
            if row is not None:
                self._said.setdefault(point, []).append(int(row[0]))
        count(self._conn, self._ids["bank"], list(self._said))
        return set(self._said)

    def _archive(self, ids: Sequence[UUID]) -> list[UUID]:
        return [row[0] for row in self._conn.execute(_ARCHIVE, {**self._ids, "ids": list(ids)}).fetchall()]

    def _alike(self, changed: Sequence[FinalPoint]) -> list[Edge]:
        """Points with a new vector and what is near them in the bank, those that were written before included."""
        vectors = {p.id: p.vec for p in changed if p.vec is not None}
        if not vectors or self._model is None:
            return []
        return interest_links.alike(self._conn, self._ids["bank"], vectors, self._model)

    def _tension(self, found: Tension) -> bool:
        values = {
            **self._ids, "id": found.id, "left": found.left, "right": found.right, "rule": found.rule,
            "left_words": found.words[0], "right_words": found.words[1], "description": found.description,
        }  # fmt: skip
        return bool(self._conn.execute(_TENSION, values).rowcount)

    def _log(
        self,
        points: Sequence[FinalPoint],
        archived: Sequence[UUID],
        tensions: Sequence[Tension],
        edges: Sequence[Edge],
        gone_edges: Sequence[Edge],
    ) -> None:
        """One entry for each change, each edge with the first entry about one of its ends."""
        entries: list[tuple[UUID, str, dict[str, Any]]] = [
            (p.id, p.action.value, {"rule": p.rule, "statements": len(p.candidate.sources), "status": p.status.value})
            for p in points
        ]
        entries += [(gone, "archive", {}) for gone in archived]
        entries += [(t.left, "contradict", {"with": str(t.right), "rule": t.rule}) for t in tensions]
        shown_edges = _Shown([*((e, "add") for e in edges), *((e, "remove") for e in gone_edges)])
        merged = {p.id: p for p in points if p.action is Action.UPDATE}
        values = []
        for point, action, detail in entries:
            mine = shown_edges.of(point)
            shown = {**detail, "edges": mine} if mine else detail
            values.append({**self._ids, "point": point, "action": action, "detail": Jsonb(shown)})
        for (point, action, _), row in zip(entries, _each(self._conn, _LOG, values), strict=True):
            if action == "update" and point in merged and row is not None:
                self._merge(int(row[0]), merged[point])

    def _merge(self, entry: int, point: FinalPoint) -> None:
        words = point.candidate
        said = {
            "name": words.topic, "summary": words.reason, "keywords": list(words.tags), "kind": words.kind.value,
            "confidence": _bounded(words.confidence), "importance": _bounded(words.importance),
            "subjective": words.subjective,
        }  # fmt: skip
        before = self._before.get(point.id)
        values = {"log": entry, "point": point.id, "words": Jsonb(said), "evidence": self._said.get(point.id, [])}
        self._conn.execute(_MERGE, {**self._ids, **values, "before": None if before is None else Jsonb(before)})


def log(
    conn: Connection, point: UUID, action: str, detail: dict[str, Any], *, bank: int, operation: UUID | None
) -> int:
    """Add an entry to the log of changes; returns its id. Args: detail: ids, rules and counts, no text."""
    values = {"bank": bank, "operation": operation, "point": point, "action": action, "detail": Jsonb(detail)}
    row = conn.execute(_LOG, values).fetchone()
    return int(row[0]) if row else 0


def count(conn: Connection, bank_id: int, ids: Sequence[UUID]) -> None:
    """Count again in how many sessions points were said, and when."""
    rows = conn.execute(_COUNTED, {"bank": bank_id, "ids": list(ids)}).fetchall()
    values = [
        {"id": point_id, "sessions": sessions, "first": first, "last": last, "reliability": reliability(sessions)}
        for point_id, sessions, first, last in rows
    ]
    with conn.cursor() as cursor:
        cursor.executemany(_SEEN, values)


def _each(conn: Connection, sql: str, values: Sequence[dict[str, Any]]) -> list[TupleRow | None]:
    """Run a statement for each of many values, in one round trip; returns the row that each gave, None for none."""
    if not values:
        return []
    with conn.cursor() as cursor:
        cursor.executemany(sql, values, returning=True)
        found = [cursor.fetchone()]
        while cursor.nextset():
            found.append(cursor.fetchone())
        return found


def stand(conn: Connection, bank_id: int, ids: Sequence[UUID]) -> None:
    """Say again which side counts of every open contradiction that one of the points is part of."""
    for row in conn.execute(_STANDINGS, {"bank": bank_id, "ids": list(ids)}).fetchall():
        contradiction, known_side, known_why, *standing = row
        side, why = current_side(Standing(*standing[:3]), Standing(*standing[3:]))
        if (side or None, why) != (known_side, known_why):
            conn.execute(_STAND, {"id": contradiction, "side": side or None, "why": why})


class _Shown:
    """Changed edges, each told once, with the first of its ends that is asked for."""

    def __init__(self, edges: Sequence[tuple[Edge, str]]) -> None:
        self._edges = edges
        self._by_end: dict[UUID, list[int]] = {}
        self._told: set[int] = set()
        for place, (edge, _) in enumerate(edges):
            for end in (edge.source, edge.target):
                self._by_end.setdefault(end, []).append(place)

    def of(self, point: UUID) -> list[dict[str, Any]]:
        """Those of a point that were not told yet, as JSON."""
        mine = [place for place in self._by_end.get(point, ()) if place not in self._told]
        self._told.update(mine)
        return [_edge_json(*self._edges[place]) for place in mine]


def _edge_json(edge: Edge, action: str) -> dict[str, Any]:
    return {
        "action": action,
        "source": str(edge.source),
        "target": str(edge.target),
        "kind": edge.kind,
        "weight": edge.weight,
    }


def _opposed(tension: Tension) -> Edge:
    return Edge(tension.left, tension.right, "contradicts")


def _bounded(value: float) -> float:
    return min(1.0, max(0.0, value))
