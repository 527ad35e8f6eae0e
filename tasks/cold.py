"""Stages of going cold: summarize, then archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import RecordsArchived, SummariesWritten
from isotherm.pipeline.tier.cold import ModelSummarizer, Summarizer, TruncateSummarizer, summary_of
from isotherm.storage import cold
from isotherm.storage.models import factory
from isotherm.storage.postgres import steps, tier_move
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.storage.postgres.tier_held import Patience
from isotherm.storage.settings import Settings
from isotherm.tasks.stage import claimed, stage_task, tell

Answer = dict[str, dict[str, str]]


@stage_task(stages.SUMMARIZE)
def summarize(payload: dict[str, Any]) -> dict[str, Any]:
    """Write the summaries of a batch of records that is about to go cold; texts below the limit need none.

    A model's answers are kept in the step one by one, so that a killed runner asks for at most one of them again.
    """
    with claimed(payload) as step:
        chosen = storage.open().settings
        with connection() as conn:
            moves = tier_move.decode(step.input["moves"])
            texts = tier_move.texts(conn, moves, min_bytes=chosen.cold_min_bytes)
        summarizer = summarizer_of(chosen)
        kept = None if isinstance(summarizer, TruncateSummarizer) else lambda answer: _keep(step, answer)
        answer = summaries_of(
            summarizer,
            texts,
            chosen.cold_summary_chars,
            known=step.answer,
            keep=kept,
            or_truncated=chosen.cold_refused == "truncate",
        )
        counts = {"summaries": len(answer["summaries"]), "refused": len(answer["refused"])}
        with connection() as conn:
            steps.store_answer(conn, step, answer)
            step.settle(conn, counts)
        tell(step, SummariesWritten(**counts))
    return step.receipt


def summarizer_of(settings: Settings) -> Summarizer:
    """Who summarizes. Raises: RejectedError naming the settings that are missing."""
    chat = None if settings.cold_summarizer == "truncate" else factory.chat_model(settings)
    return TruncateSummarizer() if chat is None else ModelSummarizer(chat)


def summaries_of(
    summarizer: Summarizer,
    texts: Mapping[int, str],
    max_chars: int,
    *,
    known: Answer | None = None,
    keep: Callable[[Answer], None] | None = None,
    or_truncated: bool = False,
) -> Answer:
    """Summaries by record key, and why a summarizer's own was refused.

    Args: texts: by record key; max_chars: the longest summary; known: what was answered before; keep: told of the answers
    after each new one; or_truncated: whether the beginning of a text serves where its summary is refused.
    Returns: {"summaries": {key: text}, "refused": {key: reason}}, keys as text, since it is stored as JSON.
    Raises: TransientError when the summarizer may answer later.
    """
    answer: Answer = known or {"summaries": {}, "refused": {}}
    for key, source in texts.items():
        name = str(key)
        if name in answer["summaries"] or name in answer["refused"]:
            continue
        summary, fault = summary_of(summarizer, source, max_chars, or_truncated=or_truncated)
        if summary is not None:
            answer["summaries"][name] = summary
        if fault is not None:
            answer["refused"][name] = fault.value
        if keep is not None:
            keep(answer)
    return answer


def _keep(step: ClaimedStep, answer: Answer) -> None:
    with connection() as conn:
        steps.store_answer(conn, step, answer)


@stage_task(stages.ARCHIVE)
def archive(payload: dict[str, Any]) -> dict[str, Any]:
    """Move a batch of records to cold: the body compressed, the summary searchable. Large bodies go to the blob store first."""
    with claimed(payload) as step:
        opened = storage.open()
        chosen = opened.settings
        moves = tier_move.decode(step.input["moves"])
        with connection() as conn:
            summaries, refused = _answers(step, steps.answer_of(conn, step.operation_id, stages.SUMMARIZE, step.unit))
        going = [move for move in moves if move.key in summaries]
        uploads = cold.upload(going, opened.blobs, blob_min_bytes=max(chosen.blob_min_bytes, chosen.cold_min_bytes))
        embedder = factory.embedder(chosen)
        with connection() as conn:
            moved = tier_move.archive(
                conn,
                step.operation_id,
                moves,
                summaries,
                min_bytes=chosen.cold_min_bytes,
                refused=refused,
                uploads=uploads,
                model=None if embedder is None else embedder.model,
                patience=Patience(chosen.hold_base, chosen.hold_cap),
            )
            step.settle(conn, moved.receipt())
        tell(step, RecordsArchived(len(moved.moves), len(moved.set_aside), step.receipt["reasons"]))
    return step.receipt


def _answers(step: ClaimedStep, answer: Answer | None) -> tuple[dict[int, str], dict[int, str]]:
    if answer is None:
        raise RejectedError(f"step {step.id} has no summaries to work with: its {stages.SUMMARIZE} did not finish")
    summaries = {int(key): summary for key, summary in answer["summaries"].items()}
    return summaries, {int(key): f"summary {reason}" for key, reason in answer["refused"].items()}
