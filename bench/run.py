"""Run the benches: `python bench/run.py [--only NAME …] [--quick] [--json FILE] [--write] [--locomo FOLDER]`.

Needs nothing but the package with its extra `embedded`; servers are private and gone afterwards.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from arena import Arena, arena
from brain_speed import brain_speed
from chats import chats
from interest_speed import history, run_speed
from locomo import locomo
from machine import facts, load
from measure import Line
from moving import reconcile
from quality import quality
from quality_sets import SETS
from reading import recall, tail
from recall_vectors import recall_vectors
from results import show, write
from scaling import scale
from tiers_pay import ingest, pay
from writing import noop, remember

BENCHES: Mapping[str, Callable[..., Iterable[Line]]] = {
    "remember": remember,
    "noop": noop,
    "tail": tail,
    "recall": recall,
    "recall_vectors": recall_vectors,
    "reconcile": reconcile,
    "scale": scale,
    "ingest": ingest,
    "interest": run_speed,
    "history": history,
    "pay": pay,
    "locomo": locomo,
    "quality": quality,
    "brain": brain_speed,
    "chats": chats,
}


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; the exit code is 1 when a bench broke off.

    It is 0 even when a gate was missed, since a busy machine is not a fault.
    """
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped all the same
    lines: list[Line] = []
    broken: dict[str, str] = {}
    about = {"load before": load()}
    begun = time.perf_counter()
    with arena() as ground:
        about = {**facts(ground.endpoints.postgres_dsn, ground.client, ground.folder), **about}
        for name in options.only or BENCHES:
            print(f"{name} …", file=sys.stderr)
            broken |= collect(name, lambda name=name: _run(name, ground, options), lines)  # type: ignore[misc]
    about |= {"load after": load(), "duration": f"{time.perf_counter() - begun:.0f} s", "sizes": _sizes(options)}
    about |= {f"broke off: {name}": reason for name, reason in broken.items()}
    show(lines, about)
    if options.json:
        rows = [{**dataclasses.asdict(n), "ratio": n.ratio, "verdict": n.verdict} for n in lines]
        options.json.write_text(json.dumps({"machine": about, "lines": rows}, indent=2) + "\n", encoding="utf-8")
    if options.write:
        write(lines, about)
    return 1 if broken else 0


def collect(name: str, run: Callable[[], Iterable[Line]], lines: list[Line]) -> dict[str, str]:
    """Add the figures of a bench, and of one that breaks off those that it came to; returns why it did, by its name."""
    try:
        for line in run():
            lines.append(line)  # noqa: PERF402 - one by one, since the next may not come
    except Exception as error:  # noqa: BLE001 - whatever ends one bench must not take the figures of the others with it
        traceback.print_exc()
        return {name: " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    return {}


# Benches of what a model makes of texts; the others measure what is around it, and go without one.
_WITH_MODEL = {"locomo", "pay"}
_UP_TO_LARGE = {"scale", "history", "brain"}


def _run(name: str, ground: Arena, options: argparse.Namespace) -> Iterable[Line]:
    os.environ["ISOTHERM_EMBEDDER"] = "auto" if name in _WITH_MODEL else "none"
    if name == "locomo":
        return locomo(ground, options.locomo, quick=options.quick)
    if name in _UP_TO_LARGE:
        return BENCHES[name](ground, quick=options.quick, large=options.large)
    if name == "pay":
        beam = options.locomo.parent / "beam_100k" if options.locomo else None
        return pay(ground, options.locomo, beam, quick=options.quick)
    if name == "quality":
        return quality(ground, options.data, quick=options.quick, sets=options.sets, cache=options.cache)
    if name == "chats":
        return chats(ground, options.data, quick=options.quick, cache=options.cache)
    return BENCHES[name](ground, quick=options.quick)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    data = os.environ.get("ISOTHERM_BENCH_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), metavar="NAME", help=f"of: {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, less than a minute in all")
    parser.add_argument(
        "--large", action="store_true", help="1,000,000 records and 300,000 parts too, twenty minutes more"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON too")
    parser.add_argument("--write", action="store_true", help="write bench/RESULTS.md")
    parser.add_argument(
        "--locomo",
        type=Path,
        default=Path(data) / "locomo" if data else None,
        metavar="FOLDER",
        help="folder of conv-*.json; default: the folder locomo in ISOTHERM_BENCH_DATA",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(data) if data else None,
        metavar="FOLDER",
        help="folder of the sets that `quality` asks; default: ISOTHERM_BENCH_DATA",
    )
    parser.add_argument("--sets", nargs="+", choices=list(SETS), metavar="SET", help=f"of: {', '.join(SETS)}")
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="where `quality` keeps vectors that it had to make"
    )
    return parser.parse_args(arguments)


def _sizes(options: argparse.Namespace) -> str:
    return "quick: too small for the gates to mean much" if options.quick else "full"


if __name__ == "__main__":
    sys.exit(main())
