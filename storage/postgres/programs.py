"""PostgreSQL's own programs for dumping and loading a database, run so that no password is in their arguments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage import embedded_binaries as binaries
from isotherm.storage.embedded_paths import SYSTEM_DIR
from isotherm.storage.settings import Settings

_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
_LAST_LINES = 5
# What a program says about one table while it works on it.
_TABLE = re.compile(r"dumping contents of table|processing data for table")


def program(settings: Settings, name: str, server_major: int) -> Path:
    """Find `pg_dump` or `pg_restore` that is at least as new as the server.

    Looked for in `pg_bin`, then in the embedded server's wheel, then on the path.
    Raises: UnavailableError when there is none, naming what was found.
    """
    seen = []
    for candidate in _candidates(settings, name):
        major = _major(candidate)
        if major is not None and major >= server_major:
            return candidate
        seen.append(f"{candidate} ({major or 'does not run'})")
    found = f"; found {', '.join(seen)}" if seen else ""
    raise UnavailableError(
        f"{name} of PostgreSQL {server_major} or newer is needed{found}: name its folder by ISOTHERM_PG_BIN"
    )


def _candidates(settings: Settings, name: str) -> Iterator[Path]:
    if settings.pg_bin is not None:
        yield settings.pg_bin.expanduser() / name
    with suppress(UnavailableError, RejectedError):  # the wheel is an extra
        yield binaries.postgres_bin(None, None, SYSTEM_DIR) / name
    if on_path := shutil.which(name):
        yield Path(on_path)


def _major(candidate: Path) -> int | None:
    try:
        done = subprocess.run([candidate, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - one of PostgreSQL's programs
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stdout)
    return int(found[1]) if found else None


def run(command: Sequence[str | Path], dsn: str, advance: Callable[[], None]) -> None:
    """Run a program against a database; `advance` is called as it comes to each table.

    Args: command: the program and its arguments, without the database; dsn: libpq URI.
    Raises: UnavailableError with the last lines it wrote when it fails.
    """
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password", None)
    environment = {**os.environ, "LC_ALL": "C", **({} if password is None else {"PGPASSWORD": str(password)})}
    arguments = [os.fspath(part) for part in command]
    arguments += ["--verbose", "--no-password", f"--dbname={make_conninfo('', **parts)}"]
    last: list[str] = []
    with subprocess.Popen(  # noqa: S603 - one of PostgreSQL's programs
        arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            for line in process.stderr or ():
                if _TABLE.search(line):
                    advance()
                last = [*last, line.strip()][-_LAST_LINES:]
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise UnavailableError(f"{Path(arguments[0]).name} failed: {' | '.join(last)}")
