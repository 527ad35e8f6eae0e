"""Stages of going cold: summarize, then archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import IsothermError, RejectedError, TransientError, UnavailableError
from isotherm.pipeline.events import RecordsArchived, SummariesWritten
from isotherm.pipeline.tier.cold import ModelSummarizer, Summarizer, TruncateSummarizer, summary_of
from isotherm.pipeline.tier.plan import Move
from isotherm.storage import cold
from isotherm.storage.models import factory
from isotherm.storage.postgres import steps, tier_move, tier_passes
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.storage.postgres.tier_held import Patience
from isotherm.storage.settings import Settings
from isotherm.tasks.log import log
from isotherm.tasks.stage import claimed, describe, stage_task, tell

Answer = dict[str, dict[str, str]]

# After so many waits, some ten minutes, a server that answered for other texts of a step is not what is at fault.
_WAITS = 8
_UNANSWERED = "unanswered"


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
        answer = summaries_of(
            summarizer,
            texts,
            chosen.cold_summary_chars,
            known=step.answer or _answered_before(step, summarizer, moves, chosen.cold_summary_chars),
            keep=lambda answer: _keep(step, answer),
            or_truncated=chosen.cold_refused == "truncate",
            tries=step.attempts - 1 + step.waits,
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
    tries: int = 0,
) -> Answer:
    """Summaries by record key, and why a summarizer's own was refused. A text that fails by itself is refused alone.

    Args: texts: by record key; max_chars: the longest summary; known: what was answered before; keep: told of the answers
    of a model after each new one; or_truncated: whether the beginning of a text serves where its summary is refused; tries:
    how often this was tried before. Every other time goes from the end, so that what follows a text that ends its runner
    has its turn too.
    Returns: {"summaries": {key: text}, "refused": {key: reason}}, keys as text, since it is stored as JSON.
    Raises: TransientError when the summarizer may answer later.
    """
    asking = _Asking(summarizer, max_chars, or_truncated, known or {"summaries": {}, "refused": {}}, tries >= _WAITS)
    if isinstance(summarizer, TruncateSummarizer):
        keep = None
    for key in list(texts) if tries % 2 == 0 else list(texts)[::-1]:
        if asking.ask(str(key), texts[key]) and keep is not None:
            keep(asking.answer)
    if asking.late is not None:
        raise asking.late
    return asking.answer


@dataclass(slots=True)
class _Told:
    """A summarizer whose refusal is remembered: a key that is not valid reads otherwise than a text that is declined."""

    summarizer: Summarizer
    why: str | None = None

    def summarize(self, text: str, *, max_chars: int) -> str:
        """As the summarizer does. Raises: what it raises."""
        try:
            return self.summarizer.summarize(text, max_chars=max_chars)
        except RejectedError as error:
            self.why = str(error)
            raise


@dataclass(slots=True)
class _Asking:
    """Asks for one summary after the other.

    Args: answer: what is known by now; is_over: whether single texts were waited for long enough; late: the last failure
    that may pass, None when there was none; in_a_row: such failures since the last answer.
    """

    summarizer: Summarizer
    max_chars: int
    or_truncated: bool
    answer: Answer
    is_over: bool
    late: TransientError | None = None
    in_a_row: int = 0

    def ask(self, name: str, source: str) -> bool:
        """Ask for the summary of one text; whether there is something new to keep.

        Raises: TransientError when the server is away, or fails for two texts in a row.
        """
        summaries, refused = self.answer["summaries"], self.answer["refused"]
        if name in summaries or name in refused:
            return False
        told = _Told(self.summarizer)
        try:
            summary, fault = summary_of(told, source, self.max_chars, or_truncated=self.or_truncated)
        except UnavailableError:
            raise
        except TransientError as error:
            return self._is_given_up(name, error)
        except IsothermError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug that one text meets must not stop the others
            refused[name] = describe(error)
            log.error("cold.summary_raised", record_key=int(name), reason=refused[name])
            return True
        self.in_a_row = 0
        if summary is not None:
            summaries[name] = summary
        if fault is not None:
            refused[name] = fault.value if told.why is None else f"{fault.value}: {told.why}"
        return True

    def _is_given_up(self, name: str, error: TransientError) -> bool:
        if self.is_over and self.answer["summaries"]:
            self.answer["refused"][name] = _UNANSWERED
            return True
        self.late, self.in_a_row = error, self.in_a_row + 1
        if self.in_a_row > 1:
            raise error
        return False


def _keep(step: ClaimedStep, answer: Answer) -> None:
    with connection() as conn:
        steps.store_answer(conn, step, answer)


def _answered_before(step: ClaimedStep, summarizer: Summarizer, moves: list[Move], max_chars: int) -> Answer | None:
    """What a model answered in passes that were stopped before they used it."""
    if step.namespace_id is None or not isinstance(summarizer, ModelSummarizer):
        return None
    versions = {move.key: move.version for move in moves}
    with connection() as conn:
        left = tier_passes.summaries_left(conn, step.namespace_id, step.operation_id, versions)
    return {"summaries": {key: text for key, text in left.items() if len(text) <= max_chars + 1}, "refused": {}}


@stage_task(stages.ARCHIVE)
def archive(payload: dict[str, Any]) -> dict[str, Any]:
    """Move a batch of records to cold: the body compressed, the summary searchable. Large bodies go to the blob store first."""
    with claimed(payload) as step:
        opened = storage.open()
        chosen = opened.settings
        moves = tier_move.decode(step.input["moves"])
        with connection() as conn:
            answered = steps.answer_of(conn, step.operation_id, stages.SUMMARIZE, step.unit)
            summaries, refused = _answers(answered, moves)
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


def _answers(answered: steps.Answered, moves: list[Move]) -> tuple[dict[int, str], dict[int, str]]:
    """Summaries, and why a record has none, by record key; of a step that did not finish those that it got by then."""
    given: Answer = answered.answer or {"summaries": {}, "refused": {}}
    summaries = {int(key): summary for key, summary in given["summaries"].items()}
    refused = {int(key): f"summary {reason}" for key, reason in given["refused"].items()}
    if answered.error is not None:
        refused = {move.key: f"no summary: {answered.error}" for move in moves} | refused
    return summaries, refused
