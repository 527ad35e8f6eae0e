from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inprocess import drive
from sessions import ATLAS, FORGE, ingest, sample, session

from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import produce_interest

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def test_without_an_embedder_names_and_rules_still_find_points_and_contradictions(memory: Storage) -> None:
    for lines in sample().values():
        drive(ingest(lines))
    assert memory.settings.embedder == "none"
    assert fetch_all("SELECT count(*) FROM interest_points WHERE embedding IS NOT NULL") == [(0,)]
    found = {tuple(sorted((c.left.words, c.right.words))) for c in produce_interest.contradictions(ATLAS)}
    assert ("is", "not") in found
    assert ("thursday", "tuesday") in found
    assert {c.rule for c in produce_interest.contradictions(FORGE)} == {"number", "opposite_words"}
    best = produce_interest.recall_interests(ATLAS, "sea kayaking").items[:2]
    assert {(i.interest.name, i.score.similarity) for i in best} == {
        ("sea kayaking", 1.0),
        ("Sea kayaking on a Wednesday", 1.0),
    }


@pytest.mark.usefixtures("memory")
def test_without_an_embedder_one_name_in_two_sessions_is_one_point() -> None:
    for day in (0, 1, 2):
        drive(ingest(session(f"s{day}", "I love Sea  Kayaking." if day else "I love sea kayaking.", day=day)))
    [point] = produce_interest.interests(ATLAS)
    assert (point.name, point.sessions) == ("sea kayaking", 3)


@pytest.mark.usefixtures("memory")
def test_groups_of_a_session_are_judged_by_the_rules() -> None:
    drive(ingest(session("s1", "I love cats.", "I love the cat.", "I'm vegetarian.")))
    assert {p.name for p in produce_interest.interests(ATLAS)} == {"cats", "vegetarian"}
    assert fetch_all("SELECT stage FROM operation_steps WHERE stage = 'interest.s1.judge'") == [("interest.s1.judge",)]
