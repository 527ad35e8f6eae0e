"""Many writers, a graph that goes away, mirrors that are killed, and messages that come twice and in any order.

The short form runs with the other tests; ISOTHERM_STORM=2000 says how many writes a long one makes.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, check_brain, new, uid
from harness import all_final, outbox_is_empty, wait_until

from isotherm.pipeline import stages
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.errors import RejectedError
from isotherm.storage import brain_mirror
from isotherm.storage.brain_mirror import Drift
from isotherm.storage.graph.postgres import PostgresGraph
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import app
from isotherm.tasks.produce_brain import link, put_many, soft_delete, unlink

if TYPE_CHECKING:
    from conftest import Faults
    from harness import Process, Processes

pytestmark = pytest.mark.usefixtures("opened")

NAME = namespace_uuid(KNOWLEDGE)
WRITES = int(os.environ.get("ISOTHERM_STORM", "200"))
CALLERS = 4
OBJECTS = 15
LABELS = ("about", "owns")

_SENT = """
SELECT s.id, s.operation_id::text, o.trace_id::text FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE s.stage = 'brain.mirror' AND s.id > %(after)s ORDER BY s.id"""
_NODES = """SELECT id, revision, kind, title, terms, counts, length, vector IS NULL FROM graph_nodes
            WHERE NOT deleted ORDER BY id"""
_EDGES = """SELECT source, target, label, revision, properties, terms FROM graph_edges
            WHERE NOT deleted ORDER BY source, target, label"""
_TRUE_EDGES = """SELECT source, target, label, revision, note FROM brain_edges WHERE deleted_at IS NULL
                 ORDER BY source, target, label"""
_SHOWN_EDGES = (
    "SELECT source, target, label, revision, properties->>'note' FROM graph_edges WHERE NOT deleted ORDER BY 1, 2, 3"
)
_TRUE_NODES = """SELECT id, projected, kind, title FROM brain_objects WHERE parent_id IS NULL AND deleted_at IS NULL
                 ORDER BY id"""


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_LEASE": "2", "ISOTHERM_OUTBOX_GRACE": "1", "ISOTHERM_NUDGE_AFTER": "1"}


def graph_worker(faults: Faults, name: str, *, ready: bool = True) -> Process:
    apps = Path(__file__).parent / "apps"
    path = os.pathsep.join(filter(None, [str(apps), os.environ.get("PYTHONPATH")]))
    values = {"PYTHONPATH": path, "FAULTS": str(faults.folder)}
    return faults.processes.worker(name, app="faulty_brain", queues="graph", concurrency=2, ready=ready, **values)


def one_write(dice: random.Random, mine: range, everybody: range, turn: int) -> None:
    one, other, label = uid(dice.choice(mine)), dice.choice(everybody), dice.choice(LABELS)
    match dice.randrange(6):
        case 0 | 1:
            numbers = dice.sample(mine, 2)
            put_many(KNOWLEDGE, [new(n, f"title {turn}", f"said {n}", properties={"turn": turn}) for n in numbers])
        case 2 | 3:
            link(KNOWLEDGE, one, uid(other), label, note=f"note {turn}", role=f"role {turn % 3}")
        case 4:
            unlink(KNOWLEDGE, one, uid(other), label)
        case _:
            soft_delete(KNOWLEDGE, one)


def writes(caller: int) -> int:
    """A caller puts and deletes its own objects and links them with everybody's; returns how many writes were made."""
    dice, done, turn = random.Random(caller), 0, 0
    mine, everybody = range(caller * OBJECTS + 1, (caller + 1) * OBJECTS + 1), range(1, CALLERS * OBJECTS + 1)
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in mine])
    while done < WRITES // CALLERS:
        turn += 1
        try:
            one_write(dice, mine, everybody, turn)
        except RejectedError:
            continue  # what it names is not there now
        done += 1
    return done


class Storm(threading.Thread):
    """Sends every message of the mirror twice more, late and shuffled."""

    def __init__(self) -> None:
        super().__init__(name="storm", daemon=True)
        self.over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        dice, last = random.Random(7), 0
        held: list[dict[str, Any]] = []
        while not self.over.is_set() or held:
            rows = fetch_all(_SENT, {"after": last})
            last = max([last, *(row[0] for row in rows)])
            held += [{"step_id": i, "operation_id": operation, "trace_id": trace} for i, operation, trace in rows] * 2
            dice.shuffle(held)
            # The rest waits for others to overtake it.
            kept = 0 if self.over.is_set() else len(held) // 2
            for payload in held[kept:]:
                app.send_task(stages.BRAIN_MIRROR, args=[payload])
            self.sent += len(held) - kept
            del held[kept:]
            time.sleep(0.2)


@pytest.mark.timeout(180 + WRITES / 2)
def test_the_graph_is_in_step_by_itself_after_a_storm(faults: Faults, processes: Processes) -> None:
    processes.beat()
    graph_worker(faults, "graph1")
    processes.worker("others", queues="db,llm,maintenance", ready=False)
    spare = graph_worker(faults, "graph2", ready=False)
    storm = Storm()
    storm.start()
    with ThreadPoolExecutor(CALLERS) as callers:
        running = [callers.submit(writes, caller) for caller in range(CALLERS)]
        faults.set("graph-gate")
        faults.wait_inside(1)
        faults.set("graph-away")  # from now on it is away for those that are let in, too
        processes.running[1].kill_all()  # with a batch written before, and another one in its hands
        faults.clear("graph-gate")
        faults.set("open")
        spare.wait_ready()
        time.sleep(1)
        faults.clear("graph-away")
        assert sum(each.result() for each in running) == WRITES // CALLERS * CALLERS
    storm.over.set()
    storm.join()
    begun = time.monotonic()
    wait_until(lambda: all_final() and outbox_is_empty(), 60 + WRITES / 4, "every operation")
    took = time.monotonic() - begun
    sys.stdout.write(f"{WRITES} writes, {storm.sent} messages more: in step {took:.1f} s after the last\n")
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]
    in_step()


def in_step() -> None:
    """Nothing differs, nothing was repaired, and a graph that is made anew is the same one."""
    graph, place = PostgresGraph(), namespaces.find(KNOWLEDGE)
    assert place is not None
    assert brain_mirror.compare(graph, place.namespace_id, NAME) == Drift()
    assert fetch_all("SELECT coalesce(sum(nodes + edges), 0) FROM brain_drift") == [(0,)]
    nodes, edges = fetch_all(_NODES), fetch_all(_EDGES)
    assert [row[:4] for row in nodes] == fetch_all(_TRUE_NODES)
    assert fetch_all(_SHOWN_EDGES) == fetch_all(_TRUE_EDGES)
    assert edges
    assert brain_mirror.rebuild(graph, place.namespace_id, NAME).discarded == 0
    assert (fetch_all(_NODES), fetch_all(_EDGES)) == (nodes, edges)
    check_brain()
