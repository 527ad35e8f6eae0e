import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from isotherm.pipeline.transcript import BadLine, TranscriptLine, detect, parse_lines

SAMPLE = Path(__file__).parents[2] / "tasks" / "samples" / "conversations.jsonl"


def load() -> list[TranscriptLine]:
    with SAMPLE.open("rb") as file:
        results = list(parse_lines(file))
    assert not [result for result in results if isinstance(result, BadLine)]
    return [result for result in results if isinstance(result, TranscriptLine)]


MESSAGES = load()


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def test_sample_is_read_as_lines_without_one_bad_line() -> None:
    data = SAMPLE.read_bytes()
    assert detect(data[:4_096]) == "lines"
    assert len(MESSAGES) == len(data.splitlines()) >= 150


def test_sample_has_two_agents_and_eight_sessions_over_ten_weeks() -> None:
    assert {message.agent for message in MESSAGES} == {"atlas", "forge"}
    assert len({(message.agent, message.session) for message in MESSAGES}) == 8
    assert MESSAGES[0].time >= datetime(2026, 8, 1, tzinfo=UTC)
    assert MESSAGES[-1].time - MESSAGES[0].time == pytest.approx(timedelta(weeks=10), abs=timedelta(days=2))


def test_messages_are_in_order_and_no_two_are_equal() -> None:
    times = [message.time for message in MESSAGES]
    assert times == sorted(times)
    assert {message.position for message in MESSAGES} == {0}
    assert set(Counter(message.role for message in MESSAGES)) == {"user", "assistant", "tool"}


def test_some_messages_are_long_enough_for_a_summary_to_be_shorter() -> None:
    lengths = [len(message.content.split()) for message in MESSAGES]
    assert sum(600 <= length <= 900 for length in lengths) >= 3
    assert sorted(lengths)[len(lengths) // 2] < 40


def test_sessions_share_no_passage_of_a_dozen_words() -> None:
    owner: dict[tuple[str, ...], str] = {}
    for message in MESSAGES:
        text = words(message.content)
        for start in range(len(text) - 11):
            passage = tuple(text[start : start + 12])
            assert owner.setdefault(passage, message.session) == message.session


@pytest.mark.parametrize(
    ("session", "fact"),
    [
        ("bergen-plans", "I'm vegetarian"),
        ("kelp-survey", "I eat fish again"),
        ("bergen-plans", "Tuesdays at 10:00"),
        ("first-week", "Thursdays at 13:00"),
        ("bergen-plans", "I prefer dark mode"),
        ("petra-visit", "dark mode makes me squint"),
        ("tidewater-kickoff", "Postgres 15"),
        ("postgres-upgrade", "Agreed, Postgres 17"),
        ("bergen-plans", "sea kayaking"),
        ("flat-in-sandviken", "Paddling in the fjords"),
        ("flat-in-sandviken", "15,400 kroner a month"),
        ("salinity-incident", "lost its timezone"),
    ],
)
def test_facts_that_the_demo_asks_for_are_in_their_session(session: str, fact: str) -> None:
    assert any(fact in message.content for message in MESSAGES if message.session == session)


def test_every_line_names_its_agent_and_nothing_unknown() -> None:
    for line in SAMPLE.read_text(encoding="utf-8").splitlines():
        assert list(json.loads(line)) == ["session", "agent", "role", "content", "time"]
