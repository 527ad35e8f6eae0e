"""Whose rows a transaction may touch, as code says it and as it is sent."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.storage.postgres import reach
from isotherm.storage.postgres.namespaces import Place, Scope
from isotherm.storage.postgres.reach import graph_of, of_operation, of_owner, over_all, reaching, system, working

OURS = Namespace.of("atlas", "s1", tenant="acme")


class Sent:
    """A connection that keeps what it is sent."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def execute(self, statement: str, values: dict[str, Any] | None = None) -> None:
        assert "acme" not in statement, "a name is a part of a statement"
        self.values.append("all" if reach.SYSTEM in statement else values)


def sent() -> Any:
    conn = Sent()
    reach.enter(conn)  # type: ignore[arg-type]  # what it does not use is not there
    assert len(conn.values) <= 1
    return conn.values[0] if conn.values else None


@dataclass(frozen=True)
class Step:
    stage: str
    bank_id: int | None = None
    namespace_id: int | None = None


def numbers(namespaces: str = "{}", banks: str = "{}", whole: str = "{}", graphs: str = "{}") -> dict[str, str]:
    return {"namespaces": namespaces, "banks": banks, "whole": whole, "graphs": graphs}


def test_nothing_is_in_reach_until_somebody_says_so_and_after_he_has() -> None:
    assert sent() is None
    with system():
        assert sent() == "all"
        with reaching(OURS):
            assert sent() == {
                "tenant": "acme",
                "scope": "session",
                "agent": "atlas",
                "session": "s1",
                "run": None,
                "graphs": "{}",
            }
        assert sent() == "all"
        with reaching(OURS.bank):
            assert sent()["scope"] is None
        with reaching(Place(7, 3)):
            assert sent() == numbers("{7}", "{3}")
    assert sent() is None


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ((Step(stages.INDEX, 3, 7),), numbers("{7}", "{3}")),
        ((Step(stages.INDEX, 3),), numbers(banks="{3}", whole="{3}")),
        ((Step(stages.PLAN, None, 7),), numbers("{7}")),
        ((Step(stages.V1_3_PERSIST, 3, 7),), numbers(banks="{3}", whole="{3}")),
        ((Step(stages.BRAIN_MIRROR, 3, 7), Step(stages.BRAIN_MIRROR, 4, 8)), numbers("{7,8}", "{3,4}")),
        ((Step(stages.FORGET),), "all"),
        ((Step(stages.PLAN),), "all"),
        ((Step(stages.BRAIN_EMBED),), None),
        ((Step(stages.V1_3_PERSIST),), None),
    ],
)
def test_a_stage_reaches_what_its_operations_belong_to(work: tuple[Step, ...], expected: Any) -> None:
    with working(*work):
        assert sent() == expected


def test_a_graph_comes_beside_what_is_in_reach() -> None:
    with graph_of(UUID(int=1)):
        assert sent() == numbers(graphs=f"{{{UUID(int=1)}}}")
    with reaching(OURS), graph_of(UUID(int=1)):
        assert (sent()["agent"], sent()["graphs"]) == ("atlas", f"{{{UUID(int=1)}}}")
    with system(), graph_of(UUID(int=1)):
        assert sent() == "all"


def test_verbs_reach_what_they_are_given() -> None:
    class Verbs:
        @of_owner
        def read(self, owner: Any) -> Any:  # noqa: ARG002 - it is what says who owns
            return sent()

        @of_operation
        def write(self, new: Step) -> Any:  # noqa: ARG002 - the same
            return sent()

        @over_all
        def count(self) -> Any:
            return sent()

    verbs = Verbs()
    assert verbs.read(OURS)["session"] == "s1"
    assert verbs.read(owner=OURS)["session"] == "s1"
    assert verbs.read(Scope(bank=Bank("acme", "atlas"), sessions=("s1",)))["scope"] is None
    assert verbs.read(Scope(namespace=OURS))["session"] == "s1"
    assert verbs.write(Step("", 3, 7)) == numbers("{7}", "{3}")
    assert verbs.count() == "all"
    with system():
        assert verbs.read("no owner") is None
    with pytest.raises(RejectedError):
        verbs.read(Namespace(agent=""))


def test_a_thread_begins_with_nothing() -> None:
    seen: list[Any] = []
    with system():
        thread = threading.Thread(target=lambda: seen.append(sent()))
        thread.start()
        thread.join()
    assert seen == [None]
