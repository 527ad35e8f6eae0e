from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `run` of the benches, which import each other by bare names; they are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("run")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[name]


def test_bench_that_breaks_off_keeps_its_figures_and_those_of_the_others(run: Any) -> None:
    def line(name: str) -> Any:
        return run.Line("of", name, 1.0, "ms", "lower")

    def breaks() -> Iterator[Any]:
        yield line("second")
        raise TimeoutError("waited 20 s\nfor an answer")

    lines = [line("first")]
    broken = run.collect("breaks", breaks, lines) | run.collect("whole", lambda: [line("third")], lines)

    assert [each.name for each in lines] == ["first", "second", "third"]
    assert broken == {"breaks": "TimeoutError: waited 20 s for an answer"}
