"""Keys as hashes: text joined with separators is never a key, because its parts can contain the separator."""

from hashlib import sha256


def digest(*parts: bytes | str | None) -> bytes:
    """Hash a sequence of parts so that two different sequences never share a key.

    Each part is written as a type mark, its length and its bytes, so ("ab", "c"), ("a", "bc") and ("a", None, "bc")
    differ, and so do None, "" and b"".

    Args: parts: text (as UTF-8), bytes, or None for an absent part.
    Returns: the 32 bytes of a SHA-256.
    """
    state = sha256()
    for part in parts:
        mark, raw = _marked(part)
        state.update(mark + len(raw).to_bytes(8, "big"))
        state.update(raw)
    return state.digest()


def _marked(part: bytes | str | None) -> tuple[bytes, bytes]:
    if part is None:
        return b"n", b""
    if isinstance(part, str):
        # Unpaired surrogates have no UTF-8 form; a key must still exist for them and differ from all others.
        return b"s", part.encode("utf-8", "surrogatepass")
    return b"b", part
