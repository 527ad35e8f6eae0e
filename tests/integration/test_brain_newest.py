"""Newest wins in a search: by edges, and by statements that say that something is new."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from brain_kit import KNOWLEDGE, OTHER, new, settle, titles, uid

from isotherm.pipeline.brain.result_sets import SearchContext
from isotherm.storage.brain_newer import Look
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import produce_brain
from isotherm.tasks.produce_brain import link, put_many, search

T0 = datetime(2026, 3, 1, tzinfo=UTC)
QUESTION = "What is the call quota of the weather service?"
OLD = "The call quota of the weather service is 1,000 calls a day, as the call quota of the service was agreed."
NEW = "The call quota of the weather service is now 1,200 calls a day, says the service."

pytestmark = pytest.mark.usefixtures("words_only")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def put(*contents: str, dated: bool = True, **more: Any) -> None:
    put_many(
        KNOWLEDGE,
        [
            new(n, f"{n}", content, source_time=T0 + timedelta(days=n) if dated else None, **more)
            for n, content in enumerate(contents)
        ],
    )
    settle()


def marks(**options: Any) -> list[tuple[str, str]]:
    found = search(KNOWLEDGE, QUESTION, **options).results
    return [
        (each.object.title, "" if each.renewed_by is None else str(each.renewed_by.int - (1 << 100))) for each in found
    ]


def test_a_later_statement_that_says_so_comes_first_and_the_older_one_names_it() -> None:
    put(OLD, NEW, "Quota of fish.")
    assert marks(newest_first=False)[:2] == [("0", ""), ("1", "")]
    assert marks()[:2] == [("1", ""), ("0", "1")]
    off = {each.object.id: each.score for each in search(KNOWLEDGE, QUESTION, newest_first=False).results}
    first = search(KNOWLEDGE, QUESTION).results[0]
    assert first.shares["renewal"].added == pytest.approx(first.score - off[first.object.id], rel=1e-3)


@pytest.mark.parametrize(
    ("query", "dated"), [("What was the call quota of the weather service originally?", True), (QUESTION, False)]
)
def test_questions_about_the_past_and_objects_without_a_time_keep_their_order(query: str, *, dated: bool) -> None:
    put(OLD, NEW, "Quota of fish.", dated=dated)
    on, off = search(KNOWLEDGE, query), search(KNOWLEDGE, query, newest_first=False)
    assert titles(on) == titles(off)


@pytest.mark.parametrize(
    ("label", "source", "target"),
    [("supersedes", 1, 0), ("Superseded_By", 0, 1), ("sequel", 0, 1), ("contradicts", 0, 1), ("contradicts", 1, 0)],
)
def test_an_edge_says_which_is_current_even_when_the_query_finds_only_the_older_one(
    label: str, source: int, target: int
) -> None:
    put("Weather service quota.", "Twelve hundred a day.", "Something else.")
    link(KNOWLEDGE, uid(source), uid(target), label)
    settle()
    assert marks() == [("1", ""), ("0", "1")]
    assert marks(newest_first=False) == [("0", "")]


def test_the_last_of_a_chain_comes_first_and_a_circle_says_nothing() -> None:
    put("Weather service quota.", "Weather quota.", "Quota.", "The quota.", "A quota.")
    for newer, older in ((1, 0), (2, 1), (3, 4), (4, 3)):
        link(KNOWLEDGE, uid(newer), uid(older), "replaces")
    settle()
    found = marks()
    assert [title for title, _ in found[:3]] == ["2", "1", "0"]
    assert dict(found)["3"] == dict(found)["4"] == ""


def test_filters_hold_for_what_edges_bring_and_other_namespaces_are_not_seen() -> None:
    put("Weather service quota.", dated=False)
    put_many(KNOWLEDGE, [new(7, "7", "Twelve hundred.", kind="person")])
    put_many(OTHER, [new(8, "8", "Twelve hundred.")])
    settle()
    link(KNOWLEDGE, uid(7), uid(0), "supersedes")
    settle()
    assert marks(kinds=["note"]) == [("0", "")]
    assert marks() == [("7", ""), ("0", "7")]
    assert titles(search(OTHER, QUESTION)) == []


def test_later_pages_tell_what_was_renewed() -> None:
    put(OLD, NEW, "Quota of fish.")
    context = SearchContext()
    first = search(KNOWLEDGE, QUESTION, limit=1, context=context)
    assert titles(first) == ["1"]
    assert first.cursor is not None
    following = produce_brain.continue_(KNOWLEDGE, first.cursor, context, limit=1)
    assert [(each.object.title, each.renewed_by) for each in following.results] == [("0", uid(1))]


def test_a_page_shows_the_newer_one_that_stood_behind_it() -> None:
    put(OLD, *["The call quota of the weather service, again and again, quota of calls."] * 3, NEW)
    assert titles(search(KNOWLEDGE, QUESTION, limit=2, newest_first=False)).count("4") == 0
    assert titles(search(KNOWLEDGE, QUESTION, limit=2))[0] == "4"


def test_nothing_is_looked_at_where_nothing_says_when_it_was_so(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Look] = []
    asked = Look.asked

    def noted(look: Look) -> list[tuple[str, dict[str, Any]]]:
        looks.append(look)
        return asked(look)

    monkeypatch.setattr(Look, "asked", noted)
    put("Weather service quota.", "Quota.", dated=False)
    assert marks() == [("0", ""), ("1", "")]
    put_many(OTHER, [new(8, "8", "Weather quota.", source_time=T0)])
    settle()
    assert len(marks()) == 2
    assert not looks
    link(KNOWLEDGE, uid(1), uid(0), "replaces")
    assert marks()[:2] == [("1", ""), ("0", "1")]
    search(OTHER, QUESTION)
    assert len(looks) == 2
    settle()


def test_edges_between_objects_are_read_by_their_small_indexes() -> None:
    names = {row[0] for row in fetch_all("SELECT indexname FROM pg_indexes WHERE tablename = 'brain_edges'")}
    assert {"brain_edges_newer_in", "brain_edges_newer_out"} <= names
