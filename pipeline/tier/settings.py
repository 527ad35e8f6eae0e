"""Settings of a tiered memory as a program's configuration file gives them.

A key that is absent or None is the default; 0 is off: no limit, no age, no promotion, and in a budget or a weight a level
or a part that does not count. Durations are text such as `24h`, `1h30m` or `30d`; a number is a number and never text, and
a switch is true or false.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, StrictBool

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.ports import ChatModel
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.cold import ModelSummarizer, Summarizer
from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.summaries import (
    ColdSummaryBackend,
    ColdSummaryIndexer,
    ColdSummarySettings,
    NoopColdSummary,
    SummarizingColdSummary,
)
from isotherm.pipeline.tier.weights import RecallWeights

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> timedelta:
    """Read numbers with units d, h, m, s and ms, as in `1h30m`; `0` is no time. Raises: ValueError."""
    trimmed = text.strip()
    if trimmed == "0":
        return timedelta(0)
    if not _WHOLE.fullmatch(trimmed):
        raise ValueError("a duration such as 24h, 1h30m or 30d is needed")
    try:
        return timedelta(milliseconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(trimmed)))
    except OverflowError:
        raise ValueError("a duration of at most 999999999 days is needed") from None


def duration_text(duration: timedelta) -> str:
    """Write a duration as Go programs write and read it, to the millisecond: `24h0m0s`, `30m0s`, `1.5s`, `250ms`, `0s`."""
    left = round(duration / timedelta(milliseconds=1))
    if 0 < left < _UNITS["s"]:
        return f"{left}ms"
    hours, left = divmod(left, _UNITS["h"])
    minutes, left = divmod(left, _UNITS["m"])
    above = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{above}{left / _UNITS['s']:g}s"


def _read_duration(value: Any) -> Any:  # noqa: ANN401 - pydantic passes what the caller gave
    if isinstance(value, str):
        return parse_duration(value)
    if value is None or isinstance(value, timedelta) or (value == 0 and not isinstance(value, bool)):
        return timedelta(0) if value == 0 else value
    raise ValueError("a duration such as 24h, 1h30m or 30d is needed")


def _write_duration(value: timedelta | None) -> str | None:
    return None if value is None else duration_text(value)


def _refuse_derived(value: Any) -> Any:  # noqa: ANN401 - pydantic passes what the caller gave
    if isinstance(value, Mapping) and "given" in value:
        raise ValueError("given follows from the shares, and is no setting")
    return value


Limit = Annotated[int, Field(ge=0, strict=True)] | None
Duration = Annotated[
    Annotated[timedelta, Field(ge=timedelta(0))] | None,
    BeforeValidator(_read_duration),
    PlainSerializer(_write_duration),
]


class Settings(FrozenModel):
    """One memory's tiers; the methods give what the rules take.

    Args: enabled: whether the memory has tiers at all; the rest as in `Policy`, `RecallBudget`, `RecallWeights` and
        `ColdSummarySettings`, where this module's rule says what None and 0 mean.
    """

    enabled: StrictBool = True
    hot_capacity: Limit = None
    warm_capacity: Limit = None
    cold_capacity: Limit = None
    hot_ttl: Duration = None
    warm_ttl: Duration = None
    cold_ttl: Duration = None
    promote_access: Limit = None
    demote_idle: Duration = None
    cooldown: Duration = None
    recall_budget: Annotated[RecallBudget | None, BeforeValidator(_refuse_derived)] = None
    recall_weights: RecallWeights | None = None
    cold_summary: ColdSummarySettings | None = None

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any] | None) -> Self | None:
        """Read a configuration; None when there is none, or it is switched off.

        Raises: RejectedError naming each bad key by its path and what it must be.
        """
        if raw is None:
            return None
        settings = cls.parse(raw)
        return settings if settings.enabled else None

    def to_mapping(self) -> dict[str, Any]:
        """The keys that were given, as `from_mapping` reads them."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"recall_budget": {"given"}})

    def policy(self) -> Policy:
        """When records move."""
        given = self.model_dump(include=set(_POLICY), exclude_none=True)
        chosen = {name: getattr(self, name) or None for name in given}
        return Policy(**chosen)

    def budget(self) -> RecallBudget:
        """What a recall returns."""
        return (self.recall_budget or RecallBudget()).normalize()

    def weights(self) -> RecallWeights:
        """What counts in a recall."""
        return self.recall_weights or RecallWeights()

    def summaries(
        self,
        *,
        indexer: ColdSummaryIndexer | None = None,
        summarizer: Summarizer | None = None,
        chats: Mapping[str, ChatModel] | None = None,
    ) -> ColdSummaryBackend:
        """What happens when records go cold: nothing when `cold_summary` is absent or off.

        Args: summarizer: the host's own, which wins over a model; chats: chat models by the names that `summary_profile`
            may have. Raises: RejectedError when the profile is none of them.
        """
        chosen = self.cold_summary
        if chosen is None or not chosen.enabled:
            return NoopColdSummary()
        if summarizer is None and chosen.summary_profile is not None:
            chat = (chats or {}).get(chosen.summary_profile)
            if chat is None:
                raise RejectedError("cold_summary.summary_profile: no chat model has this name")
            summarizer = ModelSummarizer(chat)
        return SummarizingColdSummary(chosen, indexer=indexer, summarizer=summarizer)


_POLICY = (
    "hot_capacity",
    "warm_capacity",
    "cold_capacity",
    "hot_ttl",
    "warm_ttl",
    "cold_ttl",
    "promote_access",
    "demote_idle",
    "cooldown",
)
