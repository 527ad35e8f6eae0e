"""Stages of interests that read a session: extract, s1 fold, s1 judge.

Each keeps what it found in the answer of its step, and writes the steps of the next stage in the transaction that settles
it. A part that failed for good has no answer: the next stage keeps its points as they are.
"""

from __future__ import annotations

import json
from dataclasses import replace

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.events import CandidatesExtracted, CandidatesFolded, GroupsJudged
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.interest import codec, s1
from isotherm.pipeline.interest.budget import StoodIn
from isotherm.pipeline.interest.candidates import Point
from isotherm.pipeline.interest.pairs import relate_by_rules
from isotherm.pipeline.interest.windows import Window, windows
from isotherm.storage import cold
from isotherm.storage.postgres import interest_session, interest_steps, steps
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.tasks.interest_models import Readers
from isotherm.tasks.interest_run import Json, ask_each, batches, end, follow, next_step, only, readers, report
from isotherm.tasks.onward import go_on
from isotherm.tasks.stage import claimed, stage_task, tell

# User turns of a window. What a model is shown must stay short; for the rules a window is only a unit of work.
_WINDOW = {True: 5, False: 10}


@stage_task(stages.EXTRACT)
def extract(payload: Json) -> Json:
    """Read the candidates out of a session; a long one is cut into parts that are read side by side."""
    with claimed(payload) as step:
        who = readers(step)
        parts = [step.input] if step.unit else _parts(step, who)
        if len(parts) == 1:
            _extract_part(step, parts[0], who)
        else:
            header = [[NewStep(stages.EXTRACT, part, str(n))] for n, part in enumerate(parts)]
            with connection() as conn:
                messages = follow(conn, step, next_step(stages.S1_FOLD), *header)
                step.settle(conn, {"parts": len(parts)})
            go_on(step, messages)
    return step.receipt


def _parts(step: ClaimedStep, who: Readers) -> list[Json]:
    """Parts of a session, each but the first beginning with a user turn; one for a session without any."""
    namespace_id = int(step.input["namespace_id"])
    with connection() as conn:
        outline = interest_session.outline(conn, namespace_id)
    turns = [place for place, (_, role) in enumerate(outline) if role.casefold() == "user"]
    cuts = batches(turns[:: _WINDOW[who.chat is not None]], who.per_step)
    starts = [0, *(cut[0] for cut in cuts[1:])]
    keys = [key for key, _ in outline]
    return [
        {"namespace_id": namespace_id, "first": first, "keys": keys[first:end]}
        for first, end in zip(starts, [*starts[1:], len(keys)], strict=True)
    ]


def _extract_part(step: ClaimedStep, part: Json, who: Readers) -> None:
    with connection() as conn:
        found = interest_session.messages(conn, int(part["namespace_id"]), part["keys"], int(part["first"]))
    blobs = storage.open().blobs
    said = [m if at is None else replace(m, text=cold.text_or_summary(at, blobs)) for m, at in found]

    def read(window: Window) -> tuple[list[Json], StoodIn | None]:
        candidates, why = who.extract(window)
        return codec.dump_candidates(candidates), why

    cut = windows(said, _WINDOW[who.chat is not None])
    asked = ask_each(step, who, {str(w.first): lambda w=w: read(w) for w in cut}, StoodIn.REFUSED)  # type: ignore[misc]
    counts = {"windows": len(cut), "candidates": sum(map(len, asked.said.values())), "fallbacks": len(asked.stood_in)}
    messages: list[Message] = []
    with connection() as conn:
        if not step.unit:
            messages = follow(conn, step, next_step(stages.S1_FOLD))
        end(conn, step, asked, counts, None, StoodIn.REFUSED)
    go_on(step, messages)
    report(step, CandidatesExtracted(**counts))


@stage_task(stages.S1_FOLD)
def fold(payload: Json) -> Json:
    """Make candidates of one name one, embed them in one batch, and find the groups that need a judgement."""
    with claimed(payload) as step:
        who = readers(step)
        answer = _folded(step, who)
        groups = [n for n, group in enumerate(answer["groups"]) if len(group) > 1]
        cut = batches(groups, who.per_step)
        header = [[next_step(stages.S1_JUDGE, str(n), {"groups": batch})] for n, batch in enumerate(cut)]
        counts = {"candidates": answer["candidates"], "points": len(answer["points"]), "groups": len(groups)}
        with connection() as conn:
            steps.store_answer(conn, step, answer)
            messages = follow(conn, step, next_step(stages.S2_CLUSTER), *header)
            step.settle(conn, counts)
        go_on(step, messages)
        tell(step, CandidatesFolded(**counts))
    return step.receipt


def _folded(step: ClaimedStep, who: Readers) -> Json:
    with connection() as conn:
        parts = interest_steps.answers(conn, step, stages.EXTRACT)
    # A retry may have brought parts that were missing when this step ran for the first time, or other answers.
    seen = {unit: digest(json.dumps(part["said"], sort_keys=True)).hex() for unit, part in parts.items()}
    if step.answer is not None and step.answer["parts"] == seen:
        return step.answer
    read = [one for part in parts.values() for window in part["said"].values() for one in window]
    candidates = sorted(codec.load_candidates(read), key=lambda c: c.turn_range or (0, 0))
    folded = s1.fold(candidates)
    points = [Point(c, vec) for c, vec in zip(folded, who.embed(folded), strict=True)]
    return {
        "points": codec.dump_points(points),
        "groups": s1.group(points, relate_by_rules),
        "model": who.embedder.model if who.embedder else None,
        "candidates": len(candidates),
        "parts": seen,
    }


@stage_task(stages.S1_JUDGE)
def judge(payload: Json) -> Json:
    """Judge groups of points that may be one; a group that cannot be judged stays as it is."""
    with claimed(payload) as step:
        who = readers(step)
        with connection() as conn:
            folded = only(conn, step, stages.S1_FOLD)
        points = codec.load_points(folded["points"])
        groups = {str(n): [points[i] for i in folded["groups"][n]] for n in step.input["groups"]}

        def read(group: list[Point]) -> tuple[list[Json], StoodIn | None]:
            merges, why = who.merge(group)
            return codec.dump_merges(merges), why

        asked = ask_each(step, who, {n: lambda g=g: read(g) for n, g in groups.items()}, StoodIn.REFUSED)  # type: ignore[misc]
        judged = {n: s1.apply(group, codec.load_merges(asked.said[n])) for n, group in groups.items()}
        whole = _embedded(judged, who)
        before, after = sum(map(len, groups.values())), sum(map(len, whole.values()))
        counts = {"groups": len(groups), "points": after, "merged": before - after, "fallbacks": len(asked.stood_in)}
        with connection() as conn:
            found = {n: codec.dump_points(group) for n, group in whole.items()}
            end(conn, step, asked, counts, {"points": found}, StoodIn.REFUSED)
        report(step, GroupsJudged(**counts))
    return step.receipt


def _embedded(judged: dict[str, list[Point]], who: Readers) -> dict[str, list[Point]]:
    """The points with vectors for those that got new words."""
    bare = [p.candidate for group in judged.values() for p in group if p.vec is None]
    vectors = iter(who.embed(bare))
    return {
        n: [p if p.vec is not None else Point(p.candidate, next(vectors)) for p in group] for n, group in judged.items()
    }
