"""Files that are on the disk, under their names, when a call returns."""

from __future__ import annotations

import os
from pathlib import Path

from isotherm.pipeline.errors import RejectedError


def named_folder(folder: Path) -> Path:
    """Return a folder that has a name: a blank one would be wherever the process happens to run. Raises: RejectedError."""
    if folder == Path() or str(folder).isspace():
        raise RejectedError("folder: a name is needed")
    return folder


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there, mode 0600, to the disk; its name lasts once its folder is synced.

    Raises: OSError when it is there, or cannot be written.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Raises: OSError when it cannot be."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folders(folder: Path, top: Path) -> None:
    """The same for every folder up to `top`: a new folder lasts once the one above does."""
    sync_folder(folder)
    while folder != top:
        folder = folder.parent
        sync_folder(folder)
