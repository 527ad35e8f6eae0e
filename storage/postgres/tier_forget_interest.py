"""Forgetting what was made of what was said: interests, their evidence, contradictions and the log of changes.

An interest that only the scope spoke for is gone, and so is one whose other messages are gone. One that others speak for too
stays, told by what they said, since its words may have come from the scope. A contradiction of such an interest goes, since it quotes words without saying whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.identity import Bank
from isotherm.pipeline.interest.candidates import normalize
from isotherm.pipeline.interest.freshness import reliability
from isotherm.pipeline.stages import EXTRACT
from isotherm.storage.postgres import interest_read, outbox, steps, tier_forget
from isotherm.storage.postgres.interest_history import terms_of
from isotherm.storage.postgres.interest_steps import ORDER
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.postgres.tier_forget import Erasure
from isotherm.storage.postgres.tier_write import Patience

_SUMMARY_CHARS = 400
_NAME_CHARS = 80

# One run writes a bank's interests at a time; so does an erasure.
_HOLD = "SELECT 1 FROM interest_banks WHERE bank_id = ANY(%(banks)s) ORDER BY bank_id FOR UPDATE"

_OF_BANKS = {
    "contradictions": "DELETE FROM interest_contradictions WHERE bank_id = ANY(%(banks)s)",
    "interest_edges": "DELETE FROM interest_edges WHERE bank_id = ANY(%(banks)s)",
    "log_entries": "DELETE FROM interest_log WHERE bank_id = ANY(%(banks)s)",
    "evidence": "DELETE FROM interest_evidence WHERE bank_id = ANY(%(banks)s)",
    "interests": "DELETE FROM interest_points WHERE bank_id = ANY(%(banks)s)",
    " ": "DELETE FROM interest_mirror WHERE bank_id = ANY(%(banks)s)",
    "": "DELETE FROM interest_banks WHERE bank_id = ANY(%(banks)s)",
}

# Copies of what models said are made again when they are needed. What was joined to a point may be told in the scope's words.
_COPIES = (
    "UPDATE banks SET erasures = erasures + 1 WHERE id = ANY(%(banks)s)",
    "UPDATE interest_points SET placed_at = NULL WHERE bank_id = ANY(%(banks)s) AND placed_at IS NOT NULL",
    *(
        f"DELETE FROM {table} WHERE bank_id = ANY(%(banks)s)"
        for table in ("interest_answers", "interest_vectors", "interest_themes")
    ),
)
_MERGES = "DELETE FROM interest_merges WHERE bank_id = ANY(%(banks)s) AND (%(all)s OR point_id = ANY(%(points)s))"

_EVIDENCE = "bank_id = ANY(%(banks)s) AND (namespace_id = ANY(%(namespaces)s) OR record_key = ANY(%(keys)s))"
_POINTS = f"SELECT DISTINCT point_id FROM interest_evidence WHERE {_EVIDENCE} ORDER BY point_id"
_CONTRADICTIONS = "DELETE FROM interest_contradictions WHERE (left_id = ANY(%(points)s) OR right_id = ANY(%(points)s))"
_DROP_EVIDENCE = f"DELETE FROM interest_evidence WHERE {_EVIDENCE}"
_DROP_POINTS = """
DELETE FROM interest_points AS p WHERE p.id = ANY(%(points)s)
  AND NOT EXISTS (SELECT 1 FROM interest_evidence AS e WHERE e.point_id = p.id) RETURNING p.id"""

_REMAINING = """
SELECT p.id, p.name, p.canonical, b.tenant, b.agent, (SELECT count(DISTINCT e.namespace_id) FROM interest_evidence AS e WHERE e.point_id = p.id),
       (SELECT min(e.event_time) FROM interest_evidence AS e WHERE e.point_id = p.id),
       (SELECT max(e.event_time) FROM interest_evidence AS e WHERE e.point_id = p.id)
FROM interest_points AS p JOIN banks AS b ON b.id = p.bank_id WHERE p.id = ANY(%(points)s) ORDER BY p.id FOR UPDATE OF p"""

# The vector is made again from the words by the next run that has to do with the point.
_TELL = """
UPDATE interest_points SET name = %(name)s, canonical = %(canonical)s, revival = CASE WHEN canonical = %(canonical)s THEN revival
        ELSE (SELECT coalesce(max(o.revival) + 1, 0) FROM interest_points AS o
              WHERE o.bank_id = interest_points.bank_id AND o.canonical = %(canonical)s) END,
    summary = %(summary)s, keywords = '{}', terms = %(terms)s, embedding = NULL,
    embedding_model = NULL, embedding_dim = NULL, seen_count = %(sessions)s, reliability = %(reliability)s,
    first_seen_at = %(first)s, last_seen_at = %(last)s, version = version + 1, updated_at = now()
WHERE id = %(id)s"""
_CHANGED = "UPDATE interest_banks SET version = version + 1 WHERE bank_id = ANY(%(banks)s)"

# Answers of a run hold candidates of its session, and interests of its bank, in words. Those of ended runs go, and an open
# run begins again without what is gone.
_ANSWERS = """
UPDATE operation_steps AS s SET answer = NULL FROM operations AS o
WHERE o.id = s.operation_id AND o.bank_id = ANY(%(banks)s) AND o.finished_at IS NOT NULL AND s.stage = ANY(%(stages)s)
  AND s.answer IS NOT NULL"""
_OPEN_RUNS = """
SELECT o.id, o.trace_id, o.namespace_id FROM operations AS o
WHERE o.bank_id = ANY(%(banks)s) AND o.finished_at IS NULL AND o.namespace_id IS NOT NULL
  AND EXISTS (SELECT 1 FROM operation_steps AS s WHERE s.operation_id = o.id AND s.stage = ANY(%(stages)s))
ORDER BY o.id FOR NO KEY UPDATE"""
_RESTART = """
WITH gone AS (
    DELETE FROM operation_steps WHERE operation_id = %(operation)s AND stage = ANY(%(stages)s) RETURNING id
)
DELETE FROM outbox AS m USING gone WHERE m.step_id = gone.id"""


def of_scope(conn: Connection, erasure: Erasure, patience: Patience) -> list[Message]:
    """Erase what was made of the scope, all at once, so that no reader sees half of it; returns messages to publish."""
    if erasure.whole_banks:
        conn.execute(_HOLD, erasure.scope)
        _drop_copies(conn, erasure.bank_ids)
        conn.execute(_MERGES, {**erasure.scope, "all": True, "points": []})
        counts = {kind: conn.execute(sql, erasure.scope).rowcount for kind, sql in _OF_BANKS.items()}
        tier_forget.count(conn, erasure, {kind: n for kind, n in counts.items() if kind.strip()})
        return []
    tier_forget.count(conn, erasure, erase(conn, erasure.bank_ids, namespace_ids=erasure.scope["namespaces"]))
    return restart_runs(conn, erasure.bank_ids, patience)


def erase(
    conn: Connection, bank_ids: Sequence[int], *, namespace_ids: Sequence[int] = (), keys: Sequence[int] = ()
) -> Mapping[str, int]:
    """Erase what namespaces or records said of interests; returns counts by kind."""
    values: dict[str, Any] = {"banks": list(bank_ids), "namespaces": list(namespace_ids), "keys": list(keys)}
    conn.execute(_HOLD, values)
    _drop_copies(conn, bank_ids)
    points = [row[0] for row in conn.execute(_POINTS, values).fetchall()]
    if not points:
        return {}
    values["points"] = points
    conn.execute(_MERGES, {**values, "all": False})
    contradictions = conn.execute(_CONTRADICTIONS, values).rowcount
    evidence = conn.execute(_DROP_EVIDENCE, values).rowcount
    gone = {row[0] for row in conn.execute(_DROP_POINTS, values).fetchall()}
    told = [_tell(conn, row) for row in conn.execute(_REMAINING, values).fetchall()]
    silent = [point for point, is_told in told if not is_told]
    conn.execute("DELETE FROM interest_points WHERE id = ANY(%s)", (silent,))
    conn.execute(_CHANGED, values)
    return {
        "contradictions": contradictions,
        "evidence": evidence,
        "interests": len(gone) + len(silent),
        "interests_retold": len(told) - len(silent),
    }


def erase_points(conn: Connection, bank_ids: Sequence[int], points: Sequence[UUID]) -> dict[str, int]:
    """Erase interests with what was said for them, their history and what contradicts them; returns counts by kind."""
    values: dict[str, Any] = {"banks": list(bank_ids), "points": list(points)}
    conn.execute(_HOLD, values)
    _drop_copies(conn, bank_ids)
    evidence = conn.execute(
        "DELETE FROM interest_evidence WHERE bank_id = ANY(%(banks)s) AND point_id = ANY(%(points)s)", values
    ).rowcount
    contradictions = conn.execute(f"{_CONTRADICTIONS} AND bank_id = ANY(%(banks)s)", values).rowcount
    gone = conn.execute(
        "DELETE FROM interest_points WHERE bank_id = ANY(%(banks)s) AND id = ANY(%(points)s)", values
    ).rowcount
    conn.execute(_CHANGED, values)
    return {"interests": gone, "evidence": evidence, "contradictions": contradictions}


def _drop_copies(conn: Connection, bank_ids: Sequence[int]) -> None:
    for sql in _COPIES:
        conn.execute(sql, {"banks": list(bank_ids)})


def _tell(conn: Connection, row: Sequence[Any]) -> tuple[UUID, bool]:
    """Tell a point by the newest thing that is still said for it; False when nothing is that can be read."""
    point_id, name, canonical, tenant, agent, sessions, first, last = row
    said = interest_read.evidence(conn, Bank(tenant, agent), points=[point_id])
    quotes = [one.quote for one in said if one.quote]
    if not quotes:
        return point_id, False
    summary = quotes[-1][:_SUMMARY_CHARS]
    spoken = set(text.terms(" ".join(quotes)))
    if not set(text.terms(name)) <= spoken:
        name = summary[:_NAME_CHARS]
    if not set(text.terms(canonical)) <= spoken:
        canonical = normalize(name)
    values = {"id": point_id, "name": name, "canonical": canonical, "summary": summary, "sessions": sessions,
              "terms": terms_of(name, summary, ()), "reliability": reliability(int(sessions)), "first": first,
              "last": last}  # fmt: skip
    conn.execute(_TELL, values)
    return point_id, True


def restart_runs(conn: Connection, bank_ids: Sequence[int], patience: Patience) -> list[Message]:
    """Take what runs over banks have kept of their words; an open one begins again. Returns messages to publish."""
    values: dict[str, Any] = {"banks": list(bank_ids), "stages": list(ORDER)}
    messages = []
    for operation_id, trace_id, namespace_id in conn.execute(_OPEN_RUNS, values).fetchall():
        conn.execute(_RESTART, {**values, "operation": operation_id})
        first = NewStep(EXTRACT, {"namespace_id": namespace_id})
        [step_id] = steps.add(
            conn, operation_id, [first], retry_for=patience.retry_for, nudge_after=patience.nudge_after
        )
        messages.append(
            outbox.announce(conn, EXTRACT, step_id, operation_id=operation_id, trace_id=trace_id, delay=patience.grace)
        )
    conn.execute(_ANSWERS, values)
    return messages
