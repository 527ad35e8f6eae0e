"""Bodies of cold records between the database and the blob store. No transaction stays open while the store works."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.tier.blobs import BlobStore
from isotherm.pipeline.tier.plan import Move
from isotherm.storage.postgres import cold_blobs, tier_move
from isotherm.storage.postgres.cold_blobs import Blob
from isotherm.storage.postgres.cold_bodies import StoredBody, compressed
from isotherm.storage.postgres.pool import connection


def upload(moves: Sequence[Move], blobs: BlobStore, *, blob_min_bytes: int) -> dict[int, Blob]:
    """Put the bodies of records that go cold into the blob store, those that are large when compressed.

    Returns: their objects by record key; they are not live before `tier_move.archive` commits.
    Raises: TransientError when the store cannot be reached, or an object does not read back.
    """
    with connection() as conn:
        candidates = tier_move.large(conn, moves, blob_min_bytes)
    done: dict[int, Blob] = {}
    for move in candidates:  # one after the other: each may take megabytes
        with connection() as conn:
            content = tier_move.content_of(conn, move)
        body = b"" if content is None else compressed(content.encode())
        if len(body) < blob_min_bytes:
            continue
        with connection() as conn:
            announced = cold_blobs.announce(conn, {move.key: len(body)})
        for key, blob in announced.items():
            blobs.put(blob.object_key, body)
            if blobs.get(blob.object_key) != body:
                raise TransientError("the blob store gives back something else than it was given")
            done[key] = blob
    return done


def fetch(moves: Sequence[Move], blobs: BlobStore) -> dict[str, bytes]:
    """The objects that hold the bodies of cold records, by their keys; those that are missing are left out.

    Raises: TransientError when the store cannot be reached.
    """
    with connection() as conn:
        wanted = tier_move.objects_of(conn, moves)
    found = ((key, _get(blobs, key)) for key in wanted)
    return {key: body for key, body in found if body is not None}


def text(stored: StoredBody, blobs: BlobStore) -> str | None:
    """The text of a cold record, None when what is stored of it is missing or damaged.

    Raises: TransientError when the blob store is needed and cannot be reached.
    """
    return stored.text(None if stored.object_key is None else _get(blobs, stored.object_key))


def text_or_summary(stored: StoredBody, blobs: BlobStore) -> str:
    """The text of a cold record, its summary when what is stored of it is missing or damaged. Raises: as `text`."""
    whole = text(stored, blobs)
    return whole if whole is not None else stored.summary or ""


def collect(blobs: BlobStore, dead: Sequence[Blob]) -> list[int]:
    """Remove objects of dead rows from the store; returns the ids of the rows.

    Raises: TransientError when the store cannot be reached; what is removed by then is removed again next time.
    """
    for blob in dead:
        blobs.delete(blob.object_key)
    return [blob.id for blob in dead]


def _get(blobs: BlobStore, key: str) -> bytes | None:
    try:
        return blobs.get(key)
    except RejectedError:  # longer than any body: not what was put there
        return None
