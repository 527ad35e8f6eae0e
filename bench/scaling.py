"""Benches of size: passes, moves, writes and reads at 10,000 to 1,000,000 records, in one namespace and in 1,000.

The sizes are databases side by side, and every round goes through all of them with the same work, so that what is compared
was measured in the same minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg
from arena import Arena
from filling import fill, made
from floors import Bare, Inserts, Script
from measure import Compared, Line, alternate, figures, quantile, repeated, timed
from memory import Grown
from moving import lowered, one_pass, sunk, sweeping, with_words
from reading import body_of
from tier_floors import Copies, SpecLoop, in_batches
from writing import against_inserts

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import tier_passes
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import connection, fetch_all

_MOVED = 1_500
_PASSES = 5
_LOOPED = 20
_DUE = 10
_TAIL = 50
_TAILS = 200
_FEW = 5
_HOT = 500  # of each of many namespaces
_LIMIT_MS = 50.0
_LIMIT_MIB = 32.0

_WITH_WORDS = "per archived record, words and all"

_NOW_DUE = "UPDATE namespaces SET due_at = now() WHERE id = ANY(%s)"

# Seconds by figure and size, one for each round.
Taken = dict[str, dict[int, list[float]]]


@dataclass(slots=True)
class _Bed:
    """One size: its database, whose turn it is while it is measured."""

    size: int
    name: str
    conn: Bare
    places: list[Place]
    copies: Copies
    grown: Grown = field(default_factory=Grown)
    used: int = 0
    moved: int = 0


def scale(ground: Arena, *, quick: bool, large: bool) -> Iterator[Line]:
    """All stages run in this process, by the tasks a worker would run. Args: large: 1,000,000 records too."""
    sizes = (2_000, 10_000) if quick else (10_000, 100_000, 1_000_000) if large else (10_000, 100_000)
    rounds = 2 if quick else 5
    yield from _layout(ground, sizes, rounds, _OneNamespace(sizes[0] // (rounds + 2)))
    yield from _layout(ground, sizes, rounds, _ManyNamespaces(200 if quick else 1_000))


class _OneNamespace:
    """All in one namespace; beside it one as passes under the default policy leave it."""

    name = "in one namespace"
    spread = 1

    def __init__(self, moved: int) -> None:
        self._moved = min(_MOVED, moved)

    def filled(self, conn: Bare, size: int, rounds: int) -> list[Place]:
        """Rows, and the words of those that will move."""
        hot, settled = made("hot", 1), made("settled", 1)
        fill(conn, hot, size, hot=size, warm=size)
        fill(conn, settled, size, hot=50, warm=550)
        with_words(conn, hot[0], self._moved * (rounds + 1))
        return [*hot, *settled]

    def round(self, ground: Arena, bed: _Bed, *, floor_first: bool) -> dict[str, float]:
        """Passes with nothing to do; as many records to warm, and these to cold, as every size has moved by now."""
        hot, settled = bed.places
        with bed.grown:
            taken = {
                "nothing due, all hot": _quiet(hot, Policy(hot_capacity=2 * bed.size)),
                "nothing due, 50 hot, 500 warm, the rest cold": _quiet(settled, Policy()),
            }
        bed.used += self._moved
        steps: list[Callable[[], None]] = [
            lambda: taken.update(_floor_moved(bed, hot, self._moved)),
            lambda: taken.update(_moved(ground, bed, hot, self._moved)),
        ]
        for step in steps if floor_first else reversed(steps):
            step()
        return taken

    def notes(self, rounds: int) -> Mapping[str, str]:
        """How the figures of moves were taken."""
        how = f"{rounds} passes of {self._moved:,} moves in batches of {Policy().batch_size}, plan and report included"
        return {
            "per moved record": f"{how}; floor: the same rows of a copy, indexes and all, without triggers",
            "per archived record": f"{how}, short texts that go whole, words written again; floor: the record's row alone",
            _WITH_WORDS: "the same; floor: the record's row, its postings deleted, its row of words inserted",
        }

    def lines(self, bed: _Bed, taken: Taken) -> list[Line]:
        """The specification's own loop over the same records, which ends this size: its table is filled for it."""
        loop = SpecLoop(bed.conn)
        loop.load(bed.places[0].namespace_id)
        seconds, ours = loop.run(_LOOPED) * bed.size, quantile(taken["nothing due, all hot"][bed.size], 0.5)
        return [
            Line("scale", f"{bed.size:,} {self.name}: a pass with nothing due / the specification's loop", ours, "s", "lower",
                 floor=seconds, note=f"a whole pass, all hot; three counts and one put per record, {_LOOPED} records "
                 f"measured, times {bed.size:,}")
        ]  # fmt: skip


class _ManyNamespaces:
    """As many in 1,000 namespaces, in turns."""

    def __init__(self, spread: int) -> None:
        self.name = f"in {spread:,} namespaces"
        self.spread = spread

    def filled(self, conn: Bare, size: int, rounds: int) -> list[Place]:  # noqa: ARG002 - as the other
        """Rows, up to 500 of each namespace hot."""
        places = made("many", self.spread)
        fill(conn, places, size, hot=_HOT, warm=900)
        return places

    def round(self, ground: Arena, bed: _Bed, *, floor_first: bool) -> dict[str, float]:
        """Passes over namespaces of their own: few moves in each, and as many as a namespace of this size has."""
        with bed.grown:
            taken = {
                "nothing due in one of them": _quiet(bed.places[-1], Policy(hot_capacity=_HOT, warm_capacity=None)),
                "the due ones found": _due(bed),
            }
        each = min(Policy().batch_size, bed.size // self.spread // 2)
        most = self.spread * 6 // 100
        for name, count in (("few", _FEW), ("many", each)):
            places = bed.places[bed.used : bed.used + most]
            bed.used += most
            steps: list[Callable[[], None]] = [
                lambda name=name, count=count, places=places: taken.update(_floor_spread(bed, name, places, count)),  # type: ignore[misc]
                lambda name=name, count=count, places=places: taken.update(_spread(ground, bed, name, places, count)),  # type: ignore[misc]
            ]
            for step in steps if floor_first else reversed(steps):
                step()
        return taken

    def notes(self, rounds: int) -> Mapping[str, str]:
        """How the figures of moves were taken."""
        return {
            "few": f"{rounds} rounds of a sweep over {self.spread * 6 // 100} namespaces, {_FEW} moves each; floor: a commit for each namespace",
            "many": f"{rounds} rounds of a sweep, at most half of a namespace and {Policy().batch_size} moves in each, "
            "each pass an operation of its own; floor: a commit for each namespace",
        }

    def lines(self, bed: _Bed, taken: Taken) -> list[Line]:  # noqa: ARG002 - as the other
        """Nothing more."""
        return []


_Layout = _OneNamespace | _ManyNamespaces


def _layout(ground: Arena, sizes: Sequence[int], rounds: int, layout: _Layout) -> Iterator[Line]:
    names = {size: f"bench_scale_{size}" for size in sizes}
    with ground.several(names.values()) as enter, ExitStack() as held:
        beds = {size: _bed(ground, held, enter, layout, (size, names[size], rounds)) for size in sizes}
        taken: Taken = defaultdict(lambda: defaultdict(list))
        for number in range(rounds + 1):
            for bed in beds.values() if number % 2 else reversed(beds.values()):
                enter(bed.name)
                found = layout.round(ground, bed, floor_first=number % 2 == 0)
                for name, seconds in found.items() if number else ():  # the first round warms
                    taken[name][bed.size].append(seconds)
        yield from _compared(layout, taken, sizes, layout.notes(rounds))
        for bed in beds.values():
            opened = enter(bed.name)
            with bed.grown:
                ours = _written(ground, layout, bed, rounds)
            with bed.grown:
                ours.append(_read(ground, opened, layout, bed, rounds))
            yield from ours
            yield from layout.lines(bed, taken)
            yield Line("scale", f"{bed.size:,} {layout.name}: memory grown", bed.grown.most / 2**20, "MiB", "lower",
                       floor=_LIMIT_MIB, gate=1.0, note=f"floor: the limit of {_LIMIT_MIB:.0f} MiB; the most that the resident "
                       "set of this process grew while it did the above, as much at every size")  # fmt: skip


def _bed(
    ground: Arena,
    held: ExitStack,
    enter: Callable[[str], Storage],
    layout: _Layout,
    of: tuple[int, str, int],
) -> _Bed:
    size, name, rounds = of
    enter(name)
    conn = held.enter_context(psycopg.connect(ground.dsn, autocommit=True, prepare_threshold=1))
    places = layout.filled(conn, size, rounds)
    ground.tidy("tier_records", "tier_depth", "namespaces")
    return _Bed(size, name, conn, places, Copies(conn))


def _compared(layout: _Layout, taken: Taken, sizes: Sequence[int], notes: Mapping[str, str]) -> Iterator[Line]:
    """Every figure at every size, against its floor or its limit; then the largest size against the smallest."""
    ours = [name for name in taken if not name.startswith("floor of ")]
    for size in sizes:
        for name in ours:
            yield _line(layout, taken, size, name, notes)
    small, most = sizes[0], sizes[-1]
    for name in (each for each in ours if each != _WITH_WORDS):
        pair = Compared(*(tuple(figures([s]) for s in taken[name][size]) for size in (small, most)))
        gate = None if name in ("the due ones found", "many") else 2.0
        yield pair.line("scale", f"{_NAMES.get(name, name)}, {most:,} / {small:,} {layout.name}", "p50", gate=gate,
                        note="flat in the number of records; in turns, the same work at both sizes"
                        if name != "many" else "not the same number of moves a pass")  # fmt: skip


_NAMES = {"few": f"per moved record, {_FEW} a pass", "many": "per moved record, half of a namespace a pass"}


def _line(layout: _Layout, taken: Taken, size: int, name: str, notes: Mapping[str, str]) -> Line:
    title = f"{size:,} {layout.name}: {_NAMES.get(name, name)}"
    mine = taken[name][size]
    if floor := taken.get(f"floor of {name}"):
        pair = Compared(*(tuple(figures([s]) for s in side) for side in (floor[size], mine)))
        # What goes cold changes the rows of its words too; and few moves a pass are there for the sizes to do the same.
        gate = None if name in ("per archived record", "few") else 5.0
        return pair.line("scale", f"{title} / bare UPDATE", "p50", gate=gate, note=notes[name])
    limit = _LIMIT_MS if name.startswith("nothing due") else None
    return Line("scale", title, quantile(mine, 0.5) * 1000, "ms", "lower", floor=limit, gate=None if limit is None else 1.0,
                note="" if limit is None else f"floor: the limit of {limit:.0f} ms; asked for, planned and settled")  # fmt: skip


def _quiet(place: Place, policy: Policy) -> float:
    """Median seconds of a pass that moves nothing, after one that warms."""
    before = _moves(place)
    one_pass(place.namespace_id, policy)
    taken = [timed(lambda: one_pass(place.namespace_id, policy)) for _ in range(_PASSES)]
    _expect(_moves(place) - before, 0)
    return quantile(taken, 0.5)


def _moves(place: Place) -> int:
    values = {"ns": place.namespace_id}
    return int(fetch_all("SELECT count(*) FROM tier_moves WHERE namespace_id = %(ns)s", values)[0][0])


def _expect(found: int, count: int) -> None:
    """A figure of passes that did something else than they were measured for must not be shown."""
    if found != count:
        raise RuntimeError(f"{found} records moved, not {count}")


def _floor_moved(bed: _Bed, place: Place, count: int) -> dict[str, float]:
    size = Policy().batch_size
    lower = bed.copies.lower(in_batches(bed.copies.weakest(place.namespace_id, 3, count), size))
    archive, words = bed.copies.archive(in_batches(bed.copies.weakest(place.namespace_id, 2, count), size))
    return {
        "floor of per moved record": lower / count,
        "floor of per archived record": archive / count,
        f"floor of {_WITH_WORDS}": (archive + words) / count,
    }


def _moved(ground: Arena, bed: _Bed, place: Place, count: int) -> dict[str, float]:
    ground.empty_queues("db", "llm")
    with bed.grown:
        taken = {"per moved record": lowered(place.namespace_id, bed.size - bed.used) / count}
        taken["per archived record"] = taken[_WITH_WORDS] = sunk(place.namespace_id, 0) / count
    bed.moved += 2 * count
    _expect(_moves(place), bed.moved)
    return taken


def _floor_spread(bed: _Bed, name: str, places: Sequence[Place], count: int) -> dict[str, float]:
    batches = [bed.copies.weakest(place.namespace_id, 3, count) for place in places]
    return {f"floor of {name}": bed.copies.lower(batches) / (count * len(places))}


def _spread(ground: Arena, bed: _Bed, name: str, places: Sequence[Place], count: int) -> dict[str, float]:
    ground.empty_queues("db", "llm")
    hot = min(_HOT, bed.size // len(bed.places))
    bed.conn.execute("UPDATE namespaces SET due_at = NULL WHERE due_at IS NOT NULL")
    bed.conn.execute(_NOW_DUE, ([p.namespace_id for p in places],))
    with bed.grown, sweeping(hot - count) as sweep:
        seconds = timed(sweep)
    _expect(sum(map(_moves, places)), count * len(places))
    return {name: seconds / (count * len(places))}


def _due(bed: _Bed) -> float:
    """Median seconds to find the namespaces that are due, which are ten."""
    bed.conn.execute("UPDATE namespaces SET due_at = NULL")
    bed.conn.execute(_NOW_DUE, ([p.namespace_id for p in bed.places[:_DUE]],))

    def ask() -> None:
        with connection() as asking:
            if (found := len(tier_passes.due(asking))) != _DUE:
                raise RuntimeError(f"{found} namespaces are due, not {_DUE}")

    return quantile(repeated(ask, 10), 0.5)


def _named(layout: _Layout) -> list[Namespace]:
    agent = "bench-hot" if layout.spread == 1 else "bench-many"
    return [Namespace.of(agent, f"s{n}") for n in range(layout.spread)]


def _written(ground: Arena, layout: _Layout, bed: _Bed, rounds: int) -> list[Line]:
    """Batches remembered beside what is there, a call in each namespace in turn."""
    owners = [(place.namespace_id, place.bank_id) for place in bed.places[: layout.spread]]
    named = _named(layout)
    title = f"{bed.size:,} {layout.name}: remember"
    # A round is over in a tenth of a second, and the first calls of a connection are planned each time.
    return against_inserts(ground, Inserts(bed.conn, owners=owners), named, "scale", title, 3 * rounds)


def _read(ground: Arena, opened: Storage, layout: _Layout, bed: _Bed, rounds: int) -> Line:
    """The newest 50 of one namespace, or of 200 in turn, against one script on as many sorted sets."""
    named = _named(layout)[:_TAILS]
    script = Script(
        ground.endpoints.redis_url, *([body_of(copy) for copy in opened.tier.tail(each, _TAIL)] for each in named)
    )
    reads = _TAILS
    compared = alternate(
        lambda: [timed(lambda n=n: script.bodies(_TAIL, n % len(named))) for n in range(reads)],  # type: ignore[misc]
        lambda: [timed(lambda n=n: opened.tier.tail(named[n % len(named)], _TAIL)) for n in range(reads)],  # type: ignore[misc]
        rounds,
    )
    script.close()
    return compared.line("scale", f"{bed.size:,} {layout.name}: hot tail of {_TAIL} / one Redis script", "p50", gate=2.0,
                         note=f"{rounds} rounds of {reads} reads; floor: bytes as they come, nothing parsed")  # fmt: skip
