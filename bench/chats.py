"""Recall over long chats with an assistant (BEAM): evidence found, newer statements first, both sides of a contradiction.

    python bench/chats.py --data FOLDER --cache DIR     # FOLDER holds beam_100k; vectors are made once and kept in DIR

Messages are stored by the producer, each batch of a chat as a session, and finished by the tasks a worker would run; the
questions are asked by the public verb `recall` over the whole chat. The data are not part of this project.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from arena import Arena, arena, run_steps
from machine import load
from measure import Line, figures
from numpy.typing import NDArray
from results import show

from isotherm.pipeline.identity import Bank
from isotherm.pipeline.ports import Embedder
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.models import factory
from isotherm.storage.settings import Settings
from isotherm.tasks import producers

_MARKER = re.compile(r"\s*->->.*$", re.DOTALL)
_BEGUN = datetime(2024, 1, 1, tzinfo=UTC)
_TOP, _SEEN = 10, 100
_BATCH = 100
_UPDATE, _CONTRADICTION = "knowledge_update", "contradiction_resolution"


class KeptEach:
    """An embedder whose answers are kept in a folder, one file for each text. Args: folder: None keeps nothing."""

    def __init__(self, within: Embedder, folder: Path | None) -> None:
        self._within, self._folder = within, folder
        self.model, self.dimension = within.model, within.dimension

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of any texts; shape (n, dimension)."""
        return np.stack([self._one(text) for text in texts]) if texts else self._within.embed([])

    def _one(self, text: str) -> NDArray[np.float32]:
        if self._folder is None:
            return self._within.embed([text])[0]
        path = self._folder / f"{blake2b(f'{self.model}{text}'.encode(), digest_size=16).hexdigest()}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, self._within.embed([text])[0])
        kept: NDArray[np.float32] = np.load(path)
        return kept.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a chat and what belongs to it. Args: sides: ids of both sides of an update or a contradiction."""

    chat: str
    kind: str
    text: str
    gold: frozenset[str]
    sides: tuple[frozenset[str], frozenset[str]] | None = None


@dataclass(slots=True)
class Score:
    """What came of the questions in one way of asking."""

    recall: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    updated: int = 0
    both: int = 0
    seconds: list[float] = field(default_factory=list)


def chats(ground: Arena, data: Path | None, *, cache: Path | None = None, quick: bool = False) -> list[Line]:
    """Store the chats and ask their questions, with newer statements first and without."""
    files = sorted((data / "beam_100k").glob("*.chat.json.gz")) if data else []
    offline = factory.embedder(Settings(embedder="auto"))
    if not files or offline is None:
        print("chats: skipped; it needs the set in ISOTHERM_BENCH_DATA, and the extra local-models", file=sys.stderr)
        return []
    with ground.fresh() as opened:
        factory.use_embedder(opened.settings, KeptEach(offline, cache))
        asked = [one for path in files[: 2 if quick else None] for one in stored(path)]
        run_steps()
        ground.tidy("tier_records", "tier_postings", "tier_vectors")
        scores = {newest: _asked(asked, newest_first=newest) for newest in (True, False)}
    return list(_lines(scores[True], scores[False]))


def _lines(ours: Score, off: Score) -> Iterator[Line]:
    every = [share for shares in ours.recall.values() for share in shares]
    kinds = ", ".join(f"{kind} {statistics.fmean(v):.2f}" for kind, v in sorted(ours.recall.items()))
    took = figures(ours.seconds)
    yield Line("chats", "R@10 by recall", statistics.fmean(every) * 100, "%", "higher",
               note=f"{len(every)} questions; p50 {took.p50 * 1000:.1f} ms, p95 {took.p95 * 1000:.1f} ms; {kinds}")  # fmt: skip
    yield Line("chats", "updated above original, of 32", ours.updated, "", "higher", floor=22, gate=1.0,
               note=f"{off.updated} without the rule")  # fmt: skip
    yield Line("chats", "both sides of a contradiction in the first ten, of 32", ours.both, "", "higher", floor=24, gate=1.0,
               note=f"{off.both} without the rule")  # fmt: skip
    rest = [[r for kind, v in s.first.items() if kind not in {_UPDATE, _CONTRADICTION} for r in v] for s in (ours, off)]
    with_rule, without = (statistics.fmean(ranks) for ranks in rest)
    yield Line("chats", "MRR of the other kinds / the same without the rule", with_rule, "", "higher", floor=without,
               gate=0.97)  # fmt: skip


def _asked(asked: Sequence[Asked], *, newest_first: bool) -> Score:
    score = Score()
    for one in asked:
        begun = time.perf_counter()
        answer = producers.recall(
            Bank(None, one.chat), one.text, budget=RecallBudget(total=_TOP), touch=False, newest_first=newest_first
        )
        score.seconds.append(time.perf_counter() - begun)
        first = {item.record.id for item in answer.items}
        more = producers.recall(
            Bank(None, one.chat), one.text, budget=RecallBudget(total=_SEEN), touch=False, newest_first=newest_first
        )
        ordered = sorted(more.items, key=lambda item: -item.score.total)
        places = {item.record.id: place for place, item in enumerate(ordered, start=1)}
        score.recall[one.kind].append(len(one.gold & first) / len(one.gold))
        score.first[one.kind].append(max((1 / places[i] for i in one.gold if i in places), default=0.0))
        if one.sides is not None:
            _compare(one, one.sides, places, first, score)
    return score


def _compare(
    one: Asked,
    sides: tuple[frozenset[str], frozenset[str]],
    places: Mapping[str, int],
    first: set[str],
    score: Score,
) -> None:
    if one.kind == _CONTRADICTION:
        score.both += all(side & first for side in sides)
    else:
        old, new = (min((places[i] for i in side if i in places), default=_SEEN + 1) for side in sides)
        score.updated += new < old


def stored(path: Path) -> list[Asked]:
    """Store a chat, each batch as a session; returns its questions."""
    chat = path.name.split(".")[0]
    lines = list(_messages(chat, json.loads(gzip.decompress(path.read_bytes()))))
    for at in range(0, len(lines), _BATCH):
        producers.remember_messages(lines[at : at + _BATCH])
    questions = json.loads(path.with_name(f"{chat}.probing_questions.json").read_text(encoding="utf-8"))
    return [
        Asked(chat, kind, one["question"], gold, _sides(kind, one["source_chat_ids"]))
        for kind, ones in questions.items()
        for one in ones
        if (gold := frozenset(_ids(one.get("source_chat_ids"))))
    ]


def _messages(chat: str, batches: Sequence[Any]) -> Iterator[TranscriptLine]:
    number = 0
    for day, batch in enumerate(batches):
        for message in (message for turn in batch["turns"] for message in turn):
            said = _MARKER.sub("", message["content"]).strip() or "-"
            at = _BEGUN + timedelta(days=day, seconds=number)
            number += 1
            yield TranscriptLine(number, chat, f"batch_{day}", None, message["role"], said, at, id=str(message["id"]))


def _sides(kind: str, given: Any) -> tuple[frozenset[str], frozenset[str]] | None:  # noqa: ANN401 - as the file has it
    names = {_UPDATE: ("original_info", "updated_info"), _CONTRADICTION: ("first_statement", "second_statement")}
    if kind not in names:
        return None
    one, other = (frozenset(_ids(given[name])) for name in names[kind])
    return one, other


def _ids(given: Any) -> Iterator[str]:  # noqa: ANN401 - a list, or lists by what they stand for
    if isinstance(given, Mapping | list):
        for each in given.values() if isinstance(given, Mapping) else given:
            yield from _ids(each)
    elif given is not None:
        yield str(given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0 in any case."""
    data = os.environ.get("ISOTHERM_BENCH_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=Path(data) if data else None, metavar="FOLDER")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where the vectors are kept")
    parser.add_argument("--quick", action="store_true", help="two chats")
    options = parser.parse_args(arguments)
    with arena() as ground:
        before = load()
        lines = chats(ground, options.data, cache=options.cache, quick=options.quick)
        show(lines, {"load before": before, "load after": load()})
    for line in lines:
        print(f"{line.name} {line.note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
