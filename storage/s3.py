"""Objects in an S3-compatible bucket, with the client's errors translated. The client comes with the extra `s3`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from pydantic import SecretStr

from isotherm.pipeline.errors import RejectedError, UnavailableError

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

_LIST_CHUNK = 1_000
_RETRIES = 3


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, or a folder of one, and how to reach it.

    Args: name: of the bucket, which exists; prefix: folder that every key is below; endpoint: base URL of the server,
        None for Amazon's; access_key, secret_key: None means what the machine's environment or role provides; timeout: of
        one request; retry_for: how long a failing request is tried again before it is given up.
    """

    name: str
    prefix: str | None = None
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None
    timeout: timedelta = timedelta(seconds=30)
    retry_for: timedelta = timedelta(seconds=20)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise RejectedError("bucket: a name is needed")
        if (self.access_key is None) != (self.secret_key is None):
            raise RejectedError("bucket: access key and secret key come together")


class TooLongError(RejectedError):
    """An object is longer than its reader takes; it was not read. `etag` is its tag."""

    def __init__(self, size: int, limit: int, etag: str) -> None:
        super().__init__(f"an object of {size} bytes, the limit is {limit}")
        self.etag = etag


class Listed(NamedTuple):
    """An object as listed: its key below the prefix, its size in bytes and when it was written (UTC)."""

    key: str
    size: int
    written_at: datetime


class Fetched(NamedTuple):
    """An object's bytes, and the tag that a conditional write compares with."""

    body: bytes
    etag: str


class Objects:
    """Reads and writes objects of one bucket; threads may share it, and a forked child opens a client of its own.

    Every method raises UnavailableError when the server cannot be reached or refuses the credentials.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._client: S3Store | None = None
        self._owner = 0

    def put(self, key: str, body: bytes) -> str:
        """Write an object, whatever is there; returns its tag."""
        with _translated():
            return _tag(self._open().put(key, body))

    def create(self, key: str, body: bytes) -> str | None:
        """Write an object where none is; None when there is one."""
        return self._conditional(lambda: _tag(self._open().put(key, body, mode="create")))

    def replace(self, key: str, body: bytes, etag: str) -> str | None:
        """Write an object over the one with this tag; None when there is another or none."""
        return self._conditional(lambda: _tag(self._open().put(key, body, mode={"e_tag": etag})))

    def get(self, key: str, *, max_bytes: int) -> Fetched | None:
        """Read an object, None when there is none.

        Raises: TooLongError, before it is read, when it is longer than `max_bytes`.
        """
        with _translated():
            try:
                found = self._open().get(key)
                etag = found.meta["e_tag"] or ""
                if found.meta["size"] > max_bytes:
                    raise TooLongError(found.meta["size"], max_bytes, etag)
                return Fetched(bytes(found.bytes()), etag)
            except FileNotFoundError:
                return None

    def copy(self, key: str, target: str) -> None:
        """Copy an object within the bucket; one that is gone is no error."""
        with _translated(), suppress(FileNotFoundError):
            self._open().copy(key, target)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone already are no error."""
        if keys:
            with _translated():
                self._open().delete(list(keys))

    def list(self, prefix: str, *, after: str | None = None, chunk: int = _LIST_CHUNK) -> Iterator[Listed]:
        """Keys below a folder in byte order, read as they are asked for; `after` is a key to start behind."""
        with _translated():
            for rows in self._open().list(prefix, offset=after, chunk_size=chunk):
                for row in rows:
                    yield Listed(row["path"], row["size"], row["last_modified"])

    def _conditional(self, write: Callable[[], str]) -> str | None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError  # noqa: PLC0415 - of an extra

        with _translated():
            try:
                return write()
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return None

    def _open(self) -> S3Store:
        # The client runs threads of its own, which a fork does not copy.
        if self._client is None or self._owner != os.getpid():
            self._client = _connect(self._bucket)
            self._owner = os.getpid()
        return self._client


def _connect(bucket: Bucket) -> S3Store:
    try:
        from obstore.store import S3Store  # noqa: PLC0415 - of an extra
    except ImportError:
        raise RejectedError("S3 needs its client: install isotherm[s3]") from None
    config: S3Config = {"region": bucket.region}
    if bucket.endpoint is not None:
        config["endpoint"] = bucket.endpoint
    if bucket.access_key is not None and bucket.secret_key is not None:
        config["access_key_id"] = bucket.access_key.get_secret_value()
        config["secret_access_key"] = bucket.secret_key.get_secret_value()
    plain = bucket.endpoint is not None and bucket.endpoint.startswith("http://")
    return S3Store(
        bucket.name,
        prefix=bucket.prefix,
        config=config,
        client_options={"allow_http": plain, "timeout": bucket.timeout},
        retry_config={"max_retries": _RETRIES, "retry_timeout": bucket.retry_for},
        virtual_hosted_style_request=bucket.endpoint is None,
    )


def _tag(result: object) -> str:
    return str(result["e_tag"]) if isinstance(result, dict) else ""


@contextmanager
def _translated() -> Iterator[None]:
    """The client's messages quote keys and answers of the server, so they stay in the cause."""
    try:
        from obstore.exceptions import (  # noqa: PLC0415 - of an extra
            AlreadyExistsError,
            BaseError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )
    except ImportError:
        raise RejectedError("S3 needs its client: install isotherm[s3]") from None
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise UnavailableError("S3 refuses these credentials") from error
    except FileNotFoundError as error:
        raise UnavailableError("S3 has no such bucket") from error
    except (BaseError, OSError) as error:
        raise UnavailableError("S3 cannot be reached") from error
