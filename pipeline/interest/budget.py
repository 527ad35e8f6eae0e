"""What a run may spend on chat models, and what it has spent. Money is in whatever currency the prices are in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

_MILLION = 1_000_000
# Providers cut English text into pieces of about four characters; other scripts have more pieces for the same length.
_CHARS_PER_TOKEN = 4


class StoodIn(StrEnum):
    """Why something else stands where a model's answer should."""

    REFUSED = "refused"  # the model refused, or its answer stayed invalid
    BUDGET_SPENT = "budget_spent"


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens. None where nobody said one."""

    input: float | None = None
    output: float | None = None

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """What tokens cost, 0 without prices."""
        return ((self.input or 0.0) * input_tokens + (self.output or 0.0) * output_tokens) / _MILLION


@dataclass(frozen=True, slots=True)
class Spent:
    """What model calls came to.

    Args: calls: answered requests; repairs: those of them that corrected an invalid answer; failures: questions that got
        no usable answer; estimated_tokens: those of the tokens that the provider did not count; cost: at the prices of
        the time; model_ms: milliseconds, waits included.
    """

    calls: int = 0
    repairs: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    cost: float = 0.0
    model_ms: int = 0

    @property
    def tokens(self) -> int:
        """Of both kinds."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one run may spend; None is any amount."""

    tokens: int | None = None
    money: float | None = None

    def exceeded(self, spent: Spent, asked: Spent) -> str | None:
        """Why one more question is not asked, None when it may be.

        Args: spent: so far; asked: what the question costs before its answer.
        """
        if self.tokens is not None and spent.tokens + asked.tokens > self.tokens:
            return f"{spent.tokens} of {self.tokens} tokens are spent, and the next question has {asked.tokens}"
        if self.money is not None and spent.cost + asked.cost > self.money:
            return f"{spent.cost:.4f} of {self.money:.4f} are spent, and the next question costs {asked.cost:.4f}"
        return None


def estimated(text: str) -> int:
    """About how many tokens a text has, for providers that do not count them: at least one for each four bytes."""
    return -(-len(text.encode("utf-8", "replace")) // _CHARS_PER_TOKEN)
