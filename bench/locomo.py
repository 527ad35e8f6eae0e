"""Evidence recall on LoCoMo: does recall find the turns that a question's answer stands on? The data are not part of this project."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arena import Arena, open_steps, wait_until
from locomo_to_jsonl import load, messages, questions
from measure import Line, figures

from isotherm.pipeline.identity import Bank
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.pipeline.transcript import TranscriptLine, parse_lines
from isotherm.tasks import producers

_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop", 5: "no answer"}
_BATCH = 100
_CLI = "isotherm.tasks.cli"


@dataclass(frozen=True, slots=True)
class Asked:
    """One question's result: the conversation, its category, the share of its evidence that was found, seconds."""

    sample: str
    category: int
    share: float
    seconds: float


def locomo(ground: Arena, folder: Path | None, *, quick: bool) -> list[Line]:
    """Ingest conversations through the product, wait until all is done, and ask every question that has evidence."""
    files = sorted(p for p in folder.glob("conv-*.json") if "." not in p.stem) if folder else []
    if not files:
        print("locomo: skipped; name the folder of its records with --locomo or ISOTHERM_BENCH_DATA")
        return []
    if quick:
        files = files[:1]
    with ground.fresh(), ground.worker("isotherm.tasks", "db,llm,graph,maintenance"):
        count, seconds, how = _ingest(ground, files)
        lines = [
            Line("locomo", f"ingest of {len(files)} conversations", count / seconds, "1/s", "higher",
                 note=f"{count:,} messages {how}, one worker -c 2, until every operation is done ({seconds:.1f} s)")
        ]  # fmt: skip
        for name, weights in (("default weights", RecallWeights()), ("words only", _words_only())):
            for wanted in (10, 25):
                asked = [a for path in files for a in _ask(path, wanted, weights)]
                lines += _report(asked, f"R@{wanted}, {name}", detailed=wanted == 10)
    return lines


def _words_only() -> RecallWeights:
    return RecallWeights(semantic=1, recency=0, importance=0)


def _report(asked: Sequence[Asked], name: str, *, detailed: bool) -> list[Line]:
    lines = [_line(asked, f"{name}, all")]
    first = min(a.sample for a in asked)
    if detailed:
        lines.append(_line([a for a in asked if a.sample == first], f"{name}, {first} alone"))
        for category, title in _CATEGORIES.items():
            lines.append(_line([a for a in asked if a.category == category], f"{name}, {title}"))
    taken = figures([a.seconds for a in asked])
    lines.append(Line("locomo", f"{name}, time of a recall", taken.p50 * 1000, "ms", "lower",
                      note=f"p95 {taken.p95 * 1000:.1f} ms"))  # fmt: skip
    return lines


def _line(asked: Sequence[Asked], name: str) -> Line:
    share = sum(a.share for a in asked) / max(1, len(asked))
    return Line("locomo", name, share * 100, "%", "higher", note=f"{len(asked):,} questions")


def _ask(path: Path, wanted: int, weights: RecallWeights) -> Iterator[Asked]:
    record = load(path)
    bank, budget = Bank(None, record["sample_id"]), RecallBudget(total=wanted)
    for entry in questions(record):
        gold = set(entry["evidence"])
        if not gold:
            continue
        begun = time.perf_counter()
        found = producers.recall(bank, entry["question"], budget=budget, weights=weights, touch=False)
        seconds = time.perf_counter() - begun
        ids = {item.record.id for item in found.items}
        yield Asked(record["sample_id"], int(entry["category"]), len(gold & ids) / len(gold), seconds)


def _ingest(ground: Arena, files: Sequence[Path]) -> tuple[int, float, str]:
    paths = [_converted(path, ground.folder) for path in files]
    count = sum(path.read_bytes().count(b"\n") for path in paths)
    begun = time.perf_counter()
    if _has_command():
        how = "by `isotherm ingest`, its start included"
        for path in paths:
            _run_ingest(path)
    else:
        how = f"by remember_messages in calls of {_BATCH}"
        for path in paths:
            for at in range(0, len(lines := _parsed(path)), _BATCH):
                producers.remember_messages(lines[at : at + _BATCH])
    wait_until(lambda: open_steps() == 0, 120, "ingested operations")
    return count, time.perf_counter() - begun, how


def _converted(path: Path, folder: Path) -> Path:
    target = folder / f"{path.stem}.jsonl"
    target.write_text("".join(json.dumps(m, ensure_ascii=False) + "\n" for m in messages(load(path))), encoding="utf-8")
    return target


def _parsed(path: Path) -> list[TranscriptLine]:
    with path.open("rb") as lines:
        parsed = list(parse_lines(lines))
    return [line for line in parsed if isinstance(line, TranscriptLine)]


def _has_command() -> bool:
    if importlib.util.find_spec(_CLI) is None:
        return False
    return _command("ingest", "--help").returncode == 0


def _run_ingest(path: Path) -> None:
    done = _command("ingest", str(path))
    if done.returncode:
        raise RuntimeError(
            f"isotherm ingest ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
        )


def _command(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    code = f"import sys; from {_CLI} import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False)
