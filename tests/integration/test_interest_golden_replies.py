"""Replies as models have written them, as raw text from a server: whole items are kept, or the question is asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from model_server import Answer, Script, model_server, said

from isotherm.pipeline.interest import s1
from isotherm.pipeline.interest.budget import StoodIn
from isotherm.pipeline.interest.candidates import Candidate, HistPoint, Point, Status
from isotherm.pipeline.interest.s1 import Merge
from isotherm.pipeline.interest.v1_2 import Unit
from isotherm.pipeline.interest.windows import Message, Window
from isotherm.pipeline.redact import NoRedactor
from isotherm.storage.models.chat import HttpChatModel
from isotherm.storage.models.http import ModelServer
from isotherm.tasks.interest_models import Readers

GOLDEN = Path(__file__).parents[1] / "golden_replies"
AT = datetime(2026, 3, 1, 9, tzinfo=UTC)
SAID = ("I love sea kayaking.", "Noted.", "I use Postgres 15.", "Noted.")
WINDOW = Window(tuple(Message(n, ("user", "assistant")[n % 2], text, AT) for n, text in enumerate(SAID)), 0, 4)
H1 = UUID(int=1)
UNIT = Unit({"p0": Point(Candidate("paddling at sea"))}, (HistPoint(H1, "sea kayaking", "Paddles in the fjord."),))
GROUP = [Point(Candidate(topic)) for topic in ("sea kayaking", "kayaking at sea", "Postgres 15")]

Server = Callable[..., tuple[Script, Readers]]


def golden(name: str) -> Answer:
    """A reply; what was cut ended because the answer was too long."""
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    return said(text, finish_reason="length" if "-cut" in name else "stop")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    opened = []

    def serve(*answers: Answer) -> tuple[Script, Readers]:
        server = model_server(*answers)
        opened.append(server)
        script = server.__enter__()
        return script, Readers(HttpChatModel(ModelServer(script.url, timeout=5), "test"), None, NoRedactor())

    yield serve
    for one in opened:
        one.__exit__(None, None, None)


BOTH = ["sea kayaking", "Postgres 15"]


@pytest.mark.parametrize(
    ("name", "topics"),
    [
        ("extract-plain", BOTH),
        ("extract-fenced", BOTH),
        ("extract-chatty", BOTH),
        ("extract-thinking", BOTH),
        ("extract-list-alone", BOTH),
        ("extract-raw-newlines", BOTH),
        ("extract-cut-in-an-item", BOTH),
        ("extract-half-a-character", ["sea kayaking", "Postgres\ufffd 15"]),
        ("extract-nothing", []),
    ],
)
def test_whole_items_of_an_untidy_reply_are_kept_at_once(server: Server, name: str, topics: list[str]) -> None:
    script, readers = server(golden(name))
    found, why = readers.extract(WINDOW)
    assert ([one.topic for one in found], why) == (topics, None)
    assert len(script.asked) == 1
    assert [one.turn_range for one in found] == [(0, 0), (2, 2)][: len(found)]
    assert all("\n" not in one.reason for one in found)


UNUSABLE = [
    "extract-cut-before-an-item",
    "extract-bad-quotes",
    "extract-python",
    "extract-bad-escapes",
    "extract-word-for-a-number",
    "extract-refusal",
    "extract-empty",
]


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_reply_that_cannot_be_read_is_asked_for_again_with_what_is_wrong(server: Server, name: str) -> None:
    script, readers = server(golden(name), golden("extract-fenced"))
    found, why = readers.extract(WINDOW)
    assert ([one.topic for one in found], why) == (BOTH, None)
    first, second = script.asked
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["messages"][-1]["content"].startswith("Your answer cannot be used:\n")


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_model_that_fails_is_never_no_facts(server: Server, name: str) -> None:
    script, readers = server(golden(name))
    found, why = readers.extract(WINDOW)
    assert why is StoodIn.REFUSED
    assert {"sea kayaking", "Postgres 15"} <= {one.topic for one in found}
    assert len(script.asked) == 2


def test_a_fenced_decision_is_carried_out(server: Server) -> None:
    _, readers = server(golden("v1_2-fenced"))
    outcome, why = readers.adjudicate(UNIT)
    [decision] = outcome.decisions
    assert (decision.target, decision.rewrite, decision.topic, why) == (str(H1), True, "sea kayaking", None)


def test_a_decision_in_the_names_of_another_schema_keeps_the_point_in_its_own_words(server: Server) -> None:
    _, readers = server(golden("v1_2-old-names"))
    outcome, why = readers.adjudicate(UNIT)
    [decision] = outcome.decisions
    assert (decision.target, decision.topic, decision.status, why) == (None, "", Status.ACTIVE, None)


def test_a_decision_that_was_cut_off_is_asked_for_again_since_a_missing_one_would_count(server: Server) -> None:
    script, readers = server(golden("v1_2-cut"), golden("v1_2-fenced"))
    outcome, why = readers.adjudicate(UNIT)
    assert (outcome.decisions[0].target, why) == (str(H1), None)
    assert len(script.asked) == 2
    assert "cut off" in script.asked[1]["messages"][-1]["content"]


def test_topics_instead_of_handles_decide_on_nothing(server: Server) -> None:
    _, readers = server(golden("v1_2-topics-for-handles"))
    outcome, _ = readers.adjudicate(UNIT)
    assert [(d.members, d.target, d.status) for d in outcome.decisions] == [(("p0",), None, Status.PENDING_REVIEW)]
    assert outcome.contradictions == ()


def test_of_several_decisions_about_a_point_the_first_counts_and_an_unknown_action_keeps_it(server: Server) -> None:
    _, readers = server(golden("v1_2-shouting"))
    outcome, _ = readers.adjudicate(UNIT)
    [decision] = outcome.decisions
    assert (decision.target, decision.archives, decision.status) == (None, (), Status.ACTIVE)


def test_groups_are_merged_as_a_chatty_reply_says_and_places_that_do_not_exist_are_left_out(server: Server) -> None:
    _, readers = server(golden("s1-chatty"))
    assert readers.merge(GROUP) == ([Merge((0, 1), "sea kayaking", "Paddles in the fjord.")], None)
    script, readers = server(golden("s1-cut"), golden("s1-chatty"))
    assert readers.merge(GROUP)[1] is None
    assert len(script.asked) == 2
    script, readers = server(golden("s1-cut"))
    assert readers.merge(GROUP) == ([], StoodIn.REFUSED)


def test_every_golden_reply_is_used_by_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in GOLDEN.glob("*.txt") if f'"{path.stem}"' not in source] == []


def test_members_that_are_named_twice_or_do_not_exist_stay_one_outcome_each(server: Server) -> None:
    _, readers = server(golden("s1-wild-members"))
    merges, why = readers.merge(GROUP)
    assert why is None
    assert [one.candidate.topic for one in s1.apply(GROUP, merges)] == ["sea kayaking", "Postgres 15"]
