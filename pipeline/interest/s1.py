"""Stage s1: what a session says more than once becomes one point. Writes nothing and forgets nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol

from isotherm.pipeline.interest.candidates import TAGS_MAX, Candidate, Point
from isotherm.pipeline.interest.pairs import Link, Relate, Side
from isotherm.pipeline.interest.vectors import cosines, groups, pairs_above

CLUSTER_SIM = 0.60  # strictly above
GROUP_MAX = 12


@dataclass(frozen=True, slots=True)
class Merge:
    """Members of a group, by place, that say one thing; blank words mean those of the surest member."""

    members: tuple[int, ...]
    topic: str = ""
    reason: str = ""
    tags: tuple[str, ...] = ()


class Judge(Protocol):
    """Says which members of a group are one."""

    def judge(self, group: Sequence[Point]) -> Sequence[Merge]:
        """Args: group: two or more points. Raises: as the ports of models do; the group is then kept as it is."""
        ...


class RuleJudge:
    """Merges what the rules say is the same; of a chain of likenesses nothing is merged that contradicts itself."""

    def __init__(self, relate: Relate) -> None:
        self._relate = relate

    def judge(self, group: Sequence[Point]) -> list[Merge]:
        """Never raises; the cost is quadratic in the size of the group."""
        alike = cosines([p.vec for p in group], [p.vec for p in group])
        same, apart = [], set()
        for i, j in combinations(range(len(group)), 2):
            embedded = group[i].vec is not None and group[j].vec is not None
            relation = self._relate(side(group[i]), side(group[j]), float(alike[i, j]) if embedded else None)
            if relation.link is Link.SAME:
                same.append((float(alike[i, j]), i, j))
            elif relation.link is Link.CONTRADICTS:
                apart.add((i, j))
        found = [members for members in groups(len(group), same) if len(members) > 1]
        return [Merge(tuple(m)) for m in found if not any(pair in apart for pair in combinations(m, 2))]


def fold(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Make candidates of one normalized name one, at the place of the first; candidates without a name stay apart.

    The words of the surest count, of equals the first; tags, turns and sources are united.
    """
    by_name: dict[str, list[Candidate]] = {}
    for place, candidate in enumerate(candidates):
        by_name.setdefault(candidate.name or f"\n{place}", []).append(candidate)
    return [_surest(same) for same in by_name.values()]


def _surest(same: Sequence[Candidate]) -> Candidate:
    """`max` returns the first of equals; the others follow in their order, so that tags keep theirs."""
    best = max(same, key=lambda c: c.confidence)
    united = same[0].with_sources_of(same[1:])
    return replace(
        best,
        tags=united.tags,
        turn_range=united.turn_range,
        event_time=united.event_time,
        wiki_worthy=united.wiki_worthy,
        sources=united.sources,
    )


def group(points: Sequence[Point], relate: Relate, threshold: float = CLUSTER_SIM) -> list[list[int]]:
    """Places of points that may be one, in groups of at most 12: by vectors, or by the rules where there are none.

    Every point is in exactly one group; groups are ordered by their first member, members ascending.
    """
    matrix = cosines([p.vec for p in points], [p.vec for p in points])
    links = pairs_above(matrix, threshold)
    bare = [i for i, point in enumerate(points) if point.vec is None]
    for i, j in combinations(bare, 2):
        if relate(side(points[i]), side(points[j]), None).link is Link.SAME:
            links.append((1.0, i, j))
    return groups(len(points), links, GROUP_MAX)


def apply(members: Sequence[Point], merges: Sequence[Merge]) -> list[Point]:
    """Carry out what a judge said about a group.

    Whatever it said, every member has exactly one outcome: the first merge that names a member has it, places that do
    not exist are ignored, and what no merge names stays as it is. A point with new words has no vector yet.
    """
    taken: set[int] = set()
    found: list[Point] = []
    for merge in merges:
        places = [i for i in dict.fromkeys(merge.members) if 0 <= i < len(members) and i not in taken]
        if len(places) > 1:
            taken.update(places)
            found.append(_merged([members[i] for i in places], merge))
    return found + [member for i, member in enumerate(members) if i not in taken]


def _merged(points: Sequence[Point], merge: Merge) -> Point:
    candidate = _surest([p.candidate for p in points])
    words = next(p for p in points if p.candidate.topic == candidate.topic and p.candidate.reason == candidate.reason)
    if not merge.topic.strip():
        return Point(candidate, words.vec)
    tags = merge.tags[:TAGS_MAX] or candidate.tags
    return Point(replace(candidate, topic=merge.topic.strip(), reason=merge.reason.strip(), tags=tags))


def side(point: Point) -> Side:
    """A point as it is compared."""
    return Side(point.candidate.topic, point.candidate.reason, point.candidate.kind)
