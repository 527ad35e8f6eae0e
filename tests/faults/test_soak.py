"""A short soak: everything is hurt for half a minute, and nothing is lost. `make soak` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import soak_check
import soak_interest
import soak_model
from soak_check import Verdict
from soak_injuries import plan, possible

from isotherm.tasks import producers


@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_stuck_adrift_or_left_over() -> None:
    soak = Path(__file__).parent / "soak.py"
    command = [sys.executable, str(soak), "--faults", "20", "--operations", "200", "--seed", "11", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=380)
    assert done.stdout, done.stderr[-3_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert {name: told[name] for name in ("lost", "doubled", "stuck", "drift", "residue")} == {
        "lost": [], "doubled": [], "stuck": [], "drift": [], "residue": [],
    }  # fmt: skip
    assert (told["faults"], told["operations"] >= 200, done.returncode) == (20, True, 0)


@pytest.mark.parametrize("rabbit", [False, True])
def test_seed_makes_the_same_plan_and_every_injury_has_its_turn(rabbit: bool) -> None:  # noqa: FBT001
    first, again = plan(3, rabbit=rabbit), plan(3, rabbit=rabbit)
    names = [next(first)[0] for _ in range(600)]
    assert names == [next(again)[0] for _ in range(600)]
    assert set(names) == set(possible(rabbit=rabbit))


def test_every_producer_is_called_in_a_soak() -> None:
    sources = "".join(file.read_text() for file in Path(__file__).parent.glob("soak_*.py"))
    # Not a call, what a program does when it ends, and what locks every table for as long as it takes.
    others = {"MAX_BATCH", "Accepted", "flush", "rewrite_files"}
    assert {name for name in producers.__all__ if f"producers.{name}" not in sources} <= others


def test_what_a_model_left_out_of_an_answer_that_broke_off_is_known() -> None:
    items = [{"topic": topic, "reason": "r"} for topic in ("one", "two", "three")]
    whole = json.dumps({"items": items})
    assert soak_model._left_out(items, len(whole)) == set()
    assert soak_model._left_out(items, len(whole) - 3) == {"three"}
    assert soak_model._left_out(items, len(json.dumps(items[0])) + len('{"items": [')) == {"two", "three"}
    assert soak_model._left_out(items, 10) == set()


def test_interest_that_was_told_anew_is_known_by_what_was_said() -> None:
    assert (
        soak_interest.thing("Tell me about antibsmse.")
        == soak_interest.thing("antibsms")
        != soak_interest.thing("bsms")
    )


@pytest.mark.parametrize(
    ("stored", "finding"),
    [
        ({}, "gone"),
        ({"a": "other"}, "not what was stored last"),
        ({"a": "text", "b": "more"}, "should not be"),
    ],
)
def test_check_finds_what_differs_from_the_model(stored: dict[str, str], finding: str) -> None:
    verdict = Verdict()
    soak_check._same(verdict, "record", {"a": "text"}, stored)
    assert not verdict
    assert finding in (verdict.lost + verdict.residue)[0]


def test_check_finds_operations_that_vanished_or_ended_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_check, "fetch_all", lambda *_: [(1, "dead", "killed"), (2, "done", None)])
    verdict = Verdict()
    caller = SimpleNamespace(operations={1, 2, 3}, gone={4}, cancelled={2})
    soak_check._operations(verdict, caller)  # type: ignore[arg-type]
    assert verdict.lost == ["operation 3 was accepted and is gone"]
    assert verdict.stuck == ["operation 1 is dead: killed"]
