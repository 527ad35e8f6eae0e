"""Recall that walks: over names that records share with the agent's knowledge, and over what was learned from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from inprocess import drive, run_pass
from tiering import policy

from isotherm.pipeline.brain.objects import NewObject, derived_id
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.tasks import produce_brain, producers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from isotherm.pipeline.tier.answers import Recall
    from isotherm.storage.opened import Storage

T0 = datetime.now(UTC).replace(microsecond=0) - timedelta(days=30)
BANK = Bank(None, "atlas")
QUESTION = "Who runs the survey?"
SAID = (
    "The survey was handed over to Nora Lindqvist this spring.",
    "Nora Lindqvist keeps her papers in a shed in Visby.",
    "The ferry was late again.",
    "Bread is best on Tuesdays.",
)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def say(*said: str, agent: str = "atlas") -> None:
    records = [NewRecord(f"{agent}.{n}", text, T0 + timedelta(days=n), importance=0.5) for n, text in enumerate(said)]
    producers.remember_records(Namespace.of(agent, "one"), records)


def id_of(title: str, agent: str = "atlas") -> UUID:
    return derived_id(produce_brain.knowledge(agent), "known", title)


def know(*titles: str, agent: str = "atlas") -> None:
    objects = [NewObject(id_of(title, agent), "person", title) for title in titles]
    produce_brain.put_many(produce_brain.knowledge(agent), objects)


def order(answer: Recall) -> Sequence[str]:
    return [item.record.id for item in sorted(answer.items, key=lambda item: (-item.score.total, item.record.id))]


def ask(query: str = QUESTION, *, graph: bool = True, bank: Bank = BANK) -> Recall:
    return producers.recall(bank, query, budget=RecallBudget(total=4), graph=graph, touch=False)


def test_a_record_that_shares_only_a_name_with_the_hit_is_found(memory: Storage) -> None:
    assert memory
    say(*SAID)
    know("Nora Lindqvist")
    drive()
    answer = ask()
    assert order(answer)[:2] == ["atlas.0", "atlas.1"]
    led = next(item for item in answer.items if item.record.id == "atlas.1")
    assert "graph" in led.legs
    assert led.score.shares["graph"] == pytest.approx(led.score.semantic)
    assert answer.walked is not None
    assert answer.walked.edges == 2
    assert order(ask(graph=False))[:2] != ["atlas.0", "atlas.1"]
    assert ask(graph=False).walked is None


def test_without_names_and_points_the_order_is_what_it_was(memory: Storage) -> None:
    assert memory
    say(*SAID)
    drive()
    off, on = ask(graph=False), ask()
    assert [(item.record.id, item.legs) for item in on.items] == [(item.record.id, item.legs) for item in off.items]
    assert on.walked is not None
    assert on.walked.edges == 0


def test_the_words_of_a_name_apart_from_each_other_are_no_mention(memory: Storage) -> None:
    assert memory
    say("The survey was handed over to Nora Lindqvist.", "Nora met a Mister Lindqvist in Visby.", "The ferry was late.")
    know("Nora Lindqvist")
    drive()
    assert all("graph" not in item.legs for item in ask().items if item.record.id == "atlas.1")


def test_edges_between_objects_lead_from_one_name_to_another(memory: Storage) -> None:
    assert memory
    say("The survey was handed over to Nora Lindqvist.", "Gotland Museum closes at four.", "The ferry was late.")
    know("Nora Lindqvist", "Gotland Museum")
    ends = id_of("Nora Lindqvist"), id_of("Gotland Museum")
    produce_brain.link(produce_brain.knowledge("atlas"), *ends, label="works_at")
    drive()
    assert order(ask())[:2] == ["atlas.0", "atlas.1"]


def test_names_of_another_agent_lead_nowhere(memory: Storage) -> None:
    assert memory
    say(*SAID)
    say(*SAID, agent="other")
    know("Nora Lindqvist", agent="other")
    drive()
    answer = ask()
    assert answer.walked is not None
    assert answer.walked.edges == 0
    assert {item.record.namespace.agent for item in ask(bank=Bank(None, "other")).items} == {"other"}


def test_a_cold_record_is_found_by_a_name(memory: Storage) -> None:
    assert memory
    say(*SAID)
    know("Nora Lindqvist")
    drive()
    for _ in range(2):  # one step at a time
        run_pass(Namespace.of("atlas", "one"), policy(hot_capacity=0, warm_capacity=0, cooldown=None))
    answer = ask()
    assert {item.record.tier for item in answer.items} == {Tier.COLD}
    assert order(answer)[:2] == ["atlas.0", "atlas.1"]
