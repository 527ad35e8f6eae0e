"""Linking texts with what they mention, both ways: a new text with known names, and a new name with old texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from isotherm.pipeline.brain.mentions import Lexicon
from isotherm.storage.postgres import brain_mentions, brain_names
from isotherm.storage.postgres.brain_mentions import Changed, Text
from isotherm.storage.postgres.brain_names import Bearer, Named
from isotherm.storage.postgres.pool import Connection, connection

# Texts that are read and compared with names in one go.
BATCH = 250


@dataclass(frozen=True, slots=True)
class Reading:
    """What some texts mention, and what that rests on.

    Args: texts: by object; counts: mentions by source and target; used: names that were found, with row keys.
    """

    texts: Mapping[UUID, Text]
    counts: Mapping[tuple[UUID, UUID], int]
    used: frozenset[tuple[str, int]] = frozenset()
    bearers: Mapping[tuple[str, int], UUID] = field(default_factory=dict)


def follow_names(namespace_id: int, ids: Sequence[UUID]) -> tuple[list[Named], list[UUID]]:
    """Keep the names of objects, and tell which texts are to be read because of them.

    Names are committed before texts are looked for: a text that is stored meanwhile finds them by itself.
    Returns: the objects; ids of the texts, their own among them.
    """
    with connection() as conn:
        named = brain_names.keep(conn, namespace_id, ids)
    with connection() as conn:
        others = brain_mentions.to_read(conn, namespace_id, [one.id for one in named])
    return named, sorted(others | {one.id for one in named})


def batches(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """The texts in portions."""
    return (ids[at : at + BATCH] for at in range(0, len(ids), BATCH))


def read(namespace_id: int, ids: Sequence[UUID]) -> Reading:
    """Read texts for names. No transaction stays open while they are compared."""
    with connection() as conn:
        texts = brain_mentions.texts(conn, namespace_id, ids)
        terms = sorted({term for text in texts.values() for term in text.terms})
        names = brain_names.by_words(conn, namespace_id, terms) if terms else {}
    return _compared(texts, names)


def write(conn: Connection, namespace_id: int, ids: Sequence[UUID], reading: Reading) -> Changed:
    """Write the edges that a reading gives, of what is still as it was read.

    What changed meanwhile is left alone: whoever changed it has a step of its own. Args: ids: that were to be read; those
    that are gone lose their edges.
    """
    there = brain_mentions.locked(conn, namespace_id, {*ids, *reading.bearers.values()})
    now = brain_mentions.versions(conn, namespace_id, ids)
    same = {i for i in ids if (i in there and i in reading.texts and reading.texts[i].version == now.get(i))}
    held = brain_names.still(conn, namespace_id, reading.used)
    targets = {target for pair, target in reading.bearers.items() if pair in held} & there
    wanted = {pair: n for pair, n in reading.counts.items() if pair[0] in same and pair[1] in targets}
    gone = set(ids) - there
    return brain_mentions.replace(conn, namespace_id, sorted(same | gone), wanted)


def _compared(texts: Mapping[UUID, Text], names: Mapping[str, Sequence[Bearer]]) -> Reading:
    lexicon = Lexicon(names)
    counts: Counter[tuple[UUID, UUID]] = Counter()
    bearers: dict[tuple[str, int], UUID] = {}
    for source, text in texts.items():
        for name, count in lexicon.mentioned("\n".join(text.pieces)).items():
            for bearer in names[name]:
                if bearer.id != source:
                    counts[source, bearer.id] += count
                    bearers[name, bearer.key] = bearer.id
    return Reading(texts, counts, frozenset(bearers), bearers)
