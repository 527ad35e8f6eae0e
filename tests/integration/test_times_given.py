"""Times as people and programs give them: a moment with an offset, or a refusal. Nothing is guessed, and nothing half stored."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from verbs import call

from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import NewRecord
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.usefixtures("kept_storage")

NS = Namespace.of("atlas", "s1", tenant="times")
AWARE = datetime(2026, 3, 29, 1, 30, tzinfo=timezone(timedelta(hours=1)))
NAIVE = datetime(2026, 3, 29, 2, 30)  # noqa: DTZ001 - as somebody gives it; this one never was in most of Europe
# Some are moments to PostgreSQL, to `date` or to a person; none says which moment is meant.
RELATIVE = ("now", "today", "yesterday", "tomorrow", "last week", "2 hours ago", "in 5 minutes", "-1d", "P1D", "noon", "epoch",
            "infinity", "-infinity", "allballs", "1774744200", "12:30", "2026-W13", "2026-02-30T10:00:00Z",
            "2026-03-29T02:30:00", "29.03.2026 02:30", "2026-03-29T02:30:00 Europe/Berlin")  # fmt: skip

# Ends of a span of time, which are UTC where they name no zone, as the command says.
SPANS = {"1774744200", "2026-03-29T02:30:00"}
ENDS = ("after", "before")


def line(number: int, time: datetime) -> TranscriptLine:
    return TranscriptLine(number, "atlas", "s1", "times", "user", f"kelp {number}", time)


def stored() -> list[Any]:
    return fetch_all(
        "SELECT (SELECT count(*) FROM tier_records), (SELECT count(*) FROM brain_objects), (SELECT count(*) FROM operations)"
    )


CALLS: dict[str, Callable[[Sequence[datetime]], object]] = {
    "remember": lambda ts: producers.remember(NS, "kelp", time=min(ts, key=lambda t: t.tzinfo is not None)),
    "remember_records": lambda ts: producers.remember_records(NS, [NewRecord(f"r{n}", "k", t) for n, t in enumerate(ts)]),
    "remember_messages": lambda ts: producers.remember_messages([line(n, t) for n, t in enumerate(ts, 1)]),
    "ingest_session": lambda ts: producers.ingest_session(NS, [line(n, t) for n, t in enumerate(ts, 1)]),
    "put_many": lambda ts: producers.put_many(
        NS, [replace(NewObject(UUID(int=(1 << 100) + n), "note", f"n{n}"), source_time=t) for n, t in enumerate(ts)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_naive_time_among_others_is_refused_and_nothing_of_the_call_is_stored(name: str) -> None:
    before = stored()
    for times in ([NAIVE], [AWARE, NAIVE], [NAIVE, AWARE], [AWARE, AWARE.astimezone(UTC), NAIVE]):
        with pytest.raises(RejectedError):
            CALLS[name](times)
    assert stored() == before
    CALLS[name]([AWARE, AWARE.astimezone(UTC) + timedelta(minutes=1)])
    assert stored() != before


@pytest.mark.parametrize("said", RELATIVE)
def test_a_relative_or_incomplete_time_is_refused_by_every_surface(said: str, tmp_path: Path) -> None:
    before = stored()
    commands = [["remember", "kelp", f"--time={said}"]]
    if said not in SPANS:
        commands += [["interests", verb, "kelp", f"--{end}={said}"] for verb in ("list", "context") for end in ENDS]
    for command in commands:
        assert call(*command).code in {1, 2}, command
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps({"session": "s1", "role": "user", "content": "kelp", "time": said}))
    told = json.loads(call("ingest", str(file), "--no-wait", "--json").stdout)
    assert (told["written"], len(told["bad_lines"])) == (0, 1)
    file.write_text(json.dumps({"kind": "note", "title": "kelp", "source_time": said}))
    assert call("put", str(file), "--no-wait").code == 1
    assert stored() == before


def test_moments_in_other_offsets_are_one_moment_and_stand_in_the_order_they_happened() -> None:
    ns = Namespace.of("atlas", "offsets", tenant="times")
    east, west = timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))
    moments = [AWARE.astimezone(zone) + timedelta(minutes=n) for n, zone in enumerate((east, UTC, west, east))]
    producers.remember_records(ns, [NewRecord(f"o{n}", f"kelp {n}", t) for n, t in reversed(list(enumerate(moments)))])
    rows = fetch_all("SELECT id, created_at FROM tier_records WHERE id LIKE 'o_' ORDER BY created_at")
    assert rows == [(f"o{n}", moment.astimezone(UTC)) for n, moment in enumerate(moments)]
