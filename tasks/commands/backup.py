"""`backup` and `restore-db`: everything of one moment in a folder, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, TaskID

from isotherm.storage import backup as backups
from isotherm.storage.backup import Manifest
from isotherm.tasks.commands.ingest import progress
from isotherm.tasks.commands.output import JsonFlag, errors_as_sentences, out, print_json, ready, size, table

_UNITS = {"database": "tables", "objects": "objects", "check": "files"}


@dataclass(slots=True)
class _Bars:
    """A bar for each part of the work, one after the other."""

    bars: Progress
    bar: TaskID | None = None

    def begin(self, what: str, total: int) -> None:
        self.bar = self.bars.add_task(what, total=total or 1, completed=0 if total else 1, unit=_UNITS[what])

    def advance(self) -> None:
        if self.bar is not None:
            self.bars.advance(self.bar)


@contextmanager
def _bars() -> Iterator[_Bars]:
    with progress() as bars:
        yield _Bars(bars)


def backup(
    folder: Annotated[Path, typer.Argument(help="A new folder, made by this command.")],
    *,
    as_json: JsonFlag = False,
) -> None:
    """Write a backup of everything, as of one moment, while work goes on.

    The folder holds a dump of the database, the objects it refers to, and hashes over both. It keeps what is forgotten
    later: let old backups expire.
    """
    with errors_as_sentences():
        chosen = ready()
        with _bars() as bars:
            manifest = backups.back_up(chosen, folder.absolute(), bars)
        _tell("Backup", folder, manifest, as_json=as_json)


def restore_db(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="As `backup` wrote it.")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Also when the database holds memory already.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Put a backup in the place of what the database holds, also that of an older version or another PostgreSQL.

    Stop workers and programs first; `isotherm up --workers 0` starts the servers alone. A graph outside PostgreSQL is
    filled again by `isotherm graph rebuild`.
    """
    with errors_as_sentences():
        chosen = ready()
        with _bars() as bars:
            manifest = backups.restore(chosen, folder.absolute(), bars, replace=replace)
        _tell("Restored", folder, manifest, as_json=as_json)


def _tell(title: str, folder: Path, manifest: Manifest, *, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(folder), **asdict(manifest)})
        return
    rows = [
        ("folder", escape(str(folder))),
        ("as of", manifest.created_at.isoformat(timespec="seconds")),
        (
            "database",
            f"{size(manifest.dump_bytes)}, PostgreSQL {manifest.postgres_major}, migration {manifest.migration}",
        ),
        ("objects", f"{manifest.blobs} of {size(manifest.blob_bytes)}"),
    ]
    if manifest.missing:
        rows.append(("missing", f"[red]{manifest.missing} objects were not in the blob store[/red]"))
    out.print(table(title, ("", ""), rows))
