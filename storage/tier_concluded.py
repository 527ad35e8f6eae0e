"""What hot tails are told of a write that was made, or was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isotherm.storage.postgres.tier_write import Placed, Remembered
from isotherm.storage.redis.tail import Concluded, TailRecord


def concluded(
    generations: Mapping[int, str | None], done: Remembered | None, rows: Sequence[Placed]
) -> list[Concluded]:
    """What the tails are to be told of a write; a tail whose rows changed in place, or may have, is dropped."""
    # A call that wrote more than it tells is a bulk load, between which nobody reads: the next reader fills the tail from
    # the database, once for all of them.
    written = None if done is None else done.rows
    by_id = {(p.place.namespace_id, p.record.id): p.record for p in rows} if written else {}
    found = []
    for namespace_id, generation in generations.items():
        if generation is None:
            continue
        mine = None if written is None else [w for w in written if w.namespace_id == namespace_id]
        copies: list[TailRecord] | None = None
        if mine is not None and all(w.version == 1 for w in mine):
            told = [(w.key, by_id[namespace_id, w.id]) for w in mine]
            copies = [TailRecord(r.id, key, r.role, r.created_at, r.content, r.metadata) for key, r in told]
        found.append(Concluded(namespace_id, generation, copies))
    return found
