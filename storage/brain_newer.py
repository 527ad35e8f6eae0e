"""Newest wins in a search: the current one of what was found comes first, the older one stays behind it and names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from isotherm.pipeline.brain import renewing
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.promotion import Hit
from isotherm.pipeline.brain.renewing import EdgeFound, Said
from isotherm.pipeline.brain.result_sets import Kept
from isotherm.pipeline.fusion import Share
from isotherm.pipeline.tier import newest
from isotherm.pipeline.tier.newest import Pair, Statement
from isotherm.storage.postgres import brain_newer
from isotherm.storage.postgres.pool import Connection

RENEWAL: Final = "renewal"
_BY: Final = "renewed_by"


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked at.

    Args: kept: the best, best first; best: the hit that gave each its score; moves: whether the order may change, or an
        older one only be marked.
    """

    namespace_id: int
    query: str
    filters: Filters
    kept: Sequence[Kept]
    best: Mapping[UUID, Hit]
    moves: bool

    @property
    def rows(self) -> list[UUID]:
        """The row that was found of each."""
        return [self.best[each.id].id if each.id in self.best else each.id for each in self.kept]

    def asked(self) -> list[tuple[str, dict[str, Any]]]:
        """Statements to go along with the read of what was found, so that a look costs no round trip of its own."""
        return brain_newer.asked(self.namespace_id, [each.id for each in self.kept], self.rows[: renewing.LOOKED_AT])


def renewed_by(item: Kept) -> UUID | None:
    """The object that a kept one was renewed by, None when none is known."""
    by = (item.extra or {}).get(_BY)
    return None if by is None else UUID(by)


def newest_first(
    conn: Connection, look: Look, answered: Sequence[Sequence[Sequence[Any]]]
) -> tuple[list[Kept], dict[UUID, Hit]]:
    """Put newer ones above those they renew, and mark these. Args: answered: the rows of `Look.asked`, by statement.

    Returns: what was looked at in its new order, with newer objects that the query had not found, and the hits of those
        that were moved.
    """
    edges, said = brain_newer.edges(answered[0]), brain_newer.said(answered[1])
    places = {each.id: place for place, each in enumerate(look.kept)}
    least = newest.AS_GOOD * max((each.score or 0.0 for each in look.kept), default=0.0)
    rated = {each.id for each in look.kept if (each.score or 0.0) >= least}
    statements = renewing.statements(
        look.query, [replace(one, text=one.text if one.id in rated else "") for one in said]
    )
    if not (edges or statements):
        return list(look.kept), {}
    met, pairs, items = _by_edges(conn, look, edges, places)
    pairs += [pair for pair in _by_words(conn, look, said, statements, places) if pair not in set(pairs)]
    since = {one.id: one.since for one in said} | {i: moment for i, (_, moment) in met.items()}
    totals = {place: item.score or 0.0 for place, item in enumerate(items)}
    at = {place: (since[item.id], item.id.hex) for place, item in enumerate(items) if item.id in since}
    lifted, replaced = newest.lifts(totals, at, [(a, b) for a, b in pairs if a in at and b in at])
    moved = lifted if look.moves and newest.asks_for_the_present(look.query) else {}
    marked = [_marked(item, items, replaced.get(place)) for place, item in enumerate(items)]
    settled = [replace(item, score=moved.get(place, item.score)) for place, item in enumerate(marked)]
    there = [item for place, item in enumerate(settled) if place in moved or place < len(look.kept)]
    hits = {items[place].id: _hit(look, items[place], score, met) for place, score in moved.items()}
    return (sorted(there, key=lambda item: -(item.score or 0.0)) if moved else there), hits


def _by_edges(
    conn: Connection, look: Look, edges: Sequence[EdgeFound], places: Mapping[UUID, int]
) -> tuple[dict[UUID, Any], list[Pair], list[Kept]]:
    """Times of objects that edges name, pairs by place, and what was looked at with the newer objects behind it."""
    items = list(look.kept)
    if not edges:
        return {}, [], items
    ends = sorted({end for edge in edges for end in (edge.source, edge.target)})
    met = brain_newer.current(conn, look.namespace_id, look.filters, ends)
    found = renewing.latest(renewing.successors(edges, {i: moment for i, (_, moment) in met.items()}))
    known = dict(places)
    pairs = []
    for older, newer in found:
        if older not in places or newer not in met:
            continue
        if newer not in known:
            known[newer] = len(items)
            items.append(Kept(newer, 0.0))
        pairs.append((known[older], known[newer]))
    return met, pairs, items


def _by_words(
    conn: Connection,
    look: Look,
    said: Sequence[Said],
    statements: Sequence[Statement],
    places: Mapping[UUID, int],
) -> list[Pair]:
    """Pairs of places of an older and a newer statement."""
    pairs = newest.pairs(statements)
    if not pairs:
        return []
    rows = look.rows
    cosines = brain_newer.cosines(conn, look.namespace_id, [rows[places[one.id]] for one in said], pairs)
    alike = [(places[said[a].id], places[said[b].id]) for a, b in renewing.alike(statements, pairs, cosines)]
    score = [each.score or 0.0 for each in look.kept]
    return [(a, b) for a, b in alike if score[b] >= newest.AS_GOOD * score[a]]


def _marked(item: Kept, items: Sequence[Kept], by: int | None) -> Kept:
    return item if by is None else replace(item, extra={**(item.extra or {}), _BY: str(items[by].id)})


def _hit(look: Look, item: Kept, score: float, met: Mapping[UUID, Any]) -> Hit:
    known = look.best.get(item.id)
    hit = Hit(item.id, None, 0.0, met[item.id][0]) if known is None else known
    added = Share(score, 0, score - (item.score or 0.0))
    return hit._replace(score=score, shares={**hit.shares, RENEWAL: added})
