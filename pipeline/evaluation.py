"""How well somebody's own questions are answered: questions with what they should find, and the measures over them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from isotherm.pipeline.errors import RejectedError

CUTS: Final = (1, 3, 5, 10)
_NAMES: Final = frozenset({"question", "expected", "kb", "agent", "session", "tenant"})


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what it should find.

    Args: expected: ids, or titles of objects; kb: whose knowledge is asked, None when records are; agent, session, tenant:
        whose records, of one session or of all; line: where it stands, from 1.
    """

    text: str
    expected: frozenset[str]
    line: int
    kb: str | None = None
    agent: str | None = None
    session: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of answering, over all questions.

    Args: recall: by cut, the share of what is expected among the first so many, on average; whole: share of questions
        with all of it among the first ten; reciprocal_rank: 1 / place of the first that is expected, on average.
    """

    recall: Mapping[int, float]
    whole: float
    reciprocal_rank: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with what each way found: ids, best first, each with its other names, such as a title."""

    question: Question
    found: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)

    def places(self, way: str) -> list[int]:
        """Places from 0 of what is expected, each expected name once, at its best place."""
        best: dict[str, int] = {}
        for place, names in enumerate(self.found.get(way, ())):
            for name in names & self.question.expected:
                best.setdefault(name, place)
        return sorted(best.values())


def read_questions(lines: Sequence[str]) -> list[Question]:
    """Questions from JSON lines; empty lines are passed over.

    Raises: RejectedError naming the line and what is wrong with it, never its text.
    """
    found = [_question(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise RejectedError("there is no question in the file")
    return found


def ways_of(answered: Sequence[Answered]) -> list[str]:
    """Names of all ways, in the order in which they came."""
    return list(dict.fromkeys(way for each in answered for way in each.found))


def measure(answered: Sequence[Answered], way: str) -> Measured:
    """One way over the questions that it was asked. Raises: ValueError when there is none."""
    asked = [each for each in answered if way in each.found]
    if not asked:
        raise ValueError("nothing was asked this way")
    places = [(each.places(way), len(each.question.expected)) for each in asked]
    recall = {cut: _mean([sum(p < cut for p in got) / most for got, most in places]) for cut in CUTS}
    whole = _mean([float(sum(p < CUTS[-1] for p in got) == most) for got, most in places])
    return Measured(recall, whole, _mean([1 / (got[0] + 1) if got else 0.0 for got, _ in places]))


def missed(answered: Sequence[Answered], way: str, cut: int = CUTS[-1]) -> Iterator[Answered]:
    """Questions with something expected that is not among the first so many."""
    for each in answered:
        if way in each.found and sum(p < cut for p in each.places(way)) < len(each.question.expected):
            yield each


def _question(line: str, number: int) -> Question:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        raise RejectedError(f"line {number}: not JSON") from None
    if not isinstance(read, dict):
        raise RejectedError(f"line {number}: an object with a question and what is expected is needed")
    if unknown := sorted(read.keys() - _NAMES):
        raise RejectedError(f"line {number}: unknown {', '.join(unknown)}; known are {', '.join(sorted(_NAMES))}")
    text, expected = read.get("question"), read.get("expected")
    if not isinstance(text, str) or not text.strip():
        raise RejectedError(f"line {number}: question: text is needed")
    ids = [expected] if isinstance(expected, str) else expected
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) and one for one in ids):
        raise RejectedError(f"line {number}: expected: a list of ids is needed")
    whose = {name: _name(read, name, number) for name in ("kb", "agent", "session", "tenant")}
    if whose["kb"] is not None and (whose["agent"] or whose["session"]):
        raise RejectedError(f"line {number}: either kb, or agent and session")
    return Question(text, frozenset(ids), number, **whose)


def _name(read: Mapping[str, Any], name: str, number: int) -> str | None:
    value = read.get(name)
    if value is not None and not isinstance(value, str):
        raise RejectedError(f"line {number}: {name}: text is needed")
    return value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
