"""PostgreSQL's own programs for dumping and loading a database, run so that no password is in their arguments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg import pq
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
    Raises: UnavailableError with the last lines it wrote when it fails; RejectedError for a URI with other secrets than a
        password beside a service.
    """
    with _hidden(dsn) as (shown, environment):
        arguments = [*(os.fspath(part) for part in command), "--verbose", "--no-password", f"--dbname={shown}"]
        _run(arguments, {**os.environ, "LC_ALL": "C", **environment}, advance)


@contextmanager
def listed_without(load: Path, dump: Path, kinds: Sequence[str]) -> Iterator[Path]:
    """A list of what a dump has, for `pg_restore --use-list`, but for entries of some kinds such as POLICY.

    Raises: UnavailableError when the dump cannot be read.
    """
    try:
        done = subprocess.run([load, "--list", dump], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - as above
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{load.name} cannot read the dump") from error
    kept = [line for line in done.stdout.splitlines() if not any(f" {kind} public " in line for kind in kinds)]
    with tempfile.TemporaryDirectory(prefix="isotherm-") as folder:
        file = Path(folder, "list")
        file.write_text("\n".join(kept) + "\n")
        yield file


@contextmanager
def _hidden(dsn: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A connection string that anybody may read, and variables that bring what it leaves out."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    environment = {"PGPASSWORD": parts.pop("password")} if "password" in parts else {}
    # libpq marks what a form would not show: the password of a key, a secret of OAuth, and what its later versions bring.
    marked = {each.keyword.decode() for each in pq.Conninfo.get_defaults() if each.dispchar == b"*"}
    secrets = {name: parts.pop(name) for name in sorted(marked & parts.keys())}
    if not secrets:
        yield make_conninfo("", **parts), environment
        return
    if "service" in parts:
        raise RejectedError(f"settings: ISOTHERM_POSTGRES_DSN: {', '.join(secrets)} belongs into the service's file")
    with tempfile.TemporaryDirectory(prefix="isotherm-") as folder:  # of mode 0700
        file = Path(folder, "service")
        file.write_text("[isotherm]\n" + "".join(f"{name}={value}\n" for name, value in secrets.items()))
        yield make_conninfo("", **parts, service="isotherm"), environment | {"PGSERVICEFILE": str(file)}


def _run(arguments: Sequence[str], environment: dict[str, str], advance: Callable[[], None]) -> None:
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
