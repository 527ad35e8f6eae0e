"""A HelixDB to talk to: a server by its URL, or the engine embedded in one process, on disk.

The embedded engine allows one process: a second writer silently fences off the first, and a handle that went through a fork
hangs. So it is opened under a lock on a file, and only where `own_embedded` was called: in the worker of the graph queue.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError

# Another writer was faster: reading again and writing again is the remedy.
_CONFLICTS: Final = ("unique constraint", "conflict", "retry", "concurrent")
# The engine is there and cannot be used now.
_AWAY: Final = ("storage", "object store", "fenced", "closed", "not ready", "timed out", "building")
_TRIES: Final = 6
_PAUSE_S: Final = 0.05

T = TypeVar("T")


class _Owner:
    pid: int | None = None
    opened: EmbeddedClient | None = None


def own_embedded() -> None:
    """Let this process, and none of its children, open the embedded engine."""
    _Owner.pid = os.getpid()


def close_embedded() -> None:
    """Close the engine if this process has it open."""
    if _Owner.opened is not None:
        _Owner.opened.close()


class ConflictError(TransientError):
    """Another writer changed what this write was based on."""


class HelixClient(Protocol):
    """Sends one request, a transaction of its own; answers with rows by variable."""

    def send(self, batch: Any) -> dict[str, Any]:  # noqa: ANN401 - a batch of the SDK, which is there only with the extra
        """Raises: ConflictError; TransientError when the engine is out of reach."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class ServerClient:
    """A server. Args: url: its base; key: bearer key; None is none."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._client = _sdk().Client(url, api_key=key)

    def send(self, batch: Any) -> dict[str, Any]:  # noqa: ANN401 - as the protocol
        """Send one request."""
        return _translated(lambda: self._client.query(batch.to_query_request()))

    def close(self) -> None:
        """Nothing is kept open."""


class EmbeddedClient:
    """The engine in this process, opened when it is first used; threads take turns.

    Args: folder: where it keeps its data; it is made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._client: Any = None
        self._file: int | None = None
        self._pid: int | None = None
        _sdk()

    def send(self, batch: Any) -> dict[str, Any]:  # noqa: ANN401 - as the protocol
        """Send one request."""
        with self._lock:
            client = self._opened()
            return _translated(lambda: client.query(batch.to_query_request()))

    def close(self) -> None:
        """Close the engine and let others open it."""
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
            if self._file is not None:
                os.close(self._file)
            self._client = self._file = None

    def _opened(self) -> Any:  # noqa: ANN401 - the SDK's client
        if _Owner.pid != os.getpid():
            raise UnavailableError("the embedded HelixDB is open in the graph worker only")
        if self._client is None:
            self._file = _locked(self._folder)
            sdk = _sdk()
            try:
                self._client = _translated(lambda: sdk.Client.embedded(sdk.Disk(str(self._folder), "isotherm")))
            except BaseException:
                os.close(self._file)
                self._file = None
                raise
            self._pid, _Owner.opened = os.getpid(), self
        return self._client


def _locked(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(folder / "isotherm.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise UnavailableError("another process has the embedded HelixDB open") from None
    return file


def _sdk() -> Any:  # noqa: ANN401 - a module that is there only with the extra
    try:
        import helixdb  # noqa: PLC0415 - only where it is installed and asked for
    except ImportError:
        raise RejectedError("HelixDB is not installed: pip install 'isotherm[helix]'") from None
    return helixdb


def _translated(call: Callable[[], T]) -> T:
    """Errors of the SDK by their remedy. Their messages may hold data and are not passed on."""
    error_type = _sdk().HelixError
    try:
        return call()
    except error_type as error:
        said = str(error).lower()
        if any(word in said for word in _CONFLICTS):
            raise ConflictError("HelixDB: another writer was faster") from None
        if getattr(error, "kind", "") in {"Network", "EmbeddedUnavailable"} or any(word in said for word in _AWAY):
            raise UnavailableError("HelixDB is out of reach") from None
        status = getattr(error, "status_code", None)
        if status is not None and (status >= 500 or status == 429):  # noqa: PLR2004 - codes of HTTP
            raise UnavailableError(f"HelixDB answered {status}") from None
        raise


def retried(action: Callable[[], T]) -> T:
    """Repeat an action that reads and then writes, while others are faster. Raises: ConflictError after some tries."""
    for tried in range(1, _TRIES + 1):
        try:
            return action()
        except ConflictError:
            if tried == _TRIES:
                raise
            time.sleep(_PAUSE_S * tried)
    raise AssertionError("the loop returns or raises")
