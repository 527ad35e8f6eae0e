"""`import` of texts: a folder of Markdown and plain text into the knowledge base, a file a step of the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from rich.markup import escape
from rich.progress import Progress

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.brain.documents import TEXTS, Document
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.work import StepState
from isotherm.storage.postgres import operations
from isotherm.storage.postgres.operations import StepRow
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.tasks import produce_brain, produce_import
from isotherm.tasks.commands.brain import read_document
from isotherm.tasks.commands.ingest import progress, somebody_works
from isotherm.tasks.commands.inputs import bytes_of
from isotherm.tasks.commands.output import Exit, counted, err, errors_as_sentences, out, print_json, ready, table

_FILE_LIMIT = 32 * 1024 * 1024
_LOOK_S = 0.2
_IDLE_LOOKS = 20
_SHOWN = 20
_OPEN = frozenset({StepState.PENDING, StepState.RUNNING})


@dataclass(slots=True)
class _Taken:
    """What an import did; `bad` names the files that were left out, with the reason."""

    files: int = 0
    parts: int = 0
    written: int = 0
    removed: int = 0
    waiting: int = 0
    operations: list[UUID] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)


def is_wanted(path: Path, *, knowledge: bool | None) -> bool:
    """Whether a path is text for the knowledge base: a folder, or a file with the ending of a text, unless it is said."""
    return knowledge if knowledge is not None else path.is_dir() or path.suffix.lower() in TEXTS


def run(path: Path, agent: str, tenant: str | None, kind: str, *, wait: bool, as_json: bool) -> None:
    """Take in a file or all texts below a folder, and say what became of them."""
    with errors_as_sentences():
        storage.open(ready())
        namespace, done = produce_brain.knowledge(agent, tenant=tenant), _Taken()
        files = _texts(path)
        if not files:
            raise RejectedError(f"{path.name}: no files that end in {', '.join(sorted(TEXTS))}")
        with progress() as bars:
            bar = bars.add_task("reading", total=len(files), unit="files")
            for batch in _batches(namespace, path, files, kind, done):
                done.operations.append(produce_import.import_files(namespace, batch).operation_id)
                done.files += len(batch)
                bars.update(bar, completed=done.files + len(done.bad))
            bars.update(bar, completed=len(files))
            if wait and done.operations:
                _follow(done, bars)
        _tell(done, as_json=as_json)


def _texts(path: Path) -> list[Path]:
    """The file, or every text below a folder in order; what begins with a dot is passed by."""
    if path.is_file():
        return [path]
    found = []
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        found += [Path(folder, n) for n in sorted(names) if Path(n).suffix.lower() in TEXTS and not n.startswith(".")]
    return found


def _batches(namespace: Namespace, root: Path, files: list[Path], kind: str, done: _Taken) -> Iterator[list[Document]]:
    batch: list[Document] = []
    held = 0
    for file in files:
        document = _read(namespace, root, file, kind, done)
        if document is None:
            continue
        size = len(document.text.encode())
        if batch and (len(batch) >= produce_import.MOST_FILES or held + size > produce_import.MOST_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(document)
        held += size
    if batch:
        yield batch


def _read(namespace: Namespace, root: Path, file: Path, kind: str, done: _Taken) -> Document | None:
    """A file as a document; one that cannot be read is named, and the others go on."""
    name = file.name if root.is_file() else file.relative_to(root).as_posix()
    try:
        return replace(read_document(namespace, file, _raw(file), kind), name=name)
    except OSError as error:
        done.bad.append((name, error.strerror or "cannot be read"))
    except UnicodeDecodeError:
        done.bad.append((name, "not in UTF-8"))
    except RejectedError as error:
        done.bad.append((name, str(error)))
    return None


def _raw(file: Path) -> bytes:
    raw = bytes_of(file, _FILE_LIMIT)
    raw.decode("utf-8-sig")
    if b"\0" in raw:
        raise RejectedError("not a text")
    return raw


def _follow(done: _Taken, bars: Progress) -> None:
    """Show the files as they are stored, then vectors and graph as they follow; stops when nobody works on them."""
    stored = bars.add_task("storing", total=done.files, unit="files")
    following = bars.add_task("vectors and graph", total=None, unit="steps")
    before, idle = -1, 0
    while True:
        rows = _steps(done.operations)
        files = [row for row in rows if row.stage == stages.BRAIN_IMPORT]
        rest = [row for row in rows if row.stage in {stages.BRAIN_EMBED, stages.BRAIN_MIRROR}]
        left = sum(row.state in _OPEN for row in rows)
        bars.update(stored, completed=sum(row.state not in _OPEN for row in files))
        bars.update(following, completed=sum(row.state not in _OPEN for row in rest), total=len(rest) or None)
        idle = idle + 1 if left == before else 0
        before = left
        if not left or (idle and idle % _IDLE_LOOKS == 0 and not somebody_works()):
            break
        time.sleep(_LOOK_S)
    _count(done, rows)


def _steps(operation_ids: list[UUID]) -> list[StepRow]:
    with system(), connection() as conn:
        return [row for i in operation_ids for row in operations.steps_of(conn, i)]


def _count(done: _Taken, rows: list[StepRow]) -> None:
    for row in rows:
        if row.stage != stages.BRAIN_IMPORT:
            continue
        if row.state == StepState.DONE:
            receipt = row.receipt or {}
            done.parts += int(receipt.get("parts", 0))
            done.written += int(receipt.get("written", 0))
            done.removed += int(receipt.get("removed", 0))
        elif row.state not in _OPEN:
            done.bad.append((row.unit, row.last_error or str(row.state)))
    done.waiting = sum(row.state in _OPEN for row in rows)


def _tell(done: _Taken, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "files": done.files,
                "parts": done.parts,
                "written": done.written,
                "removed": done.removed,
                "operations": done.operations,
                "unfinished": done.waiting,
                "bad_files": [{"file": name, "reason": why} for name, why in done.bad],
            }
        )
    else:
        out.print(
            f"{counted(done.files, 'file')} with {counted(done.parts, 'part')}: {done.written} objects and parts new or changed, "
            f"{done.removed} taken out"
        )
        if done.bad:
            rows = [(escape(name), escape(why)) for name, why in done.bad[:_SHOWN]]
            out.print(table(f"Files left out: {len(done.bad)}", ("file", "reason"), rows))
    if done.waiting:
        err.print(
            f"[yellow]{counted(done.waiting, 'step')} not ended: no worker listens; `isotherm up` starts some[/yellow]"
        )
        raise SystemExit(int(Exit.UNAVAILABLE))
    if done.bad:
        raise SystemExit(int(Exit.REFUSED))
