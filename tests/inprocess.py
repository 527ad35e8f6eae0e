"""Stages run in the test's own process, and what must hold of the database whatever ran."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from isotherm import storage
from isotherm.pipeline import text
from isotherm.pipeline.tier.records import searchable_text
from isotherm.storage import cold as stored_cold
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import (
    brain,
    brain_import,
    brain_mention,
    cold,
    embed,
    forget,
    interest,
    interest_decide,
    interest_tend,
    producers,
    tier,
    tier_pass,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from isotherm.pipeline.identity import Namespace
    from isotherm.pipeline.tier.policy import Policy

_READY = """
SELECT s.id, s.operation_id, o.trace_id, s.stage FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE s.state = 'pending' AND (%(operation)s::uuid IS NULL OR s.operation_id = %(operation)s)
ORDER BY s.id LIMIT 1"""

STAGES = {task.name: task for task in (tier.index, tier_pass.plan, tier_pass.migrate, tier.restore, tier_pass.report, cold.summarize,
                                       cold.archive, embed.embed, forget.forget)}  # fmt: skip
STAGES |= {task.name: task for task in (brain.embed, brain.mirror, brain_import.import_file, brain_import.report,
                                        brain_mention.mention)}  # fmt: skip
STAGES |= {task.name: task for task in (interest.extract, interest.fold, interest.judge, interest_decide.cluster,
                                        interest_decide.adjudicate, interest_decide.persist,
                                        interest_tend.tend)}  # fmt: skip


def drive(operation_id: UUID | None = None) -> list[str]:
    """Run steps one after the other, in the order they were written, until none is pending; returns the stages that ran."""
    ran: list[str] = []
    while rows := fetch_all(_READY, {"operation": operation_id}):
        step_id, operation, trace, stage = rows[0]
        STAGES[stage]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})
        ran.append(stage)
        assert len(ran) < 10_000, "steps do not end"
    return ran


def run_pass(namespace: Namespace, policy: Policy) -> dict[str, Any]:
    """One migration pass, to its end; returns its report."""
    accepted = producers.reconcile(namespace, policy)
    drive(accepted.operation_id)
    done = producers.operation(accepted.operation_id)
    assert done.state == "done", (done.state, done.error)
    assert done.result is not None
    return done.result


def check_database() -> None:
    """What holds of every record at any time between transactions: place, body, and the words it is found by."""
    postings: dict[int, set[tuple[int, int, int]]] = {}
    for bank, term, key, namespace in fetch_all("SELECT bank_id, term, record_key, namespace_id FROM tier_postings"):
        postings.setdefault(key, set()).add((bank, term, namespace))
    cold = {row[0]: row[1:] for row in fetch_all("SELECT record_key, bank_id, namespace_id, words FROM cold_words")}
    rows = fetch_all(
        """SELECT r.key, r.bank_id, r.namespace_id, r.tier, r.content, r.summary, r.metadata, r.content_sha256,
                  r.size_bytes, r.terms, r.indexed, r.version, r.access_count, r.heat_log, b.record_key IS NOT NULL,
                  b.body, b.raw_bytes, o.object_key
           FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key
           LEFT JOIN cold_blobs AS o ON o.id = b.blob_id"""
    )
    for row in rows:
        _check_record(row, postings.pop(row[0], set()), cold.pop(row[0], None))
    assert not postings, "words of records that are gone"
    assert not cold, "words of cold records that are gone"
    orphans = "SELECT count(*) FROM cold_bodies AS b JOIN tier_records AS r ON r.key = b.record_key WHERE r.tier > 1"
    assert fetch_all(orphans) == [(0,)]
    # A new text may put a cold record into hot; passes go step by step.
    jumps = """SELECT record_key, source, target FROM tier_moves
               WHERE abs(source - target) <> 1 AND target > 0 AND reason <> 'restore'"""
    assert fetch_all(jumps) == []
    referred = (
        "SELECT b.blob_id IS NOT NULL FROM cold_blobs AS o LEFT JOIN cold_bodies AS b ON b.blob_id = o.id WHERE {}"
    )
    assert {row[0] for row in fetch_all(referred.format("o.state = 'live'"))} <= {True}
    assert {row[0] for row in fetch_all(referred.format("o.state <> 'live'"))} <= {False}


def words_in_cold(bank: int, namespace: int, terms: Iterable[int]) -> list[int]:
    """How words of a cold record stand in its row."""
    return [-namespace, *sorted({bank << 32 | term & 0xFFFFFFFF for term in terms})]


def _check_record(
    row: tuple[Any, ...], postings: set[tuple[int, int, int]], cold: tuple[int, int, list[int]] | None
) -> None:
    (key, bank, namespace, rank, content, summary, metadata, sha, size, terms, indexed, version, accesses, heat_log,
     has_body, body, raw_bytes, object_key) = row  # fmt: skip
    if rank > 1:
        whole, found_by = content, searchable_text(content, metadata)
        assert not has_body, key
    else:
        whole = stored_cold.text(StoredBody(summary, body, raw_bytes, sha, object_key), storage.open().blobs)
        found_by = summary if has_body else searchable_text(summary, metadata)
    if whole is not None:  # a damaged body is somebody's test
        assert hashlib.sha256(whole.encode()).digest() == sha, key
        assert len(whole.encode()) == size, key
    assert postings == {(bank, term, namespace) for term in terms}, f"record {key}: words and postings differ"
    if indexed:
        wanted = text.terms(found_by)
        assert terms == (wanted if rank > 1 else []), f"record {key}: indexed by other words than it is found by"
        row_of_words = None if rank > 1 else (bank, namespace, words_in_cold(bank, namespace, wanted))
        assert cold == row_of_words, f"record {key}: words of a cold record"
    assert version >= 1
    assert (heat_log is None) == (accesses == 0), key
