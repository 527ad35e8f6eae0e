"""Where large bodies of cold records are kept: a store of objects that are written once, and the names they have there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from isotherm.pipeline.identity import Namespace

_OWNER_CHARS = 32
BLOB_MIN_BYTES = 16_384


class BlobStore(Protocol):
    """Objects by key. Keys are lower-case letters, digits, hyphens and slashes; an object is never written twice.

    Every method raises TransientError when the same call may succeed later, and RejectedError when it never can.
    """

    def put(self, key: str, data: bytes) -> None:
        """Write an object; when this returns, it is durable."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, None when there is no such object."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys of all objects under a prefix that ends at a slash, or of all with a blank one, in no stated order."""
        ...


def bank_prefix(namespace: Namespace) -> str:
    """What the keys of all objects of a namespace's bank start with: no two banks share one."""
    return f"{namespace.bank.key.hex()[:_OWNER_CHARS]}/"


def owner_prefix(namespace: Namespace) -> str:
    """What the keys of all objects of a namespace start with: no two namespaces share one."""
    return f"{bank_prefix(namespace)}{namespace.key.hex()[:_OWNER_CHARS]}/"
