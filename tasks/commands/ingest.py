"""`ingest`: conversations from a file, a batch at a time; a bad line is named and set aside, and the rest goes in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from uuid import UUID

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from isotherm import storage
from isotherm.pipeline import stages, transcript
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.transcript import BadLine, TranscriptLine
from isotherm.storage import refused_lines
from isotherm.storage.models import factory
from isotherm.storage.postgres import operations
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.settings import settings
from isotherm.tasks import broker, produce_interest, producers
from isotherm.tasks.commands.inputs import lines
from isotherm.tasks.commands.output import (
    Exit,
    JsonFlag,
    counted,
    err,
    errors_as_sentences,
    out,
    print_json,
    ready,
    table,
)
from isotherm.tasks.producers import Accepted

_BATCH = 100
# Messages of sessions that are not known to be complete, in bytes: beyond this the one that waits longest goes in.
_HELD_BYTES = 32 * 1024 * 1024
_HEAD_BYTES = 65_536
_DOCUMENT_LIMIT = 512 * 1024 * 1024
_SHOWN_BAD = 20
_LOOK_S = 0.1
_IDLE_LOOKS = 20  # after so many without progress it is asked whether anybody works


@dataclass(slots=True)
class SetAside:
    """Bad lines by number, and where they went."""

    bad: list[tuple[int, str]] = field(default_factory=list)
    set_aside: Path | None = None


@dataclass(slots=True)
class TakenIn(SetAside):
    """What was taken in from a file: lines read, records written, operations, and the bad lines."""

    read: int = 0
    written: int = 0
    operations: list[UUID] = field(default_factory=list)


@dataclass(slots=True)
class Ingested(TakenIn):
    """The same of conversations; `repeated` counts calls that had been made before."""

    repeated: int = 0

    def count(self, accepted: Accepted) -> None:
        """Add what a producer answered."""
        self.operations.append(accepted.operation_id)
        self.written += accepted.written
        self.repeated += not accepted.new


def ingest(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="JSON Lines, or JSON with sessions.")
    ],
    *,
    agent: Annotated[str | None, typer.Option(help="Agent of messages that name none.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant of messages that name none.")] = None,
    interests: Annotated[bool, typer.Option(help="Find out what the user of each session cares about.")] = True,
    wait: Annotated[bool, typer.Option(help="Wait until the background work is done.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Remember the conversations of a file. Doing it again changes nothing. Exit code 1 when a line was set aside."""
    with errors_as_sentences():
        chosen = ready()
        storage.open(chosen)
        refused_lines.purge(refused_lines.folder_of(chosen), chosen.keep_refused)
        with progress() as bars:
            done = ingest_file(file, bars, agent=agent, tenant=tenant, interests=interests)
            left = wait_for_operations(done.operations, bars) if wait else 0
        tell(done, left, as_json=as_json)
        if done.bad:
            raise SystemExit(int(Exit.REFUSED))


def ingest_file(
    file: Path,
    progress: Progress,
    *,
    agent: str | None = None,
    tenant: str | None = None,
    interests: bool = True,
) -> Ingested:
    """Store the messages of a file.

    Args: agent, tenant: for messages that name none; interests: whether each session is read for what its user cares about.
    Raises: RejectedError for a document that is too large; TransientError when PostgreSQL goes away: what was accepted
    until then is stored, and running the same again continues.
    """
    done = Ingested()
    held = _Sessions(done) if interests else _Batches(done)
    with file.open("rb") as source:
        bar = progress.add_task("reading", total=file.stat().st_size or 1, unit="B")
        for line in _parsed(source):
            if isinstance(line, BadLine):
                set_aside(done, file, line, agent=agent, tenant=tenant)
                continue
            done.read += 1
            if held.add(_named(line, agent, tenant)):
                progress.update(bar, completed=source.tell())
        held.finish()
        progress.update(bar, completed=file.stat().st_size or 1)
    return done


class _Batches:
    """Messages of a bank go in together, whatever their session."""

    def __init__(self, done: Ingested) -> None:
        self._done = done
        self._waiting: dict[Bank, list[TranscriptLine]] = {}

    def add(self, line: TranscriptLine) -> bool:
        """Take a message; tells whether some were stored."""
        batch = self._waiting.setdefault(Bank(line.tenant, line.agent), [])
        batch.append(line)
        if len(batch) < _BATCH:
            return False
        self._done.count(producers.remember_messages(batch))
        batch.clear()
        return True

    def finish(self) -> None:
        """Store what is left."""
        for batch in self._waiting.values():
            if batch:
                self._done.count(producers.remember_messages(batch))


class _Sessions:
    """Messages of a session go in together, so that it is read as a whole; of a long one the last part starts the reading."""

    def __init__(self, done: Ingested) -> None:
        self._done = done
        self._waiting: dict[Namespace, list[TranscriptLine]] = {}
        self._bytes = 0

    def add(self, line: TranscriptLine) -> bool:
        """Take a message; tells whether some were stored."""
        namespace = Namespace.of(line.agent, line.session, tenant=line.tenant)
        batch = self._waiting.pop(namespace, [])
        self._waiting[namespace] = batch  # at the end: the one that got a message last
        full = len(batch) >= producers.MAX_BATCH
        if full:
            self._done.count(producers.remember_messages(batch))
            self._bytes -= _size(batch)
            batch.clear()
        batch.append(line)
        self._bytes += _size([line])
        while self._bytes > _HELD_BYTES:
            self._read(next(iter(self._waiting)))
            full = True
        return full

    def finish(self) -> None:
        """Store and read what is left, in the order in which the sessions ended."""
        for namespace in list(self._waiting):
            self._read(namespace)

    def _read(self, namespace: Namespace) -> None:
        batch = self._waiting.pop(namespace)
        self._bytes -= _size(batch)
        self._done.count(produce_interest.ingest_session(namespace, batch))


def _size(lines: list[TranscriptLine]) -> int:
    return sum(len(line.content) for line in lines)


def _named(line: TranscriptLine, agent: str | None, tenant: str | None) -> TranscriptLine:
    chosen = agent if agent and line.agent == transcript.DEFAULT_AGENT else line.agent
    return replace(line, agent=chosen, tenant=line.tenant or tenant)


def _parsed(source: BinaryIO) -> Iterator[TranscriptLine | BadLine]:
    head = source.read(_HEAD_BYTES)
    source.seek(0)
    if transcript.detect(head) == "lines":
        return transcript.parse_lines(lines(source, transcript.LINE_LIMIT))
    data = source.read(_DOCUMENT_LIMIT + 1)
    if len(data) > _DOCUMENT_LIMIT:
        raise RejectedError(f"a JSON document of more than {_DOCUMENT_LIMIT} bytes; write it as JSON Lines")
    return transcript.parse_document(data)


def set_aside(
    done: SetAside, file: Path, line: BadLine, *, agent: str | None = None, tenant: str | None = None
) -> None:
    """Keep a line of a file that was refused, and its reason. Args: agent, tenant: for lines that name none."""
    chosen = settings()
    name = done.set_aside.stem if done.set_aside else f"{file.stem}-{time.strftime('%Y%m%dT%H%M%S')}"
    done.bad.append((line.number, line.reason))
    redacted = replace(line, raw=factory.redactor(chosen).redact(line.raw))
    done.set_aside = refused_lines.keep(refused_lines.folder_of(chosen), name, redacted, agent=agent, tenant=tenant)


def wait_for_operations(ids: list[UUID], progress: Progress) -> int:
    """Wait until operations are final; returns how many are not because nobody works on them."""
    if not ids:
        return 0
    bar = progress.add_task("indexing", total=len(ids), unit="operations")
    idle = 0
    left = len(ids)
    while left:
        with system(), connection() as conn:
            now_left = operations.unfinished(conn, ids)
        idle = 0 if now_left < left else idle + 1
        left = now_left
        progress.update(bar, completed=len(ids) - left)
        if left and idle and idle % _IDLE_LOOKS == 0 and not somebody_works():
            break
        if left:
            time.sleep(_LOOK_S)
    return left


def somebody_works() -> bool:
    """Whether a worker listens to the queues that what is taken in needs."""
    try:
        found = broker.consumers()
        return all(found.get(queue.value) for queue in (stages.Queue.DB, stages.Queue.LLM))
    except UnavailableError:
        return False


def progress() -> Progress:
    """Progress bars on standard error, gone when they are done."""
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"), TimeElapsedColumn(), console=err, transient=True,
        disable=not err.is_terminal,
    )  # fmt: skip


def taken_json(what: str, done: TakenIn, left: int) -> dict[str, Any]:
    """What was taken in, for programs. Args: what: the name of the lines; left: operations that did not end."""
    return {
        what: done.read,
        "written": done.written,
        "operations": [str(i) for i in done.operations],
        "unfinished": left,
        "bad_lines": [{"line": n, "reason": why} for n, why in done.bad],
        "set_aside": str(done.set_aside) if done.set_aside else None,
    }


def tell(done: Ingested, left: int, *, as_json: bool = False) -> None:
    """Say what an ingest did."""
    if as_json:
        print_json(taken_json("messages", done, left))
        return
    known = done.read - done.written
    out.print(f"{counted(done.read, 'message')} read: {done.written} new or changed, {known} known already")
    if left:
        out.print(
            f"[yellow]{counted(left, 'operation')} not ended: no worker listens to queues db and llm; "
            "`isotherm up` starts some[/yellow]"
        )
    tell_bad(done)


def tell_bad(done: SetAside) -> None:
    """Say which lines were set aside, and where they are."""
    if done.bad:
        shown = [(number, escape(why)) for number, why in done.bad[:_SHOWN_BAD]]
        out.print(table("Lines set aside", ("line", "reason"), shown, right=(0,)))
        more = len(done.bad) - len(shown)
        out.print((f"and {more} more; " if more > 0 else "") + f"all are kept in {done.set_aside}", soft_wrap=True)
