"""A run that kills its process each time it has an answer: it ends dead, what it asked is bounded, and others go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import outbox_is_empty, steps_of, tick_until
from model_server import Script
from sessions import ingest, session
from topic_judge import TopicJudge, about, environment_of, name_of, text_of, topic_server

from isotherm.pipeline.identity import Bank
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from conftest import Faults

pytestmark = pytest.mark.usefixtures("opened")
ATTEMPTS = 3


@pytest.fixture
def server() -> Iterator[Script]:
    with topic_server(TopicJudge()) as script:
        yield script


@pytest.fixture
def pace(server: Script) -> dict[str, str]:
    return {
        **environment_of(server),
        "ISOTHERM_LEASE": "1",
        "ISOTHERM_RETRY_BASE": "0.1",
        "ISOTHERM_OUTBOX_GRACE": "0.5",
        "ISOTHERM_NUDGE_AFTER": "0.5",
        "ISOTHERM_MAX_ATTEMPTS": str(ATTEMPTS),
    }


def test_a_run_that_kills_its_process_at_each_answer_asks_no_more_often_than_it_may_be_tried(
    faults: Faults, server: Script
) -> None:
    poison, fine = (
        ingest(session("s1", *about("kelp", "nori", who=f"({agent})"), day=0, agent=agent)) for agent in ("eve", "kim")
    )
    faults.set(f"kill-{poison}-answered-interest_extract")
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "apps"), os.environ.get("PYTHONPATH")]))
    faults.processes.worker(app="faulty_interest", concurrency=1, PYTHONPATH=path, FAULTS=str(faults.folder))
    tick_until(lambda: all(producers.operation(one).final for one in (poison, fine)), 60, "both runs")
    tick_until(outbox_is_empty, what="the outbox to be empty")
    assert producers.operation(fine).state == "done"
    assert producers.operation(poison).state == "partial", "its records are found all the same"
    assert [step.attempts for step in steps_of(poison) if step.state == "dead"] == [ATTEMPTS]
    asked = [one for one in list(server.asked) if name_of(one) == "interest_extract" and "(eve)" in text_of(one)]
    assert len(asked) == ATTEMPTS
    assert fetch_all("SELECT count(*) FROM operation_steps WHERE state IN ('pending', 'running')") == [(0,)]
    assert producers.interests(Bank(None, "kim"))
