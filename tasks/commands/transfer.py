"""`export` and `import`: memory as JSON Lines, out of one installation and into another."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, TextIO

import typer

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.portable import PortableRecord, read_line
from isotherm.pipeline.transcript import BadLine
from isotherm.storage import refused_lines
from isotherm.tasks import producers
from isotherm.tasks.commands import import_texts
from isotherm.tasks.commands.ingest import TakenIn, progress, set_aside, taken_json, tell_bad, wait_for_operations
from isotherm.tasks.commands.inputs import lines
from isotherm.tasks.commands.memory import Run, ScopeName, Session, Tenant, named
from isotherm.tasks.commands.output import Exit, JsonFlag, counted, err, errors_as_sentences, out, print_json, ready

_BATCH = 500
_BATCH_BYTES = 8 * 1024 * 1024
_LINE_LIMIT = 64 * 1024 * 1024
_EXCERPT = 1_000
_LOST = '"content":null'


def export(
    file: Annotated[
        Path | None, typer.Option("--out", "-o", dir_okay=False, help="Where to; default: to the pipe.")
    ] = None,
    *,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Only this agent.")] = None,
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Write records as JSON Lines: tiers, pins, times, heat and the bodies of cold ones included.

    Equal memories give equal bytes. Exit code 4 when a stored body is missing or damaged; its line has no content.
    """
    with errors_as_sentences():
        if as_json and file is None:
            raise RejectedError("--json tells what was written: name a file with --out")
        storage.open(ready())
        source = _source(agent, session, scope, run, tenant)
        written = lost = 0
        with _target(file) as target:
            for line in producers.export(source, tenant=tenant, session=session):
                target.write(line)
                written += 1
                lost += _is_lost(line)
        if as_json:
            print_json({"records": written, "lost": lost, "file": str(file)})
        else:
            err.print(f"{counted(written, 'record')} written")
        if lost:
            err.print(f"[red]{lost} of them have lost their text[/red]")
            raise SystemExit(int(Exit.UNHEALTHY))


def _source(
    agent: str | None, session: str | None, scope: str | None, run: str | None, tenant: str | None
) -> Namespace | Bank | None:
    if scope is None and run is None:
        return None if agent is None else Bank(tenant, agent)
    if agent is None:
        raise RejectedError("name the agent with --agent: a scope and a run are of one namespace")
    return named(agent, session, scope, run, tenant)


def _is_lost(line: str) -> bool:
    # The text of a record may hold these characters too; only a line that does is parsed.
    return _LOST in line and json.loads(line)["content"] is None


@contextmanager
def _target(file: Path | None) -> Iterator[TextIO]:
    """Standard output, a device, or a file that has its name only once it is whole."""
    if file is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    file = Path(os.path.realpath(file))
    if file.exists() and not file.is_file():  # a pipe or a device, which must not become a file
        with file.open("w", encoding="utf-8", newline="\n") as target:
            yield target
        return
    part = file.with_name(f"{file.name}.part")
    with part.open("w", encoding="utf-8", newline="\n") as target:
        part.chmod(0o600)
        yield target
    part.replace(file)


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", exists=True, readable=True, help="As `export` wrote it; or a text, or a folder."
        ),
    ],
    *,
    knowledge: Annotated[
        bool | None,
        typer.Option("--kb/--records", help="Texts for the knowledge base, or records; default: by the name."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Whose knowledge texts become; records say whose they are.")
    ] = None,
    tenant: Tenant = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", help="Kind of the objects that texts become; default: document.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the background work is done.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Take in records that `export` wrote, or a folder of Markdown and plain text into the knowledge base.

    Records that are there stay as they are; a text that changed replaces what it was. Exit code 1 when a line or file was
    left out.
    """
    if import_texts.is_wanted(file, knowledge=knowledge):
        import_texts.run(file, agent or "default", tenant, kind or "document", wait=wait, as_json=as_json)
    elif agent is not None or tenant is not None or kind is not None:
        raise typer.BadParameter(
            "records say themselves whose they are: leave it out, or name a folder or a text",
            param_hint="--agent, --tenant, --kind",
        )
    else:
        _import_records(file, wait=wait, as_json=as_json)


def _import_records(file: Path, *, wait: bool, as_json: bool) -> None:
    with errors_as_sentences():
        if file.is_dir():
            raise RejectedError("records come from one file, as `export` wrote it")
        chosen = ready()
        storage.open(chosen)
        refused_lines.purge(refused_lines.folder_of(chosen), chosen.keep_refused)
        done = TakenIn()
        with progress() as bars:
            bar = bars.add_task("importing", total=file.stat().st_size or 1, unit="B")
            with file.open("rb") as source:
                for batch in _batches(done, file, source):
                    accepted = producers.import_records(batch)
                    done.written += accepted.written
                    done.operations.append(accepted.operation_id)
                    bars.update(bar, completed=source.tell())
            left = wait_for_operations(done.operations, bars) if wait else 0
        _tell(done, left, as_json=as_json)
        if done.bad:
            raise SystemExit(int(Exit.REFUSED))


def _batches(done: TakenIn, file: Path, source: BinaryIO) -> Iterator[list[PortableRecord]]:
    """Records of one bank at a time, as they follow each other in the file."""
    batch: list[PortableRecord] = []
    held = 0
    for number, line in enumerate(lines(source, _LINE_LIMIT), 1):
        if not line.strip():
            continue
        try:
            record = _parsed(line)
        except RejectedError as error:
            raw = line[:_EXCERPT] if len(line) > _LINE_LIMIT else line
            set_aside(done, file, BadLine(number, str(error), raw.decode("utf-8", "replace").rstrip("\r\n")))
            continue
        done.read += 1
        if batch and (len(batch) >= _BATCH or held > _BATCH_BYTES or batch[0].namespace.bank != record.namespace.bank):
            yield batch
            batch, held = [], 0
        batch.append(record)
        held += len(line)
    if batch:
        yield batch


def _parsed(line: bytes) -> PortableRecord:
    if len(line) > _LINE_LIMIT:
        raise RejectedError(f"line: longer than {_LINE_LIMIT} bytes")
    return read_line(line)


def _tell(done: TakenIn, left: int, *, as_json: bool) -> None:
    if as_json:
        print_json(taken_json("records", done, left))
        return
    out.print(f"{counted(done.read, 'record')} read: {done.written} new, {done.read - done.written} known already")
    if left:
        out.print(
            f"[yellow]{counted(left, 'operation')} not ended: no worker listens; `isotherm up` starts some[/yellow]"
        )
    tell_bad(done)
