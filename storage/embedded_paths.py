"""Where the private servers keep data and sockets: decided from the asked folder alone, so that every process agrees."""

import hashlib
import os
import pwd
import re
import stat
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.embedded_process import Account, can

SYSTEM_DIR = Path("/var/lib/isotherm")
POSTGRES_SOCKET = ".s.PGSQL.5432"
# A fixed folder, not the one TMPDIR names: a worker with another environment must find the same sockets.
SHORT_BASE = Path("/tmp")  # noqa: S108 - the folder in it is private, and its owner is verified
_SOCKET_LIMIT = 103 if sys.platform == "darwin" else 107  # bytes of sun_path without its final zero
_SAFE_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
_SHELL_SPECIAL = re.compile(r'["$`\\\r\n]')


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one embedded installation. `asked` is what the caller named, `data` where things are."""

    asked: Path
    data: Path
    run: Path
    account: Account | None

    @property
    def postgres(self) -> Path:
        """PGDATA."""
        return self.data / "postgres"

    @property
    def redis(self) -> Path:
        """The folder of the append-only file."""
        return self.data / "redis"

    @property
    def logs(self) -> Path:
        """One log per server, and at most one older one."""
        return self.data / "logs"

    @property
    def lock(self) -> Path:
        """Held by whoever starts or stops."""
        return self.asked / "lock"

    @property
    def relocated(self) -> bool:
        """Tell whether the data is outside the asked folder."""
        return self.data != self.asked


def locate(data_dir: Path, system_dir: Path = SYSTEM_DIR) -> Place:
    """Decide where things are or would be. Creates nothing, and answers the same before and after a start.

    Args: data_dir: the asked folder; system_dir: base of relocated data, used by root only.
    Raises: RejectedError when the folder belongs to somebody else or its name cannot be used;
        UnavailableError when root finds no user to run servers as.
    """
    asked = Path(os.path.realpath(data_dir))
    if _SHELL_SPECIAL.search(str(asked)):
        raise RejectedError(f"{asked} cannot be a data folder: its path holds a quote, dollar, backslash or line break")
    account = _account(asked) if os.geteuid() == 0 else None
    if account is None:
        _refuse_strangers(asked)
        data = asked
    else:
        data, account = _data_of_root(asked, system_dir, account)
    owner = account.uid if account else os.geteuid()
    run = run_dir(data, owner)
    if (found := _owner(run)) not in (None, owner, os.geteuid()) or run.is_symlink():
        raise RejectedError(f"{run} belongs to user {found}, or is a link: whoever made it could pose as the servers")
    return Place(asked=asked, data=data, run=run, account=account)


def digest(path: Path) -> str:
    """Return 12 hex digits that stand for a path."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def run_dir(data: Path, uid: int) -> Path:
    """Return the folder for sockets: `run` in the data folder, or a short one when that path would not do.

    A socket's path is limited to about 100 bytes, and characters that need escaping in a URL or in a list of
    folders are avoided the same way.
    """
    plain = data / "run"
    if len(os.fsencode(plain / POSTGRES_SOCKET)) <= _SOCKET_LIMIT and _SAFE_PATH.fullmatch(str(plain)):
        return plain
    return SHORT_BASE / f"isotherm-{uid}-{digest(data)}"


def private_dir(path: Path, account: Account | None) -> None:
    """Create a folder of mode 0700 that belongs to the servers' user, or verify that an existing one does.

    Raises: RejectedError when it is a link, no folder, or somebody else's; OSError when it cannot be made.
    """
    owner = account.uid if account else os.geteuid()
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise RejectedError(f"{path} is not a folder, or is a link; remove it, or choose another data folder") from None
    except PermissionError:
        raise RejectedError(f"{path} belongs to somebody else; choose another data folder") from None
    try:
        info = os.fstat(descriptor)
        if account and info.st_uid == os.geteuid() and _empty(descriptor):
            os.fchown(descriptor, account.uid, account.gid)
        elif info.st_uid != owner:
            raise RejectedError(f"{path} belongs to user {info.st_uid}, not {owner}; choose another data folder")
        if stat.S_IMODE(info.st_mode) != 0o700:  # noqa: PLR2004 - a mode reads best where it is used
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _empty(descriptor: int) -> bool:
    with os.scandir(descriptor) as entries:
        return next(entries, None) is None


def create(place: Place) -> None:
    """Create what is missing of an installation's folders, private to the servers' user; parents that exist stay as they are.

    Raises: RejectedError for a folder of somebody else; OSError when the system refuses.
    """
    public = place.account is not None
    for folder in dict.fromkeys((place.asked, place.data)):
        _create_with_parents(folder, 0o755 if public else 0o700)
    if public and place.relocated:
        _refuse_shared(place.data.parent)
        _refuse_shared(place.data)
    for folder in (place.redis, place.logs, place.run):
        private_dir(folder, place.account)


def reachable(path: Path, account: Account) -> bool:
    """Tell whether a user can walk to a path, or to its nearest parent that exists: by mode bits, then by trying."""
    while not path.exists():
        path = path.parent
    if not all(_may_enter(folder, account) for folder in (path, *path.parents) if folder.is_dir()):
        return False
    return can(account, "x" if path.is_dir() else "r", path)


def _may_enter(folder: Path, account: Account) -> bool:
    info = folder.stat()
    if info.st_uid == account.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == account.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)


def _accounts() -> list[Account]:
    found = []
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            found.append(Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid))
    return found


def _account(asked: Path) -> Account:
    accounts = _accounts()
    if not accounts:
        raise UnavailableError(
            "PostgreSQL refuses to run as root, and there is no user named postgres or nobody; "
            f"create one, or run as an ordinary user with a data folder other than {asked}"
        )
    return accounts[0]


def _data_of_root(asked: Path, system_dir: Path, account: Account) -> tuple[Path, Account]:
    """Prefer where data already is; else the asked folder when the servers' user can get there; else the system's."""
    moved = Path(os.path.realpath(system_dir)) / f"{_plain_name(asked)}-{digest(asked)}"
    for data in (moved, asked):
        if (owner := _owner(data / "postgres" / "PG_VERSION")) is not None:
            return data, _account_of(data / "postgres", owner)
    return (asked if reachable(asked, account) else moved), account


def _account_of(pgdata: Path, owner: int) -> Account:
    for account in _accounts():
        if account.uid == owner:
            return account
    raise RejectedError(f"{pgdata} belongs to user {owner}: run as that user, or choose another data folder")


def _plain_name(asked: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", asked.name)[:32].lstrip(".") or "data"


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refuse_strangers(asked: Path) -> None:
    try:
        owner = _owner(asked)
    except PermissionError as error:
        raise RejectedError(f"{asked} cannot be reached by user {os.geteuid()}; choose another data folder") from error
    if owner is not None and owner != os.geteuid():
        raise RejectedError(f"{asked} belongs to user {owner}, not {os.geteuid()}; choose another data folder")


def _refuse_shared(folder: Path) -> None:
    """Root keeps data only below folders that nobody else can rename things in."""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RejectedError(f"{folder} must be a folder that belongs to root and that only root can write")


def _create_with_parents(folder: Path, mode: int) -> None:
    """Create a folder and its missing parents; each appears with its final mode, whatever the umask.

    A parent that others could not pass for a moment would make another process decide on another place.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        fresh = Path(tempfile.mkdtemp(prefix=".isotherm-", dir=path.parent))
        fresh.chmod(mode)
        try:
            fresh.rename(path)
        except OSError:
            fresh.rmdir()
            if not path.is_dir():
                raise
