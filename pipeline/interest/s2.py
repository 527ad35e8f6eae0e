"""Stage s2: which points of a session belong together, and which stored points they touch. Writes nothing.

Every point of the session is in exactly one place of the result, whatever is shared with whatever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.interest.candidates import HistPoint, Point, normalize
from isotherm.pipeline.interest.pairs import Link, Relate, Side
from isotherm.pipeline.interest.s1 import side
from isotherm.pipeline.interest.vectors import cosines, groups, pairs_above

MERGE_SIM = 0.75  # between points of the session, strictly above
HIST_SIM = 0.80  # to stored points, strictly above
# Sessions of up to so many points are searched pair by pair for contradictions; of larger ones the nearest of each point.
COMPARED_WHOLE = 300
_NEAREST = 20

Matrix = NDArray[np.float64]
Contradicting = Callable[[Sequence[Side], Iterable[tuple[int, int]]], list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Component:
    """Points that belong together, and what they touch.

    Args: members: places in the session, ascending; hist: places in the history, each once, by best affinity; tense:
        whether two members contradict each other.
    """

    members: tuple[int, ...]
    hist: tuple[int, ...] = ()
    tense: bool = False

    @property
    def judged(self) -> bool:
        """Whether there is anything left to decide: s1 has judged the members of a component that touches nothing."""
        return bool(self.hist) or self.tense


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """Every point of the session, in exactly one place.

    Args: components: each to be judged alone; queues: components that share stored points, to be judged in this order;
        isolated: points that touch nothing, in order of input.
    """

    components: tuple[Component, ...] = ()
    queues: tuple[tuple[Component, ...], ...] = ()
    isolated: tuple[int, ...] = ()


@dataclass(slots=True)
class _Links:
    near: Matrix  # members x history, cosine
    hist: dict[int, set[int]] = field(default_factory=dict)  # member → history


def cluster(
    points: Sequence[Point],
    history: Sequence[HistPoint],
    relate: Relate | None = None,
    *,
    merge_sim: float = MERGE_SIM,
    hist_sim: float = HIST_SIM,
    known: Collection[tuple[int, UUID]] = (),
    proposed: Collection[tuple[int, UUID]] | None = None,
    contradicting: Contradicting | None = None,
) -> ClusterResult:
    """Group points and link them with history.

    Args: history: stored points near any of the points; relate: finds links that vectors do not show, above all
        contradictions; None means vectors alone; known: (place, id of a stored point) that share a statement; proposed: the
        only pairs that `relate` is asked about, None means all; contradicting: finds the pairs of a session that
        `relate` calls contradictory, for less; None means to ask `relate` about each.
    Cost: one matrix product each for the session and the history, and at most one comparison for each pair.
    """
    inside = cosines([p.vec for p in points], [p.vec for p in points])
    joined = pairs_above(inside, merge_sim)
    tense = _tensions(points, inside, relate, contradicting)
    parts = groups(len(points), joined + [(2.0, i, j) for i, j in tense])
    links = _Links(cosines([p.vec for p in points], [h.vec for h in history]))
    for i, j in _touching(points, history, links.near, relate, hist_sim, known, proposed):
        links.hist.setdefault(i, set()).add(j)
    found = [_part(members, links, tense) for members in parts]
    isolated = tuple(p.members[0] for p in found if len(p.members) == 1 and not p.hist)
    touching = [p for p in found if len(p.members) > 1 or p.hist]
    alone, queues = _queued(touching, links.near)
    return ClusterResult(tuple(alone), tuple(queues), isolated)


def touching(
    points: Sequence[Point],
    history: Sequence[HistPoint],
    relate: Relate | None = None,
    *,
    hist_sim: float = HIST_SIM,
    known: Collection[tuple[int, UUID]] = (),
    proposed: Collection[tuple[int, UUID]] | None = None,
) -> list[tuple[int, UUID]]:
    """Which points touch which stored ones, as `cluster` links them; of the others a run need not know any more.

    Args: as of `cluster`.
    """
    near = cosines([p.vec for p in points], [h.vec for h in history])
    return [(i, history[j].id) for i, j in _touching(points, history, near, relate, hist_sim, known, proposed)]


def _touching(
    points: Sequence[Point],
    history: Sequence[HistPoint],
    near: Matrix,
    relate: Relate | None,
    hist_sim: float,
    known: Collection[tuple[int, UUID]],
    proposed: Collection[tuple[int, UUID]] | None,
) -> list[tuple[int, int]]:
    places = {stored.id: j for j, stored in enumerate(history)}
    found = {(int(i), int(j)) for i, j in zip(*np.nonzero(near > hist_sim), strict=True)}
    found |= {(i, places[stored]) for i, stored in known if stored in places}
    named: dict[str, list[int]] = {}
    for j, stored in enumerate(history):
        named.setdefault(normalize(stored.name), []).append(j)
    found |= {(i, j) for i, p in enumerate(points) if p.candidate.name for j in named.get(p.candidate.name, ())}
    if relate is not None:
        asked = product(range(len(points)), range(len(history)))
        if proposed is not None:
            asked = ((i, places[stored]) for i, stored in proposed if stored in places)  # type: ignore[assignment]
        found |= {
            (i, j) for i, j in asked if (i, j) not in found and _related(points[i], history[j], near[i, j], relate)
        }
    return sorted(found)


def _related(point: Point, stored: HistPoint, near: float, relate: Relate) -> bool:
    other = Side(stored.name, stored.summary, stored.kind)
    return relate(side(point), other, _cosine(point, stored, near)).link is not Link.APART


def _tensions(
    points: Sequence[Point], inside: Matrix, relate: Relate | None, contradicting: Contradicting | None
) -> list[tuple[int, int]]:
    if relate is None:
        return []
    sides = [side(point) for point in points]
    pairs = _compared(len(points), inside)
    if contradicting is not None:
        return contradicting(sides, pairs)
    found = ((i, j, relate(sides[i], sides[j], _cosine(points[i], points[j], inside[i, j]))) for i, j in pairs)
    return [(i, j) for i, j, relation in found if relation.link is Link.CONTRADICTS]


def _compared(count: int, inside: Matrix) -> Iterable[tuple[int, int]]:
    """All pairs of a usual session; of a very large one those that are near to each other, so that the work stays linear."""
    if count <= COMPARED_WHOLE:
        return combinations(range(count), 2)
    nearest = np.argpartition(-inside, _NEAREST, axis=1)[:, : _NEAREST + 1]
    return sorted({(min(i, j), max(i, j)) for i, row in enumerate(nearest.tolist()) for j in row if i != j})


def _cosine(one: Point, other: Point | HistPoint, value: float) -> float | None:
    return float(value) if one.vec is not None and other.vec is not None else None


def _part(members: list[int], links: _Links, tense: Sequence[tuple[int, int]]) -> Component:
    hist = {j for i in members for j in links.hist.get(i, ())}
    ordered = sorted(hist, key=lambda j: (-max(links.near[i, j] for i in members), j))
    return Component(tuple(members), tuple(ordered), any(pair in tense for pair in combinations(members, 2)))


def _queued(parts: Sequence[Component], near: Matrix) -> tuple[list[Component], list[tuple[Component, ...]]]:
    """Parts that share stored points, directly or through others, make one queue, best affinity first."""
    owners: dict[int, list[int]] = {}
    for place, part in enumerate(parts):
        for j in part.hist:
            owners.setdefault(j, []).append(place)
    links = [(1.0, places[0], other) for places in owners.values() for other in places[1:]]
    shared = {j for j, places in owners.items() if len(places) > 1}

    def affinity(place: int) -> tuple[float, int]:
        part = parts[place]
        return (-max(near[i, j] for i in part.members for j in part.hist if j in shared), part.members[0])

    alone, queues = [], []
    for group in groups(len(parts), links):
        if len(group) == 1:
            alone.append(parts[group[0]])
        else:
            queues.append(tuple(parts[place] for place in sorted(group, key=affinity)))
    return alone, queues
