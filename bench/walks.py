"""Recall with and without a walk: passages as records, their titles as objects of the agent's knowledge without any text.

    python bench/walks.py --data FOLDER hotpot 2wiki780      # sets as in `quality.py`; without a name all three

What a walk adds to recall shows where an answer needs two records and the second is named only in the first. Nothing is set
for one set only; vectors are those made beforehand.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from arena import Arena, arena, run_steps
from machine import load
from measure import Line, figures
from quality import Given
from quality_sets import SETS, Collection, RetrievalSet, text_of_document
from results import show

from isotherm.pipeline.brain.objects import NewObject, derived_id
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.tasks import produce_brain, producers

_SETS = ("hotpot", "2wiki780", "musique")
_BANK, _SESSION = Bank(None, "walks"), Namespace.of("walks", "read")
_TOP, _BATCH = 10, 250
_READ = datetime(2024, 1, 1, tzinfo=UTC)


def walks(ground: Arena, data: Path, sets: Sequence[str]) -> list[Line]:
    """Store each set in a database of its own and ask its questions both ways."""
    lines: list[Line] = []
    for name in sets:
        print(f"walks: {name} …", file=sys.stderr)
        with ground.fresh() as opened:
            lines += list(_measured(ground, opened, SETS[name](data)))
    return lines


def _measured(ground: Arena, opened: Storage, one: RetrievalSet) -> Iterator[Line]:
    collection = one.collections[0]
    _stored(opened, one, collection)
    ground.tidy("tier_records", "tier_postings", "tier_vectors", "brain_names")
    reached = {}
    for graph in (False, True):
        scores, taken = defaultdict(list), []
        for question in collection.questions:
            begun = time.perf_counter()
            answer = producers.recall(_BANK, question.text, budget=RecallBudget(total=_TOP), touch=False, graph=graph)
            taken.append(time.perf_counter() - begun)
            found = [item.record.id for item in sorted(answer.items, key=lambda item: -item.score.total)]
            for name, measure in one.measures.items():
                scores[name].append(measure(found, question.gold))
        reached[graph] = {name: statistics.fmean(values) for name, values in scores.items()}
        took = figures(taken)
        first, *rest = reached[graph]
        note = f"{len(taken)} questions; " + ", ".join(f"{name} {reached[graph][name]:.3f}" for name in rest)
        way = "with a walk" if graph else "without"
        yield Line("walks", f"{one.name}: {first} by recall {way}", reached[graph][first], "", "higher",
                   floor=reached[False][first] if graph else None, gate=1.0 if graph else None,
                   note=f"{note}; p50 {took.p50 * 1000:.1f} ms, p95 {took.p95 * 1000:.1f} ms")  # fmt: skip


def _stored(opened: Storage, one: RetrievalSet, collection: Collection) -> None:
    records = [
        NewRecord(d.name, text_of_document(d), _READ + timedelta(seconds=n), importance=0.5)
        for n, d in enumerate(collection.documents)
    ]
    knowledge = produce_brain.knowledge("walks")
    titles = [NewObject(derived_id(knowledge, "walks", d.name), "title", d.title) for d in collection.documents]
    factory.use_embedder(opened.settings, Given(one.vectors))
    for at in range(0, len(records), _BATCH):
        producers.remember_records(_SESSION, records[at : at + _BATCH])
    run_steps()
    factory.use_embedder(opened.settings, None)  # titles alone have no vectors here
    for at in range(0, len(titles), _BATCH):
        produce_brain.put_many(knowledge, titles[at : at + _BATCH])
    run_steps()
    factory.use_embedder(opened.settings, Given(one.vectors))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is named, or all three sets; 0 in any case."""
    data = os.environ.get("ISOTHERM_BENCH_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of: {', '.join(_SETS)}")
    parser.add_argument("--data", type=Path, default=Path(data) if data else None, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if unknown := set(options.sets) - set(_SETS):
        parser.error(f"no set is called {', '.join(sorted(unknown))}")
    if options.data is None:
        print("walks: skipped; name the folder of the sets in ISOTHERM_BENCH_DATA", file=sys.stderr)
        return 0
    os.environ["ISOTHERM_EMBEDDER"] = "none"
    with arena() as ground:
        before = load()
        lines = walks(ground, options.data, options.sets or _SETS)
        show(lines, {"load before": before, "load after": load()})
    for line in lines:
        print(f"{line.name} {line.note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
