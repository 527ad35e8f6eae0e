"""What is done when a record goes cold: how its summary is made, and where the summary is searched.

The record keeps its text. A summary stands beside it, is indexed before the record moves, and leaves the index once the
record is warm again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from pydantic import Field, StrictBool, StrictStr, field_validator

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.cold import (
    COLD_MIN_BYTES,
    SUMMARY_MAX_CHARS,
    Summarizer,
    TruncateSummarizer,
    own_summary,
    summary_of,
)
from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.records import searchable_text
from isotherm.pipeline.tier.store import StoredRecord


class ColdSummarySettings(FrozenModel):
    """How summaries are made. None is the default, 0 no limit.

    Args: enabled: off makes no summaries; min_bytes: a text below it is its own summary, with 0 none is; max_summary_chars:
        the longest summary, with 0 as long as the text, which needs no model then; summary_profile: the host's name of
        the chat model to ask, None for none; or_truncated: the beginning of the text serves where a model's summary is
        refused, instead of the record staying warm.
    """

    enabled: StrictBool = True
    min_bytes: Annotated[int, Field(ge=0, strict=True)] = COLD_MIN_BYTES
    max_summary_chars: Annotated[int, Field(ge=0, strict=True)] = SUMMARY_MAX_CHARS
    summary_profile: StrictStr | None = None
    or_truncated: StrictBool = False

    @field_validator("min_bytes", mode="before")
    @classmethod
    def _min_bytes(cls, value: Any) -> Any:  # noqa: ANN401 - pydantic passes what the caller gave
        return COLD_MIN_BYTES if value is None else value

    @field_validator("max_summary_chars", mode="before")
    @classmethod
    def _max_summary_chars(cls, value: Any) -> Any:  # noqa: ANN401 - the same
        return SUMMARY_MAX_CHARS if value is None else value


class ColdSummaryIndexer(Protocol):
    """Where summaries are searched, by meaning as a rule."""

    def upsert_summary(self, namespace: Namespace, record_id: str, summary: str) -> None:
        """Index a summary, or replace the record's former one."""
        ...

    def search_summaries(self, namespace: Namespace, query: str, limit: int) -> Sequence[str]:
        """Ids of records of this namespace, best first."""
        ...

    def delete_summary(self, namespace: Namespace, record_id: str) -> None:
        """Remove a summary; it is no error when there is none."""
        ...


class ColdSummaryBackend(Protocol):
    """What the manager needs when records go cold and come back."""

    def archive(self, namespace: Namespace, record: StoredRecord) -> str | None:
        """Make and index a summary; None when the record goes cold without one.

        Raises: RejectedError when no summary can stand for the text; TransientError when one may be made later. In both
        cases the record stays where it is.
        """
        ...

    def index(self, namespace: Namespace, record_id: str, summary: str) -> None:
        """Index the summary of a record that is cold already. Raises: what the index raises."""
        ...

    def search(self, namespace: Namespace, query: str, limit: int) -> Sequence[str]:
        """Ids of cold records whose summaries fit a query, best first."""
        ...

    def delete(self, namespace: Namespace, record_id: str) -> None:
        """Forget the summary of a record that is not cold any more."""
        ...


class NoopColdSummary:
    """Records go cold as they are."""

    def archive(self, namespace: Namespace, record: StoredRecord) -> str | None:  # noqa: ARG002 - the port's form
        """No summary."""
        return None

    def index(self, namespace: Namespace, record_id: str, summary: str) -> None:
        """Nothing to index."""

    def search(self, namespace: Namespace, query: str, limit: int) -> Sequence[str]:  # noqa: ARG002 - the same
        """Nothing."""
        return ()

    def delete(self, namespace: Namespace, record_id: str) -> None:
        """Nothing to forget."""


class SummarizingColdSummary:
    """Summaries by truncation or by a summarizer such as `ModelSummarizer`, searched in an index when there is one.

    Args: settings: limits; indexer: None searches no summaries beside the store; summarizer: None truncates.
    """

    def __init__(
        self,
        settings: ColdSummarySettings | None = None,
        *,
        indexer: ColdSummaryIndexer | None = None,
        summarizer: Summarizer | None = None,
    ) -> None:
        self._settings = settings or ColdSummarySettings()
        self._indexer = indexer
        self._summarizer = summarizer or TruncateSummarizer()

    def archive(self, namespace: Namespace, record: StoredRecord) -> str | None:
        """Make, check and index a summary; a text below `min_bytes` is its own and is indexed too."""
        if not self._settings.enabled:
            return None
        source = searchable_text(record.content, record.metadata)
        summary = own_summary(record.content, self._settings.min_bytes)
        if summary is None:
            summary = self._made(source)
        self.index(namespace, record.id, summary)
        return summary

    def index(self, namespace: Namespace, record_id: str, summary: str) -> None:
        """Hand a summary to the index, when there is one."""
        if self._settings.enabled and self._indexer is not None:
            self._indexer.upsert_summary(namespace, record_id, summary)

    def search(self, namespace: Namespace, query: str, limit: int) -> Sequence[str]:
        """Ids from the index; none without an index, for a blank query or a limit of 0."""
        if not self._settings.enabled or self._indexer is None or limit <= 0 or not query.strip():
            return ()
        return self._indexer.search_summaries(namespace, query, limit)

    def delete(self, namespace: Namespace, record_id: str) -> None:
        """Remove from the index, also when summaries are off by now."""
        if self._indexer is not None:
            self._indexer.delete_summary(namespace, record_id)

    def _made(self, source: str) -> str:
        limits = self._settings
        longest = limits.max_summary_chars or max(1, len(source))
        summary, fault = summary_of(self._summarizer, source, longest, or_truncated=limits.or_truncated)
        if summary is None:
            raise RejectedError(f"summary {fault}")
        return summary
