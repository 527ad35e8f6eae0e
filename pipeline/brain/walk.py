"""Walking a graph within a budget: what was asked, what came of it, and which way leads to whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from uuid import UUID

from isotherm.pipeline.brain.links import EdgeKey

HOPS: Final = 4
CALLS: Final = 64
NEIGHBORS: Final = 50


class Direction(StrEnum):
    """Which edges of an object are followed: those that leave it, those that reach it, or both."""

    OUT = "out"
    IN = "in"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Neighbor:
    """One step from an object: over which edge, in which direction as seen from there, and to whom."""

    seed: UUID
    peer: UUID
    label: str
    direction: Direction
    key: EdgeKey


@dataclass(frozen=True, slots=True)
class Budget:
    """How far a walk goes.

    Args: hops: steps from the seed; calls: objects whose neighbors are asked for, seeds included; neighbors: most steps
        from each of them.
    """

    hops: int = 1
    calls: int = CALLS
    neighbors: int = NEIGHBORS

    def clamped(self, most: int = HOPS) -> tuple[Budget, bool]:
        """The budget with at least one hop and at most `most`, and whether hops were cut."""
        return replace(self, hops=min(max(self.hops, 1), most)), self.hops > most


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk saw: the steps of every object that was asked.

    Args: truncated: some object was not asked, or had more steps than it could tell.
    """

    steps: Mapping[UUID, Sequence[Neighbor]]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A peer, every step that leads to it, and how many hops away it is."""

    peer: UUID
    steps: tuple[Neighbor, ...]
    depth: int = 1


def walk_by_hops(
    ask: Callable[[Sequence[UUID], int], Sequence[Neighbor]], seeds: Sequence[UUID], budget: Budget
) -> Walked:
    """Walk with one call for each hop.

    Args: ask: gives the steps of some objects, at most so many from each.
    """
    seen: dict[UUID, list[Neighbor]] = {}
    frontier, truncated = list(dict.fromkeys(seeds)), False
    for _ in range(budget.hops):
        now = frontier[: max(budget.calls - len(seen), 0)]
        truncated |= len(now) < len(frontier)
        if not now:
            break
        came, full = _by_seed(now, ask(now, budget.neighbors + 1), budget.neighbors)
        seen |= came
        truncated |= full
        frontier = list(dict.fromkeys(n.peer for steps in came.values() for n in steps if n.peer not in seen))
    return Walked(seen, truncated)


def _by_seed(
    seeds: Iterable[UUID], neighbors: Iterable[Neighbor], most: int
) -> tuple[dict[UUID, list[Neighbor]], bool]:
    steps: dict[UUID, list[Neighbor]] = {seed: [] for seed in seeds}
    for each in neighbors:
        steps[each.seed].append(each)
    full = any(len(found) > most for found in steps.values())
    return {seed: found[:most] for seed, found in steps.items()}, full


def trails(
    seed: UUID, walked: Walked, budget: Budget, *, visible: Callable[[Neighbor], bool]
) -> tuple[list[Step], bool]:
    """Who is reached from a seed, in the order of the hops, each with the steps of the hop that reached it first.

    Nobody is reached through what is not visible. Args: walked: of this seed, among others; budget: of this seed.
    Returns: the peers, and whether the budget, or that of the walk, may have hidden some.
    """
    visited, frontier, reached = {seed}, [seed], list[Step]()
    spent, truncated = 0, walked.truncated
    for depth in range(1, budget.hops + 1):
        found: dict[UUID, dict[EdgeKey, Neighbor]] = {}
        for asked in frontier:
            if spent >= budget.calls:
                truncated = True
                break
            spent += 1
            for step in walked.steps.get(asked, ()):
                if step.peer not in visited and visible(step):
                    found.setdefault(step.peer, {}).setdefault(step.key, step)
        reached += [Step(peer, tuple(steps.values()), depth) for peer, steps in found.items()]
        visited |= found.keys()
        frontier = list(found)
    return reached, truncated
