"""What hot tails are told of a write that was made."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from isotherm.storage.postgres.tier_write import Placed, Remembered
from isotherm.storage.redis.announcements import Copies
from isotherm.storage.redis.tail import TailRecord


def added(namespace_ids: Collection[int], done: Remembered, rows: Sequence[Placed]) -> dict[int, Copies]:
    """What a write adds to the tails of its namespaces; a tail whose rows changed in place is dropped."""
    # A call that wrote more than it tells is a bulk load, between which nobody reads: the next reader fills the tail from
    # the database, once for all of them.
    if done.rows is None:
        return {}
    by_id = {(p.place.namespace_id, p.record.id): p.record for p in rows} if done.rows else {}
    found: dict[int, Copies] = {}
    for namespace_id in namespace_ids:
        mine = [w for w in done.rows if w.namespace_id == namespace_id]
        if all(w.version == 1 for w in mine):
            told = [(w.key, by_id[namespace_id, w.id]) for w in mine]
            found[namespace_id] = [
                TailRecord(r.id, key, r.role, r.created_at, r.content, r.metadata) for key, r in told
            ]
    return found
