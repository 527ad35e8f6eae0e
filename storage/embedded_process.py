"""Running the private servers: as which user, detached from the terminal, with logs that failures can show."""

import enum
import errno
import fcntl
import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from isotherm.pipeline.errors import RejectedError, UnavailableError

LOG_LIMIT_BYTES = 10 * 1024 * 1024
_ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": "/"}
_TAIL_BYTES = 4096
_TAIL_LINES = 8
_T = TypeVar("_T")
_DISK_FULL = ("No space left on device", "Disk quota exceeded")


class Answer(enum.Enum):
    """What a server's socket says when it is asked who it is."""

    OURS = "ours"  # it serves the data folder it should
    STARTING = "starting"  # somebody accepts connections and cannot be asked yet
    FOREIGN = "foreign"  # it serves another data folder
    NOBODY = "nobody"  # nobody listens


@dataclass(frozen=True, slots=True)
class Account:
    """The user servers run as when the caller is root, since PostgreSQL refuses to run as root."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server as it is now; `pid` and `version` are None while it does not run."""

    name: str
    running: bool
    pid: int | None
    version: str | None
    data_dir: Path
    socket: Path


def run(
    command: Sequence[str | Path], account: Account | None, *, timeout: float = 300.0, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command as the servers' user, in a session of its own, and collect what it prints.

    Args: command: program and arguments; account: None runs it as the caller; timeout: seconds;
        pass_fds: descriptors the command inherits.
    Raises: UnavailableError when it cannot be started as that user or does not end in time.
    """
    identity: dict[str, Any] = {}
    if account is not None:
        identity = {"user": account.uid, "group": account.gid, "extra_groups": []}
    program = Path(command[0]).name
    try:
        return subprocess.run(  # noqa: S603 - no shell, and every program is one of ours or named by the caller
            [os.fspath(part) for part in command],
            **identity,
            cwd="/",
            env=_ENVIRONMENT,
            umask=0o077,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{program} did not end within {timeout:.0f} s") from error
    except (OSError, subprocess.SubprocessError) as error:
        who = account.name if account else "the current user"
        raise UnavailableError(f"{program} cannot be started as {who}: {error}") from error


def spawn(command: Sequence[str | Path], account: Account | None, *, log: Path, pass_fds: Sequence[int] = ()) -> None:
    """Start a server that is nobody's child: a dead child would stay a zombie, and so seem alive, until its parent reaps it.

    Args: log: the server's output is appended to it; pass_fds: descriptors the server keeps open while it lives.
    Raises: UnavailableError when it cannot be started.
    """
    detach = 'log=$1; shift; exec >>"$log" 2>&1; "$@" &'
    done = run(["/bin/sh", "-c", detach, "sh", log, *command], account, pass_fds=pass_fds)
    if done.returncode:
        raise failure(f"{Path(command[0]).name} cannot be started", log, done.stdout)


def can(account: Account | None, flag: str, path: Path) -> bool:
    """Ask the system itself whether the servers' user passes `test -<flag>` on a path."""
    done = run(["/bin/sh", "-c", 'test "$1" "$2"', "sh", f"-{flag}", path], account)
    return done.returncode == 0


def try_lock(path: Path) -> int | None:
    """Take the file's lock and return its descriptor, or None while somebody else holds it.

    The lock belongs to the descriptor and its copies: a server that inherits one holds the lock until it is dead.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(path: Path, *, timeout: float = 180.0) -> Iterator[None]:
    """Hold the file's lock; others wait for it.

    Raises: UnavailableError when somebody holds it longer than `timeout` seconds.
    """
    descriptor = wait_for(lambda: try_lock(path), timeout)
    if descriptor is None:
        raise UnavailableError(f"{path} has been locked by another process for {timeout:.0f} s")
    try:
        yield
    finally:
        os.close(descriptor)


def wait_for(ask: Callable[[], _T | None], timeout: float, *, every: float = 0.05) -> _T | None:
    """Ask until the answer is not None; None when `timeout` seconds are over."""
    deadline = time.monotonic() + timeout
    while (answer := ask()) is None and time.monotonic() < deadline:
        time.sleep(every)
    return answer


def listening(path: Path) -> bool:
    """Tell whether a process accepts connections at a socket; one that is stuck counts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError:
            return True
    return True


def processes_in(folder: Path) -> frozenset[int] | None:
    """Find the processes whose working folder this is, as it is for every server of a data folder.

    A pid from a file may belong to a stranger by now; this cannot. None where the system has no /proc.
    """
    if not Path("/proc/self/cwd").is_symlink():
        return None
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.add(int(entry.name))
    return frozenset(found)


def read_pid(path: Path) -> int | None:
    """Read the number in the first line of a pid file; None when there is none."""
    with suppress(OSError, ValueError, IndexError):
        return int(_read_end(path, _TAIL_BYTES).splitlines()[0])
    return None


def rotate(log: Path) -> None:
    """Rename a log of more than 10 MB to `.1`, over an earlier one."""
    with suppress(FileNotFoundError):
        if log.lstat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))


def size(log: Path) -> int:
    """Return the log's length in bytes, 0 when there is none."""
    with suppress(FileNotFoundError):
        return log.lstat().st_size
    return 0


def tail(log: Path, *, since: int = 0) -> str:
    """Return the last lines written to a log after byte `since`, empty when there are none."""
    with suppress(OSError):
        written = max(0, size(log) - since)
        return "\n".join(_read_end(log, min(written, _TAIL_BYTES)).splitlines()[-_TAIL_LINES:])
    return ""


def _read_end(path: Path, length: int) -> str:
    # The folder belongs to the servers' user: a link put there must not make root read another file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        file.seek(max(0, os.fstat(descriptor).st_size - length))
        return file.read(length).decode("utf-8", "replace")


def failure(what: str, log: Path, output: str = "", *, since: int = 0) -> UnavailableError:
    """Build the error of a server or tool that failed: what, the folder when its disk is full, and the log's end."""
    lines = "\n".join(part for part in (output.strip()[-_TAIL_BYTES:], tail(log, since=since)) if part)
    if any(sign in lines for sign in _DISK_FULL):
        what = f"{what}: no space is left on the disk of {log.parent.parent}"
    return UnavailableError(f"{what}; log: {log}" + (f"\n{lines}" if lines else ""))


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn the system's errors about files into ours, naming the folder.

    Raises: RejectedError when permission is missing or a file is where a folder must be, else UnavailableError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UnavailableError(f"no space is left on the disk of {folder}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EEXIST):
            raise RejectedError(f"{folder} cannot be used as a data folder: {error}") from error
        raise UnavailableError(f"{folder} cannot be written: {error}") from error
