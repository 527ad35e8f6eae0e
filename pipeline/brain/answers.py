"""What the engine answers with. Objects come without their content; every answer says what it left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from uuid import UUID

from isotherm.pipeline.brain.errors import RerankError
from isotherm.pipeline.brain.graph_rank import Walked
from isotherm.pipeline.brain.links import Edge
from isotherm.pipeline.brain.objects import Object
from isotherm.pipeline.brain.promotion import Hit
from isotherm.pipeline.brain.walk import Direction
from isotherm.pipeline.fusion import Share

_NIL: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A part that speaks for an object, with a piece of its text around what was looked for."""

    part_id: UUID
    title: str
    snippet: str
    score: float
    position: int | None
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Relation:
    """One edge that leads to an object of an expand, in the direction seen from where the walk came."""

    edge: Edge
    direction: Direction


@dataclass(frozen=True, slots=True)
class Result:
    """An object of an answer; `best` is the hit that gave it its score, with the legs' shares; None on later pages.

    Args: relations, depth: on later pages of an expand, the edges that lead to it and how many hops away it is;
        renewed_by: the object that is current in its place, None when none is known.
    """

    object: Object
    score: float
    best: Hit | None
    evidence: tuple[Evidence, ...] = ()
    relations: tuple[Relation, ...] = ()
    depth: int = 0
    renewed_by: UUID | None = None

    @property
    def shares(self) -> Mapping[str, Share]:
        """What each leg added to the score, where that is known."""
        return {} if self.best is None else self.best.shares


@dataclass(frozen=True, slots=True)
class Answer:
    """One page of what a search found, best first.

    Args: degraded: legs that were out of reach and left out; truncated: whether a limit may have hidden something;
        result_set_id: what the rest is kept under, None when nobody asked for pages; cursor: gives the next page, None
        when there is none or it was not kept; has_more: whether more was found than is shown; walked: what a walk over
        edges read, None when there was none.
    """

    results: tuple[Result, ...] = ()
    degraded: tuple[str, ...] = ()
    truncated: bool = False
    result_set_id: UUID | None = None
    cursor: str | None = None
    has_more: bool = False
    walked: Walked | None = None


@dataclass(frozen=True, slots=True)
class LinkHit:
    """An edge that was found by its note, and the objects at its ends."""

    source: Object
    target: Object
    edge: Edge
    score: float


@dataclass(frozen=True, slots=True)
class Links:
    """Edges that were found, best first."""

    links: tuple[LinkHit, ...] = ()
    degraded: tuple[str, ...] = ()
    truncated: bool = False


class Reranker(Protocol):
    """Puts the best objects of a search into another order, and may leave some out.

    Raises: TransientError when it is out of reach, which degrades the answer to the order that it had.
    """

    def rerank(self, query: str, objects: Sequence[Object]) -> Sequence[UUID] | None:
        """Ids of the objects to keep, best first; None keeps them as they are."""
        ...


def reranked(before: Sequence[UUID], after: Sequence[UUID] | None) -> list[UUID]:
    """The order a reranker chose, once it is known to be of the given ids.

    Raises: RerankError when it names an id twice, or one that it was not given.
    """
    if after is None:
        return list(before)
    if len(set(after)) != len(after) or not set(after) <= set(before):
        raise RerankError("the reranker answered with objects that it was not given, or with one twice")
    return list(after)


def landing_ids(objects: Sequence[Object]) -> list[UUID]:
    """Whole objects to walk on from: a part stands for its parent; each id once, in order, nil ones left out."""
    found = (each.id if each.parent_id is None else each.parent_id for each in objects)
    return list(dict.fromkeys(i for i in found if i != _NIL))


def landing_ids_of(answer: Answer) -> list[UUID]:
    """The same for a page of a search."""
    return landing_ids([result.object for result in answer.results])


def sort_objects(objects: Sequence[Object], key: str, *, descending: bool = False) -> list[Object]:
    """Objects by a property or by updated_at, created_at, title or position.

    Equal ones keep their order. Numbers are ordered as numbers; values of different types by type: missing first, then
    truth values, numbers and texts. A missing position counts as -1; a blank key changes nothing.
    """
    name = key.strip()
    if not name:
        return list(objects)
    return sorted(objects, key=lambda each: _rank(each, name), reverse=descending)


def with_page(answer: Answer, result_set_id: UUID | None, cursor: str | None, *, has_more: bool) -> Answer:
    """The answer, saying where it goes on."""
    return replace(answer, result_set_id=result_set_id, cursor=cursor, has_more=has_more)


def _rank(each: Object, name: str) -> tuple[int, Any]:
    folded = name.lower()
    if folded in {"updated_at", "created_at"}:
        return 0, getattr(each, folded).timestamp()
    if folded == "title":
        return 0, each.title
    if folded == "position":
        return 0, -1 if each.position is None else each.position
    return _ranked(each.properties.get(name))


def _ranked(value: object) -> tuple[int, Any]:
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, int | float):
        return 2, value
    return (3, value) if isinstance(value, str) else (0, 0)
