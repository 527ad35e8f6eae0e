"""Records of one recall, each read once, and compared with each other: the newest of what they say comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isotherm.pipeline.tier import newest
from isotherm.pipeline.tier.messages import speaker_of
from isotherm.pipeline.tier.ranking import Scored
from isotherm.storage.postgres import tier_recall, tier_vectors
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_recall import Row


class Seen:
    """Records of one recall, each read once. Args: likely: keys of those that will be wanted, read with the first others."""

    def __init__(self, conn: Connection, scope: Scope, likely: Iterable[int]) -> None:
        self.conn, self.scope = conn, scope
        self._likely = set(likely)
        self._rows: dict[int, Row] = {}

    def rows(self, keys: Sequence[int]) -> dict[int, Row]:
        """Records by key; those that are gone meanwhile are left out."""
        if any(key not in self._rows for key in keys):
            missing = self._likely.union(keys).difference(self._rows)
            self._likely.clear()
            self._rows |= tier_recall.read(self.conn, list(missing), self.scope)
        return {key: self._rows[key] for key in keys if key in self._rows}


def newest_first(
    seen: Seen, query: str, ranked: Sequence[Scored], weights: Mapping[int, float]
) -> tuple[Sequence[Scored], dict[int, int]]:
    """Compare the best that the query found with each other; see `newest`."""
    best = [item for item in ranked[: newest.LOOKED_AT] if item.parts.is_relevant]
    rows = seen.rows([item.candidate.key for item in best])
    found = {item.candidate.key: item for item in best if item.candidate.key in rows}

    hints = newest.hints_of(query)

    def said(keys: Sequence[int]) -> list[newest.Statement]:
        return [newest.statement(found[key], speaker_of(rows[key]), rows[key].text, weights, hints) for key in keys]

    news = [key for key in found if newest.may_renew(rows[key].text)]
    statements = said(news)
    if not any(one.renews for one in statements):
        return ranked, {}
    statements += said([key for key in found if key not in set(news)])
    pairs = newest.pairs(statements)
    if not pairs:
        return ranked, {}
    cosines = tier_vectors.between(seen.conn, seen.scope, pairs)
    return newest.newest_first(ranked, newest.alike(statements, pairs, cosines))
