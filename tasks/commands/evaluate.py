"""`eval`: somebody's own questions, and how well each leg and what is made of them answers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from isotherm import storage
from isotherm.pipeline import evaluation
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.evaluation import CUTS, Answered, Measured, Question
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.answers import Recalled
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.storage.postgres import tier_list
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import reaching
from isotherm.tasks import produce_brain, producers
from isotherm.tasks.commands.inputs import bytes_of
from isotherm.tasks.commands.output import (
    JsonFlag,
    clip,
    counted,
    err,
    errors_as_sentences,
    out,
    print_json,
    ready,
    table,
)

_DEPTH = 50
_BAR = 40
_SHOWN = 10

Found = dict[str, Sequence[frozenset[str]]]


def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help='JSON lines: {"question": …, "expected": [ids], "kb": … or "agent": …}.'
        ),
    ],
    *,
    agent: Annotated[
        str, typer.Option("--agent", "-a", help="Whose knowledge, where a line does not say.")
    ] = "default",
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="The customer it belongs to.")] = None,
    misses: Annotated[bool, typer.Option("--misses", help="Show questions that miss something, too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Ask your own questions and see how much of what they should find each leg finds, and what is made of all legs."""
    with errors_as_sentences():
        questions = evaluation.read_questions(_lines(file))
        storage.open(ready())
        answered, took = _asked(questions, agent, tenant)
        ways = evaluation.ways_of(answered)
        measured = {way: evaluation.measure(answered, way) for way in ways}
        unknown = [(each.question, name) for each in answered for name in _unknown(each, agent, tenant)]
        if as_json:
            named = [{"line": question.line, "expected": name} for question, name in unknown]
            print_json({**_json(answered, measured, took), "unknown": named})
            return
        _show(measured, took, len(questions))
        if misses:
            _show_misses(answered, ways)
        if unknown:
            lines = ", ".join(str(line) for line in dict.fromkeys(question.line for question, _ in unknown))
            err.print(
                f"[yellow]{counted(len(unknown), 'expected name')} not in what was asked, line {lines}[/yellow]",
                soft_wrap=True,
            )


def _lines(file: Path) -> list[str]:
    try:
        return bytes_of(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise RejectedError(f"{file.name}: not UTF-8") from None


def _asked(
    questions: Sequence[Question], agent: str, tenant: str | None
) -> tuple[list[Answered], dict[str, list[float]]]:
    answered, took = [], defaultdict[str, list[float]](list)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        for question in progress.track(questions, description="asking"):
            found = (
                _of_records(question, took) if _is_record(question) else _of_knowledge(question, agent, tenant, took)
            )
            answered.append(Answered(question, found))
    return answered, took


def _of_knowledge(question: Question, agent: str, tenant: str | None, took: dict[str, list[float]]) -> Found:
    namespace = produce_brain.knowledge(question.kb or agent, tenant=question.tenant or tenant)
    found: Found = {}
    for way, search in storage.open().brain.ways().items():
        begun = time.perf_counter()
        answer = search(namespace, question.text, _DEPTH)
        took[way].append(time.perf_counter() - begun)
        found[way] = [frozenset({str(r.object.id), r.object.title}) for r in answer.results]
    return found


def _of_records(question: Question, took: dict[str, list[float]]) -> Found:
    """Records in the order that recall gives them, and in the order that each part of its score would."""
    namespace = Namespace.of(question.agent or "", question.session, tenant=question.tenant)
    scope = namespace.bank if question.session is None else namespace
    begun = time.perf_counter()
    answer = producers.recall(scope, question.text, budget=RecallBudget(total=_DEPTH), touch=False)
    took["recall"].append(time.perf_counter() - begun)
    parts = {
        "recall, words alone": lambda item: item.score.overlap,
        "recall, vectors alone": lambda item: item.score.cosine or 0.0,
        "recall": lambda item: item.score.total,
    }
    return {way: [_names(item) for item in sorted(answer.items, key=part, reverse=True)] for way, part in parts.items()}


def _unknown(answered: Answered, agent: str, tenant: str | None) -> list[str]:
    """What is expected of a question but does not exist where it was asked: no way could have found it."""
    question = answered.question
    found = {name for results in answered.found.values() for names in results for name in names}
    exists = _record_exists if _is_record(question) else _object_exists
    return [name for name in sorted(question.expected - found) if not exists(question, name, agent, tenant)]


def _record_exists(question: Question, name: str, _agent: str, _tenant: str | None) -> bool:
    namespace = Namespace.of(question.agent or "", question.session, tenant=question.tenant)
    scope = Scope(bank=namespace.bank) if question.session is None else Scope(namespace=namespace)
    with reaching(namespace if question.session is not None else namespace.bank), connection() as conn:
        return tier_list.standing(conn, scope, name) is not None


def _object_exists(question: Question, name: str, agent: str, tenant: str | None) -> bool:
    namespace = produce_brain.knowledge(question.kb or agent, tenant=question.tenant or tenant)
    answer = storage.open().brain.find_exact(namespace, name, limit=_SHOWN)
    return any(name in {str(each.object.id), each.object.title} for each in answer.results)


def _is_record(question: Question) -> bool:
    return question.kb is None and question.agent is not None


def _names(item: Recalled) -> frozenset[str]:
    return frozenset({item.record.id})


def _show(measured: dict[str, Measured], took: dict[str, list[float]], count: int) -> None:
    rows = [
        (way, *(f"{one.recall[cut]:.3f}" for cut in CUTS), f"{one.whole:.3f}", f"{one.reciprocal_rank:.3f}",
         _milliseconds(took.get(way))) for way, one in measured.items()
    ]  # fmt: skip
    columns = ("", *(f"recall@{cut}" for cut in CUTS), f"all in {CUTS[-1]}", "MRR", "ms")
    out.print(table(counted(count, "question"), columns, rows, right=range(1, len(columns))))
    cut = CUTS[-1]
    best = max(one.recall[cut] for one in measured.values())
    wide = max(map(len, measured))
    out.print(f"[bold]recall@{cut}[/bold]")
    for way, one in measured.items():
        style = "green" if one.recall[cut] == best else "cyan"
        bar = "█" * round(one.recall[cut] * _BAR)
        out.print(f"{way:<{wide}} [{style}]{bar:<{_BAR}}[/{style}] {one.recall[cut]:.3f}", highlight=False)


def _show_misses(answered: Sequence[Answered], ways: Sequence[str]) -> None:
    for way in ways[-1:]:
        rows = [
            (each.question.line, clip(each.question.text, 70), len(each.places(way)), len(each.question.expected))
            for each in evaluation.missed(answered, way)
        ]
        columns = ("line", "question", f"found in {_DEPTH}", "expected")
        out.print(table(f"Not all in the first {_SHOWN}, {way}", columns, rows, right=(0, 2, 3)))


def _milliseconds(taken: Sequence[float] | None) -> str:
    return "-" if not taken else f"{sorted(taken)[len(taken) // 2] * 1000:.0f}"


def _json(answered: Sequence[Answered], measured: dict[str, Measured], took: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "questions": len(answered),
        "ways": {
            way: {
                "recall": {str(cut): value for cut, value in one.recall.items()},
                "all_in_10": one.whole,
                "mrr": one.reciprocal_rank,
                "median_ms": sorted(took[way])[len(took[way]) // 2] * 1000 if took.get(way) else None,
            }
            for way, one in measured.items()
        },
        "places": [{"line": each.question.line, **{way: each.places(way) for way in each.found}} for each in answered],
    }
