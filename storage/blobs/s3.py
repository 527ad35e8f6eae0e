"""Blobs as objects of an S3-compatible bucket."""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.storage.s3 import Objects

# Bodies are compressed texts of 16 MiB at most; what is longer was not put there by us.
_MAX_BYTES = 32 * 1024 * 1024


class S3Blobs:
    """A blob store in a bucket. Every method raises UnavailableError when the server cannot be reached."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def put(self, key: str, data: bytes) -> None:
        """Write an object; an upload that was cut off leaves none."""
        self._objects.put(key, data)

    def get(self, key: str) -> bytes | None:
        """Raises: RejectedError for an object longer than any body."""
        found = self._objects.get(key, max_bytes=_MAX_BYTES)
        return None if found is None else found.body

    def delete(self, key: str) -> None:
        """Remove an object; one that is gone already is no error."""
        self._objects.delete([key])

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys in byte order, read as they are asked for."""
        return (listed.key for listed in self._objects.list(prefix))
