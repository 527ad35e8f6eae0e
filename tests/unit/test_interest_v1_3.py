from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.interest.candidates import (
    Action,
    Candidate,
    Contradiction,
    Decision,
    HistPoint,
    Outcome,
    Point,
    Source,
    Status,
)
from isotherm.pipeline.interest.freshness import Freshness, freshness, reliability
from isotherm.pipeline.interest.ranking import score
from isotherm.pipeline.interest.v1_3 import Edge, Plan, Standing, Stored, current_side, plan, point_id

BEGUN = datetime(2026, 3, 1, tzinfo=UTC)
H1, H2 = UUID(int=1), UUID(int=2)
X, Y = b"x" * 32, b"y" * 32


def p(topic: str, *vec: float, n: int = 0) -> Point:
    source = Source(1, n, f"m{n}", n, BEGUN + timedelta(minutes=n), 0, 0, f"{n:032x}")
    return Point(Candidate(topic, sources=(source,)), np.array(vec, dtype=np.float32) if vec else None)


def h(id_: UUID, name: str, *vec: float) -> HistPoint:
    return HistPoint(id_, name, "", version=3, vec=np.array(vec, dtype=np.float32) if vec else None)


def planned(*decisions: Decision, points: dict[str, Point], hist: tuple[HistPoint, ...] = (), **more: object) -> Plan:
    told = more.pop("told", ())
    stored = Stored(X, **more)  # type: ignore[arg-type]
    return plan(points, [Outcome(tuple(decisions), told)], hist, stored)  # type: ignore[arg-type]


def test_interest_pe_1_a_new_point_and_a_stored_one_that_grows() -> None:
    found = planned(
        Decision(("p0",)),
        Decision(("p1",), target=str(H1)),
        points={"p0": p("n1", 1, 0), "p1": p("more", 0, 1)},
        hist=(h(H1, "h1", 0.9, 0.1),),
    )
    assert [(f.action, f.id) for f in found.points] == [(Action.CREATE, point_id(X, "n1", 0)), (Action.UPDATE, H1)]
    assert found.points[1].version == 3


def test_interest_pe_2_and_x_14_an_archived_point_leads_to_its_successor() -> None:
    found = planned(Decision(("p0",), archives=(str(H1),)), points={"p0": p("n1", 1, 0)}, hist=(h(H1, "h1", 1, 0),))
    [new] = found.points
    assert found.archived == [H1]
    assert found.edges == (Edge(H1, new.id, "sequel"),)


def test_interest_pe_3_and_x_9_contradictions_are_known_by_their_ordered_pair() -> None:
    points = {"p0": p("a"), "p1": p("b")}
    told = (
        Contradiction("p0", str(H1), "r", ("mine", "stored")),
        Contradiction(str(H1), "p0", "r", ("stored", "mine")),
        Contradiction("p1", str(H1), "r"),
    )
    found = planned(Decision(("p0",)), Decision(("p1",)), points=points, hist=(h(H1, "h1"),), told=told)
    assert len({t.id for t in found.tensions}) == len(found.tensions) == 2
    assert all(t.left < t.right for t in found.tensions)
    [first] = [t for t in found.tensions if "mine" in t.words]
    assert first.words[first.left != H1] == "stored"


def test_interest_pe_4_pe_5_and_b_4_points_alike_from_one_half_on_are_related() -> None:
    points = {"p0": p("a", 1, 0, 0, 0), "p1": p("b", 1, 1, 1, 1), "p2": p("c", 0, -1, 0, 0)}
    [edge] = planned(*(Decision((name,)) for name in points), points=points).edges
    assert {edge.source, edge.target} == {point_id(X, "a", 0), point_id(X, "b", 0)}
    assert (edge.kind, edge.weight) == ("related", 0.5)


def test_interest_x_8_a_renamed_point_has_its_contradiction_under_its_final_id() -> None:
    told = (Contradiction("p0", str(H1), "model"),)
    found = planned(Decision(("p0",), topic="renamed"), points={"p0": p("a")}, hist=(h(H1, "h1"),), told=told)
    [tension] = found.tensions
    assert {tension.left, tension.right} == {H1, point_id(X, "renamed", 0)}


def test_interest_x_10_one_name_in_two_banks_is_two_points() -> None:
    assert point_id(X, "kelp", 0) != point_id(Y, "kelp", 0)
    assert point_id(X, "kelp", 0) != point_id(X, "kelp", 1)
    assert point_id(X, "kelp", 0).version == 5


def test_interest_x_15_two_decisions_about_one_point_are_written_once() -> None:
    points = {"p0": p("a", 1, 0, n=1), "p1": p("b", 1, 0, n=2)}
    found = planned(
        Decision(("p0",), target=str(H1)), Decision(("p1",), target=str(H1)), points=points, hist=(h(H1, "h1", 1, 0),)
    )
    [one] = found.points
    assert [s.record_key for s in one.candidate.sources] == [1, 2]
    assert found.edges == ()


def test_two_new_points_of_one_name_and_one_of_a_name_used_before_get_ids_of_their_own() -> None:
    points = {"p0": p("a"), "p1": p("A")}
    found = planned(Decision(("p0",)), Decision(("p1",)), points=points, used={"a": 2})
    assert [f.id for f in found.points] == [point_id(X, "a", 2), point_id(X, "a", 3)]


def test_a_name_that_was_archived_comes_back_as_a_new_point_with_a_link_from_the_old() -> None:
    found = planned(Decision(("p0",)), points={"p0": p("a")}, used={"a": 1}, retired={"a": [H2]})
    [new] = found.points
    assert (new.revival, new.succeeds) == (1, (H2,))
    assert Edge(H2, new.id, "sequel") in found.edges


def test_a_run_that_is_repeated_in_part_finds_what_it_wrote() -> None:
    found = planned(Decision(("p0",)), points={"p0": p("a")}, used={"a": 1}, stated={"p0": [H1]})
    assert [(f.action, f.id) for f in found.points] == [(Action.UPDATE, H1)]
    merged = planned(
        Decision(("p0",), target=str(H2)),
        points={"p0": p("a")},
        hist=(h(H2, "h2"),),
        stated={"p0": [H1]},
        pending=frozenset({H1}),
    )
    assert [(f.id, f.succeeds) for f in merged.points] == [(H2, (H1,))]


KEYS = st.sampled_from(["p0", "p1", "p2", "p3", str(H1)])
DECISIONS = st.permutations(["p0", "p1", "p2", "p3"]).flatmap(
    lambda order: st.tuples(*(st.builds(Decision, st.just((o,)), target=st.none() | KEYS) for o in order[:3]))
)


@given(DECISIONS)
def test_nothing_that_was_said_is_lost_whatever_was_decided(decisions: tuple[Decision, ...]) -> None:
    points = {f"p{n}": p(f"t{n}", 1, n, n=n) for n in range(4)}
    found = planned(*decisions, points=points, hist=(h(H1, "h1", 1, 0),))
    assert len({f.id for f in found.points}) == len(found.points)
    assert sorted(s.record_key for f in found.points for s in f.candidate.sources) == [0, 1, 2, 3]
    assert all(e.source != e.target for e in found.edges)
    undecided = {f"p{n}" for n in range(4)} - {d.members[0] for d in decisions}
    waiting = [f for f in found.points if f.status is Status.PENDING_REVIEW]
    assert len(waiting) == len(undecided)


def side(days: int | None, reliable: float = 0.5, sure: float = 0.5) -> Standing:
    return Standing(None if days is None else BEGUN + timedelta(days=days), reliable, sure)


def test_the_side_that_counts_was_said_later_or_is_more_reliable_or_was_read_more_surely() -> None:
    assert current_side(side(1, 0.9, 0.9), side(2)) == ("right", "said later")
    assert current_side(side(1, 0.6), side(1, 0.5, 0.9)) == ("left", "more reliable")
    assert current_side(side(None, 0.5, 0.6), side(1, 0.5, 0.5)) == ("left", "read more surely")
    assert current_side(side(1), side(1)) == ("", "undecided")


@given(st.builds(side, st.none() | st.integers(0, 3), st.sampled_from([0.5, 0.6]), st.sampled_from([0.5, 0.6])),
       st.builds(side, st.none() | st.integers(0, 3), st.sampled_from([0.5, 0.6]), st.sampled_from([0.5, 0.6])))  # fmt: skip
def test_swapping_the_sides_swaps_the_answer_and_nothing_else(left: Standing, right: Standing) -> None:
    there, back = current_side(left, right), current_side(right, left)
    assert there[1] == back[1]
    assert {there[0], back[0]} in ({"left", "right"}, {""})


def test_freshness_is_fresh_for_a_lifetime_and_aging_for_another() -> None:
    ttl = timedelta(days=30)
    assert [freshness(BEGUN, ttl, BEGUN + timedelta(days=d)) for d in (-1, 30, 31, 60, 61)] == [
        Freshness.FRESH, Freshness.FRESH, Freshness.AGING, Freshness.AGING, Freshness.STALE,
    ]  # fmt: skip
    assert freshness(BEGUN, None, BEGUN + timedelta(days=91)) is Freshness.AGING


@given(st.integers(0, 1_000))
def test_reliability_grows_with_every_session_and_stays_below_one(sessions: int) -> None:
    assert 0 <= reliability(sessions) < reliability(sessions + 1) < 1


@given(st.floats(-1, 2), st.sampled_from(Freshness), st.integers(-1, 50), st.floats(-1, 2))
def test_scores_lie_between_zero_and_one_and_more_likeness_never_counts_less(
    likeness: float, fresh: Freshness, sessions: int, reliable: float
) -> None:
    one = score(likeness, fresh, sessions, reliable)
    assert 0 <= one.total <= 1 + 1e-9
    assert score(likeness + 0.1, fresh, sessions, reliable).total >= one.total
