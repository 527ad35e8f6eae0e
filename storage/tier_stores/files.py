"""Files that are private, whole, and on the disk when a call returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isotherm.pipeline.errors import UnavailableError
from isotherm.storage import durable
from isotherm.storage.durable import sync_folder


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of the file system into UnavailableError, whose message has no path."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"the folder of records cannot be used: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder that only its owner enters, if it is not there."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there, mode 0600, to the disk, and its name in its folder too."""
    durable.write_new(path, data)
    sync_folder(path.parent)


def read_bounded(path: Path, max_bytes: int) -> bytes | None:
    """The bytes of a file, at most one more than `max_bytes` of them; None when it is not there."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        return None


def move(path: Path, target: Path) -> None:
    """Move a file; one that was moved already is no error."""
    make_folder(target.parent)
    try:
        path.replace(target)
    except FileNotFoundError:
        return
    sync_folder(target.parent)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file for good; one that is gone is no error."""
    path.unlink(missing_ok=True)
    if path.parent.exists():
        sync_folder(path.parent)
