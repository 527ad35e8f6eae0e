"""From hits to what is answered: parts stand for their parents, and are kept as evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from isotherm.pipeline.fusion import Share

EVIDENCE: Final = 3
SNIPPET_CHARS: Final = 240


class Hit(NamedTuple):
    """A row that was found: an object, or a part of one. `shares` says what each leg added to the score."""

    id: UUID
    parent_id: UUID | None
    score: float
    updated_at: datetime
    shares: Mapping[str, Share] = MappingProxyType({})


class Promoted(NamedTuple):
    """An object to answer with: the best score among itself and its parts, and the parts that speak for it."""

    id: UUID
    score: float
    updated_at: datetime
    best: Hit
    evidence: tuple[Hit, ...] = ()


def promote(hits: Iterable[Hit], evidence: int = EVIDENCE) -> list[Promoted]:
    """Group hits under their parents, best first.

    An object's score is the largest among its hits, not their sum, so that many weak parts do not outweigh a good one.
    An object that has no parts, or was found by its own words, stands for itself and adds no evidence.

    Args: evidence: parts kept for each object, 0 or less means 3. Returns: in the order of `in_order`.
    """
    groups: dict[UUID, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(hit.parent_id or hit.id, []).append(hit)
    most = evidence if evidence > 0 else EVIDENCE
    return in_order(_promoted(object_id, group, most) for object_id, group in groups.items())


def in_order(promoted: Iterable[Promoted]) -> list[Promoted]:
    """By score, then newest first, then by id."""
    # Three sorts by plain attributes, each of them stable, take less than one by a key that has to be made.
    ordered = sorted(promoted, key=attrgetter("id.int"))
    ordered.sort(key=attrgetter("updated_at"), reverse=True)
    ordered.sort(key=attrgetter("score"), reverse=True)
    return ordered


def snippet(text: str, most: int = SNIPPET_CHARS) -> str:
    """The beginning of a text, trimmed, with an ellipsis when cut; 0 means all of it."""
    trimmed = text.strip()
    return trimmed if most <= 0 or len(trimmed) <= most else trimmed[:most] + "…"


def _promoted(object_id: UUID, group: list[Hit], most: int) -> Promoted:
    if len(group) == 1:
        [hit] = group
        return Promoted(object_id, hit.score, hit.updated_at, hit, () if hit.parent_id is None else (hit,))
    ordered = sorted(group, key=lambda hit: (-hit.score, hit.id.int))
    parts = tuple(hit for hit in ordered if hit.parent_id is not None)
    newest = max(hit.updated_at for hit in group)
    return Promoted(object_id, ordered[0].score, newest, ordered[0], parts[:most])
