from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from harness import StepRow, outbox_is_empty, steps_of, tick_until, wait_until
from model_server import Answer, Script, model_server, vectors

from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from harness import Processes

NS = Namespace.of("atlas", "s1")
VECTOR = vectors((0, [0.0, 3.0, 0.0, 4.0]))
# Longer than a call waits by itself, so that the step has to.
BUSY = Answer({"error": {}}, status=503, headers={"Retry-After": "60"})


@pytest.fixture
def script() -> Iterator[Script]:
    with model_server(VECTOR) as found:
        yield found


@pytest.fixture
def pace(script: Script) -> dict[str, str]:
    return {
        "ISOTHERM_EMBEDDER": "openai",
        "ISOTHERM_EMBEDDER_URL": script.url,
        "ISOTHERM_EMBEDDER_MODEL": "tiny",
        "ISOTHERM_EMBEDDER_DIMENSION": "4",
        "ISOTHERM_LEASE": "1.5",
        "ISOTHERM_OUTBOX_GRACE": "1",
        "ISOTHERM_NUDGE_AFTER": "1",
    }


def embedding(operation_id: UUID) -> StepRow:
    [step] = [step for step in steps_of(operation_id) if step.stage == "tier.embed"]
    return step


def assert_embedded_once(operation_id: UUID) -> None:
    tick_until(lambda: producers.operation(operation_id).final, what="the record to be embedded")
    tick_until(outbox_is_empty, what="the outbox to be empty")
    assert producers.operation(operation_id).state == "done"
    assert embedding(operation_id).receipt == {"records": 1, "embedded": 1}
    rows = fetch_all(
        "SELECT vector_state, model, dim, vector::text FROM tier_records JOIN tier_vectors ON record_key = key"
    )
    assert rows == [("done", "tiny", 4, "[0,0.60009766,0,0.7998047]")]


@pytest.mark.usefixtures("opened")
def test_child_killed_while_it_embeds_is_replaced_and_the_vector_is_written_once(
    script: Script, processes: Processes
) -> None:
    script.answers = [Answer(silent=True), VECTOR]
    worker = processes.worker()
    operation_id = producers.remember(NS, "kelp").operation_id
    wait_until(lambda: script.asked, what="the model to be asked")
    os.kill(int(str(embedding(operation_id).owner).rpartition(":")[2]), signal.SIGKILL)
    assert_embedded_once(operation_id)
    assert (embedding(operation_id).attempts, len(script.asked)) == (2, 2)
    wait_until(lambda: "tier.records_embedded" in worker.output(), what="its event, which follows the commit")
    assert worker.output().count("tier.records_embedded") == 1


@pytest.mark.usefixtures("opened")
def test_busy_embedder_is_waited_for_and_never_counts_as_an_attempt(script: Script, processes: Processes) -> None:
    script.answers = [BUSY, BUSY, BUSY, VECTOR]
    processes.worker()
    operation_id = producers.remember(NS, "kelp").operation_id
    assert_embedded_once(operation_id)
    step = embedding(operation_id)
    assert (step.waits, step.attempts, step.last_error) == (3, 1, "embeddings: the model server answered 503")
    [found] = producers.recall(NS, "something else").items
    assert found.score.cosine == pytest.approx(1.0, abs=1e-3)
