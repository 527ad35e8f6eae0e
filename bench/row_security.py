"""What the second lock costs: `python bench/row_security.py [--quick]`.

The same calls in the same process on the same rows, with row-level security off and on in turns; then which indexes each side
reads, as the server counts it. Off, the login owns the tables and no policy binds it, so the database is one for both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import psycopg
from arena import Arena, arena, run_steps
from brain_corpus import Built, Given, build
from corpus import Corpus, zipf
from machine import load
from reading import load as load_records
from rich.console import Console
from rich.table import Table

from isotherm import storage
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.storage import settings as settings_module
from isotherm.storage.models import factory
from isotherm.storage.postgres.migrate import migrate
from isotherm.tasks import producers

_AGENT = "bench-reader"
_CALLS, _ROUNDS, _WARM = 30, 5, 10
_SETTLE_S = 1.0  # until the server has the counts of a connection that ended

_READ = """
SELECT indexrelname, idx_scan FROM pg_stat_user_indexes
UNION ALL SELECT 'all of ' || relname, seq_scan FROM pg_stat_user_tables"""
# Columns of indexes with no operator that is leakproof, and those of an expression, which hold a function that is not.
_CLOSED = """
SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid, k.place::int, true)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid AND c.relrowsecurity
CROSS JOIN unnest(i.indclass::oid[], i.indkey::int2[]) WITH ORDINALITY AS k (class, attribute, place)
JOIN pg_opclass AS o ON o.oid = k.class
WHERE k.attribute = 0 OR NOT EXISTS (
    SELECT FROM pg_amop AS a JOIN pg_operator AS p ON p.oid = a.amopopr JOIN pg_proc AS f ON f.oid = p.oprcode
    WHERE a.amopfamily = o.opcfamily AND a.amoppurpose = 's' AND f.proleakproof)
ORDER BY 1, 2"""


@dataclass(frozen=True, slots=True)
class Price:
    """What one verb takes. Args: off_ms, on_ms: medians of rounds; ratios: of each round; lost, new, kept: indexes read only so, or both ways."""

    verb: str
    off_ms: float
    on_ms: float
    ratios: tuple[float, ...]
    lost: tuple[str, ...]
    new: tuple[str, ...]
    kept: tuple[str, ...]


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5,000 records and parts instead of 20,000")
    size = 5_000 if parser.parse_args(arguments).quick else 20_000
    before = load()
    with arena() as ground, ground.fresh() as memory:
        built, corpus = build(ground.dsn, size), zipf(size)
        embedder = Given(built.queries(_CALLS))
        factory.use_embedder(memory.settings, embedder)
        load_records(corpus)
        ground.tidy("tier_records", "tier_postings", "tier_vectors", "operation_steps", "operations", "outbox")
        migrate(ground.dsn, rls=True)
        prices = [_priced(ground, embedder, verb, calls) for verb, calls in _verbs(built, corpus).items()]
        with psycopg.connect(ground.dsn) as conn:
            closed = [f"{index} ({column})" for index, column in conn.execute(_CLOSED).fetchall()]
    _show(prices, size, before)
    Console(width=150).print(f"columns that no condition of a statement looks up: {'; '.join(closed)}", highlight=False)
    return 0


def _verbs(built: Built, corpus: Corpus) -> Mapping[str, Callable[[int], object]]:
    asked, questions = list(built.queries(_CALLS)), corpus.queries(_CALLS)
    bank, session = Bank(None, _AGENT), Namespace.of(_AGENT, "s3")
    known = built.namespace
    title = [producers.search(known, one, limit=1).results[0].object for one in asked[:_CALLS]]
    return {
        "remember": lambda n: producers.remember(session, f"said {n} at {time.monotonic_ns()}"),
        "get": lambda _: producers.get(session, "d3"),
        "recall of a bank": lambda n: producers.recall(bank, questions[n], touch=False),
        "recall of a session": lambda n: producers.recall(session, questions[n], touch=False),
        "list_all": lambda _: producers.list_all(session),
        "search": lambda n: producers.search(known, asked[n]),
        "find_exact": lambda n: producers.find_exact(known, title[n].title),
        "read": lambda n: producers.read(known, title[n].id),
        "put": lambda n: producers.put(known, "note", title=f"note {n} {time.monotonic_ns()}", content=asked[n]),
    }


def _priced(ground: Arena, embedder: Given, verb: str, call: Callable[[int], object]) -> Price:
    taken: dict[bool, list[float]] = {False: [], True: []}
    for number in range(_ROUNDS):
        for on in (False, True) if number % 2 == 0 else (True, False):
            _open(embedder, on=on)
            taken[on].append(_median(call))
    read = {on: _indexes(ground, embedder, call, on=on) for on in (False, True)}
    run_steps()
    ratios = tuple(a / b for a, b in zip(taken[True], taken[False], strict=True))
    off, on = (statistics.median(taken[which]) for which in (False, True))
    lost, new, kept = read[False] - read[True], read[True] - read[False], read[False] & read[True]
    return Price(verb, off, on, ratios, tuple(sorted(lost)), tuple(sorted(new)), tuple(sorted(kept)))


def _open(embedder: Given, *, on: bool) -> None:
    producers.flush()
    storage.close()
    os.environ["ISOTHERM_RLS"] = "on" if on else "off"
    settings_module.settings.cache_clear()
    factory.use_embedder(storage.open().settings, embedder)


def _median(call: Callable[[int], object]) -> float:
    taken = []
    for number, n in zip(range(_WARM + _CALLS), cycle(range(_CALLS)), strict=False):
        begun = time.perf_counter()
        call(n)
        if number >= _WARM:
            taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


def _indexes(ground: Arena, embedder: Given, call: Callable[[int], object], *, on: bool) -> set[str]:
    """Indexes, and tables as a whole, that the calls read at least once in two of them."""
    _open(embedder, on=on)
    with psycopg.connect(ground.dsn, autocommit=True) as conn:
        before = _counts(conn)
        for n in range(_CALLS):
            call(n)
        producers.flush()
        storage.close()
        time.sleep(_SETTLE_S)
        after = _counts(conn)
    _open(embedder, on=False)
    return {name for name, n in after.items() if n - before.get(name, 0) >= _CALLS / 2}


def _counts(conn: psycopg.Connection[Any]) -> dict[str, int]:
    conn.execute("SELECT pg_stat_clear_snapshot()")
    return {str(name): int(count or 0) for name, count in conn.execute(_READ).fetchall()}


def _show(prices: list[Price], size: int, before: str) -> None:
    table = Table(
        "verb", "off ms", "on ms", "on / off", "of rounds", title=f"Row-level security over {size:,} records and parts"
    )
    console = Console(width=150)
    for each in prices:
        ratio = statistics.median(each.ratios)
        spread = f"{min(each.ratios):.2f} to {max(each.ratios):.2f}"
        table.add_row(each.verb, f"{each.off_ms:.2f}", f"{each.on_ms:.2f}", f"{ratio:.2f}", spread)
    console.print(table)
    for each in prices:
        said = {"no more": each.lost, "instead": each.new, "as before": each.kept}
        read = "; ".join(f"{what}: {', '.join(names)}" for what, names in said.items() if names)
        console.print(f"{each.verb}: {read}", highlight=False, soft_wrap=True)
    console.print(f"load before: {before}; after: {load()}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
