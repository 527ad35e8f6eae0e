from __future__ import annotations

import math
from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.interest.candidates import Candidate, HistPoint, Point
from isotherm.pipeline.interest.pairs import Link, Relation, Side, contradictions_by_rules, relate_by_rules
from isotherm.pipeline.interest.s2 import ClusterResult, Component, cluster, touching


def p(topic: str, *vec: float) -> Point:
    return Point(Candidate(topic), np.array(vec, dtype=np.float32))


def h(name: str, *vec: float) -> HistPoint:
    return HistPoint(UUID(int=len(name) * 1_000 + ord(name[-1])), name, "", vec=np.array(vec, dtype=np.float32))


def at(degrees: float) -> tuple[float, float]:
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def placed(found: ClusterResult) -> list[int]:
    components = [*found.components, *(c for queue in found.queues for c in queue)]
    return sorted([*found.isolated, *(i for c in components for i in c.members)])


def test_interest_s2_1_points_that_are_alike_are_a_component_and_the_rest_is_isolated() -> None:
    found = cluster([p("A", 1, 0), p("B", 0.9, 0.1), p("C", 0, 1)], [])
    assert found == ClusterResult((Component((0, 1)),), (), (2,))


def test_interest_s2_2_a_stored_point_that_is_near_is_linked() -> None:
    assert cluster([p("A", 1, 0)], [h("h1", 0.9, 0.1)]).components == (Component((0,), (0,)),)


def test_interest_s2_3_components_that_share_history_make_a_queue_by_affinity() -> None:
    found = cluster([p("b", 0.4, 0.9, 0), p("a", 1, 0, 0)], [h("b1", 0.85, 0.5, 0)])
    assert found == ClusterResult((), ((Component((1,), (0,)), Component((0,), (0,))),), ())


def test_interest_s2_4_history_of_one_component_is_no_conflict() -> None:
    found = cluster([p("M", 1, 0)], [h("h2", 0.95, 0.2), h("h1", 0.99, 0.1)])
    assert found == ClusterResult((Component((0,), (1, 0)),), (), ())


def test_interest_b_2_and_b_3_cosines_of_exactly_the_threshold_do_not_link() -> None:
    assert cluster([p("x", 1, 0, 0, 0, 0), p("y", 3, 2, 1, 1, 1)], []).isolated == (0, 1)
    assert cluster([p("x", 1, 0)], [h("h1", 4, 3)]).isolated == (0,)


def test_interest_x_1_two_members_with_one_stored_point_are_not_lost() -> None:
    found = cluster([p("m1", 1, 0), p("m2", 4, 1)], [h("h1", 8, 1)])
    assert found == ClusterResult((Component((0, 1), (0,)),), (), ())


def test_interest_x_2_a_chain_of_shared_history_is_one_queue_with_everybody_in_it() -> None:
    points = [p("A", *at(0)), p("B", *at(50)), p("C", *at(100))]
    found = cluster(points, [h("h1", *at(25)), h("h2", *at(75))])
    [queue] = found.queues
    assert sorted(c.members[0] for c in queue) == [0, 1, 2]
    assert not found.components
    assert not found.isolated


def test_points_without_vectors_are_linked_by_name_and_by_what_the_rules_see() -> None:
    points = [Point(Candidate("Kelp")), Point(Candidate("vegetarian")), Point(Candidate("tea"))]
    history = [HistPoint(UUID(int=1), " kelp", ""), HistPoint(UUID(int=2), "eats fish again", "")]
    found = cluster(points, history, relate_by_rules)
    assert found == ClusterResult((Component((0,), (0,)), Component((1,), (1,))), (), (2,))


def test_a_contradiction_inside_a_session_is_judged_even_without_history() -> None:
    found = cluster([p("Postgres 15", 1, 0), p("tea", 1, 1), p("Postgres 17", 0, 1)], [], relate_by_rules)
    [component] = found.components
    assert (component.members, component.tense, component.judged) == ((0, 2), True, True)
    assert found.isolated == (1,)


def test_a_shared_statement_links_whatever_the_vectors_say() -> None:
    stored = h("h1", 0, 1)
    assert cluster([p("x", 1, 0)], [stored]).isolated == (0,)
    assert cluster([p("x", 1, 0)], [stored], known=[(0, stored.id)]).components == (Component((0,), (0,)),)


def test_only_proposed_pairs_are_compared_by_rules() -> None:
    points, stored = [Point(Candidate("vegetarian"))], HistPoint(UUID(int=2), "eats fish again", "")
    assert cluster(points, [stored], relate_by_rules, proposed=set()).isolated == (0,)
    assert cluster(points, [stored], relate_by_rules, proposed={(0, stored.id)}).components


VECTOR = st.tuples(*[st.integers(-3, 3)] * 3)
POINTS = st.lists(VECTOR, max_size=10)


def made(vectors: Sequence[tuple[int, ...]]) -> list[Point]:
    return [p(f"t{n}", *v) for n, v in enumerate(vectors)]


def stored_of(vectors: Sequence[tuple[int, ...]]) -> list[HistPoint]:
    return [HistPoint(UUID(int=n), f"stored {n}", "", vec=np.array(v, dtype=np.float32)) for n, v in enumerate(vectors)]


@given(POINTS, POINTS)
def test_every_point_is_in_exactly_one_place(current: list[tuple[int, ...]], history: list[tuple[int, ...]]) -> None:
    found = cluster(made(current), stored_of(history))
    assert placed(found) == list(range(len(current)))
    for component in [*found.components, *(c for queue in found.queues for c in queue)]:
        assert len(set(component.hist)) == len(component.hist)
        assert len(component.members) > 1 or component.hist


@given(POINTS, POINTS)
def test_what_shares_a_stored_point_is_never_judged_side_by_side(
    current: list[tuple[int, ...]], history: list[tuple[int, ...]]
) -> None:
    found = cluster(made(current), stored_of(history))
    lines = [[c] for c in found.components] + [list(queue) for queue in found.queues]
    seen: set[int] = set()
    for line in lines:
        mine = {j for component in line for j in component.hist}
        assert not mine & seen
        seen |= mine


@given(POINTS, POINTS, st.randoms(use_true_random=False))
def test_the_order_of_the_points_does_not_matter(
    current: list[tuple[int, ...]], history: list[tuple[int, ...]], random: object
) -> None:
    order = list(range(len(current)))
    random.shuffle(order)  # type: ignore[attr-defined]
    stored = stored_of(history)
    one = cluster(made(current), stored)
    other = cluster([made(current)[i] for i in order], stored)

    def named(found: ClusterResult, names: Sequence[int]) -> tuple[set[object], set[object], set[int]]:
        def of(c: Component) -> tuple[frozenset[int], frozenset[int]]:
            return frozenset(names[i] for i in c.members), frozenset(c.hist)

        queues = {frozenset(map(of, queue)) for queue in found.queues}
        return {of(c) for c in found.components}, set(queues), {names[i] for i in found.isolated}

    assert named(one, range(len(current))) == named(other, order)


def test_a_very_large_session_is_searched_for_contradictions_among_what_is_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("isotherm.pipeline.interest.s2.COMPARED_WHOLE", 10)
    monkeypatch.setattr("isotherm.pipeline.interest.s2._NEAREST", 3)
    asked = []

    def relate(left: Side, right: Side, cosine: float | None) -> Relation:
        asked.append((left.topic, right.topic))
        return relate_by_rules(left, right, cosine)

    points = [p(f"thing {n}", *np.eye(20)[n]) for n in range(18)]
    points += [p("likes dark mode", *np.eye(20)[18]), p("likes light mode", *(np.eye(20)[18] + 0.6 * np.eye(20)[19]))]
    found = cluster(points, [], relate)
    assert len(asked) < len(points) * 4
    assert Component((18, 19), (), tense=True) in found.components
    assert placed(found) == list(range(20))


def test_what_touches_a_stored_point_is_what_the_whole_comparison_finds() -> None:
    points, history = [p("a", *at(0)), p("b", *at(90)), p("dark mode", *at(180))], [h("h1", *at(10)), h("b", *at(200))]
    found = touching(points, history, relate_by_rules, known=[(1, history[0].id)], proposed=[])
    assert found == [(0, history[0].id), (1, history[0].id), (1, history[1].id), (2, history[1].id)]
    assert cluster(points, history, relate_by_rules, known=found, proposed=()) == cluster(
        points, history, relate_by_rules, known=[(1, history[0].id)], proposed=[]
    )


SAID = st.sampled_from([
    "likes coffee", "no longer drinks coffee", "dark mode", "light mode", "uses Postgres 15", "uses Postgres 16",
    "vegetarian", "eats fish again", "lives in Berlin", "moved to Munich", "gym on Monday", "gym on Friday", "kelp", "",
])  # fmt: skip


@given(st.lists(st.builds(Side, SAID, st.one_of(st.just(""), SAID)), max_size=8))
def test_contradictions_of_a_session_are_those_that_pairs_have_by_themselves(sides: list[Side]) -> None:
    pairs = [(i, j) for i in range(len(sides)) for j in range(i)]
    alone = [(i, j) for i, j in pairs if relate_by_rules(sides[i], sides[j], 0.5).link is Link.CONTRADICTS]
    assert contradictions_by_rules(sides, pairs) == alone


def test_a_cheaper_way_to_find_contradictions_gives_the_same_clusters() -> None:
    points = [p("dark mode", 1, 0), p("light mode", 0.9, 0.1), p("kelp", 0, 1)]
    asked = cluster(points, [], relate_by_rules)
    assert asked.components[0].tense
    assert cluster(points, [], relate_by_rules, contradicting=contradictions_by_rules) == asked
