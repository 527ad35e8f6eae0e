"""Blobs as files below one folder, for one machine or a shared file system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError
from isotherm.storage.durable import named_folder, sync_folder, sync_folders, write_new

_KEY = re.compile(r"[a-z0-9-]+(/[a-z0-9-]+)*")
# Cannot be a key: files that are still being written are not objects.
_UNFINISHED = ".tmp"


class FolderBlobs:
    """A blob store in a folder, which is made at the first write.

    An object is written beside its place, flushed to disk and renamed into it, so there is never a part of one.

    Raises: RejectedError when the folder has no name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = named_folder(folder)

    def put(self, key: str, data: bytes) -> None:
        """Raises: TransientError when the disk is full or the folder cannot be written."""
        path = self._path(key)
        unfinished = path.with_name(f"{uuid4().hex}{_UNFINISHED}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_new(unfinished, data)
            unfinished.replace(path)
            sync_folders(path.parent, self._folder)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise TransientError(f"a blob cannot be written: {error.strerror}") from error

    def get(self, key: str) -> bytes | None:
        """Raises: UnavailableError when the folder cannot be read."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError(f"a blob cannot be read: {error.strerror}") from error

    def delete(self, key: str) -> None:
        """Raises: TransientError when the folder cannot be written."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
            if path.parent.exists():
                sync_folder(path.parent)
        except OSError as error:
            raise TransientError(f"a blob cannot be removed: {error.strerror}") from error

    def keys(self, prefix: str) -> Iterator[str]:
        """Raises: RejectedError for a prefix that is no key's."""
        start = self._path(prefix.rstrip("/")) if prefix else self._folder
        for path in start.rglob("*"):
            if path.is_file() and path.suffix != _UNFINISHED:
                yield path.relative_to(self._folder).as_posix()

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise RejectedError("a blob key has letters, digits, hyphens and slashes only")
        return self._folder / key
