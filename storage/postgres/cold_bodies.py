"""Bodies of cold records: compressed on the way out, checked against their hash on the way back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import zstandard

# Small bodies gain nothing from a higher level, large ones little.
_LEVEL = 9


@dataclass(frozen=True, slots=True)
class StoredBody:
    """What is stored of a cold record's text.

    Args: summary: the text itself when there is no body; body: compressed, None when it is an object of the blob store or
    the text went cold whole; raw_bytes: of the text, in UTF-8; sha256: of the text; object_key: of the object, None
    without one.
    """

    summary: str | None
    body: bytes | None
    raw_bytes: int | None
    sha256: bytes
    object_key: str | None = None

    def text(self, fetched: bytes | None = None) -> str | None:
        """The text the record had, or None when what is stored does not match its hash.

        Args: fetched: the object's bytes, None when there is no such object.
        """
        if self.object_key is None:
            return original(self.summary, self.body, self.raw_bytes, self.sha256)
        return None if fetched is None else original(None, fetched, self.raw_bytes, self.sha256)


def compressed(raw: bytes) -> bytes:
    """Compress a body. Raises: RuntimeError when it would not read back."""
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(raw)
    if _decompressed(body, len(raw)) != raw:
        raise RuntimeError("a compressed body does not read back")
    return body


def original(summary: str | None, body: bytes | None, raw_bytes: int | None, sha256: bytes) -> str | None:
    """The text a cold record had, or None when what is stored does not match its hash."""
    try:
        raw = (summary or "").encode() if body is None else _decompressed(bytes(body), raw_bytes or 0)
    except zstandard.ZstdError:
        return None
    return raw.decode() if hashlib.sha256(raw).digest() == bytes(sha256) else None


def _decompressed(body: bytes, raw_bytes: int) -> bytes:
    # Asked first, since as much memory is taken as the frame claims to need.
    if zstandard.frame_content_size(body) != raw_bytes:
        raise zstandard.ZstdError("the body has another size than was stored")
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=max(raw_bytes, 1))
