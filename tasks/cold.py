"""Stages of going cold: summarize, then archive."""

from __future__ import annotations

from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import RecordsArchived, SummariesWritten
from isotherm.pipeline.tier.cold import Summarizer, TruncateSummarizer, check_summary, own_summary
from isotherm.storage.postgres import steps, tier_move
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.tasks.stage import claimed, stage_task, tell


@stage_task(stages.SUMMARIZE)
def summarize(payload: dict[str, Any]) -> dict[str, Any]:
    """Write the summaries of a batch of records that is about to go cold; texts below the limit need none."""
    with claimed(payload) as step:
        chosen = storage.open().settings
        if step.answer is None:
            with connection() as conn:
                texts = tier_move.texts(conn, tier_move.decode(step.input["moves"]))
            long = {k: t for k, t in texts.items() if own_summary(t, chosen.cold_min_bytes) is None}
            step.answer = summaries_of(TruncateSummarizer(), long, chosen.cold_summary_chars)
            with connection() as conn:
                steps.store_answer(conn, step, step.answer)
        counts = {"summaries": len(step.answer["summaries"]), "refused": len(step.answer["refused"])}
        with connection() as conn:
            step.settle(conn, counts)
        tell(step, SummariesWritten(**counts))
    return step.receipt


def summaries_of(summarizer: Summarizer, texts: dict[int, str], max_chars: int) -> dict[str, dict[str, str]]:
    """Summaries by record key, and why a text has none.

    Args: texts: by record key; max_chars: the longest summary.
    Returns: {"summaries": {key: text}, "refused": {key: reason}}, keys as text, since it is stored as JSON.
    """
    summaries: dict[str, str] = {}
    refused: dict[str, str] = {}
    for key, source in texts.items():
        summary = summarizer.summarize(source, max_chars=max_chars)
        fault = check_summary(summary, source)
        if fault is None:
            summaries[str(key)] = summary
        else:
            refused[str(key)] = fault.value
    return {"summaries": summaries, "refused": refused}


@stage_task(stages.ARCHIVE)
def archive(payload: dict[str, Any]) -> dict[str, Any]:
    """Move a batch of records to cold: the body compressed, the summary searchable."""
    with claimed(payload) as step:
        chosen = storage.open().settings
        with connection() as conn:
            summaries = _summaries(step, steps.answer_of(conn, step.operation_id, stages.SUMMARIZE, step.unit))
            moves = tier_move.decode(step.input["moves"])
            moved = tier_move.archive(conn, step.operation_id, moves, summaries, min_bytes=chosen.cold_min_bytes)
            step.settle(conn, moved.receipt())
        tell(step, RecordsArchived(len(moved.moves), len(moved.set_aside)))
    return step.receipt


def _summaries(step: ClaimedStep, answer: dict[str, Any] | None) -> dict[int, str]:
    if answer is None:
        raise RejectedError(f"step {step.id} has no summaries to work with: its {stages.SUMMARIZE} did not finish")
    return {int(key): summary for key, summary in answer["summaries"].items()}
