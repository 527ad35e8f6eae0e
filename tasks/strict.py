"""Vectors before the write, for callers who want no object without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isotherm import storage
from isotherm.pipeline.brain.index_text import text_of, text_sha256
from isotherm.pipeline.brain.long_texts import embed_whole
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_read, brain_vectors
from isotherm.storage.postgres.brain_write import Put
from isotherm.storage.postgres.pool import connection


def with_vectors(wanted: Put) -> Put:
    """The put with the vectors of its objects, so that all is stored or nothing.

    A model call runs before the transaction. Parts of a parent that another writer retitles meanwhile, and parts that are
    not given and whose parent is retitled here, get theirs in the background.

    Raises: RejectedError when there is no embedder or it refuses a text; TransientError when it is out of reach.
    """
    embedder = factory.embedder(storage.open().settings)
    if embedder is None:
        raise RejectedError("strict: there is no embedder to embed with, see ISOTHERM_EMBEDDER")
    with connection() as conn:
        has = brain_vectors.embedded(conn, wanted.place.namespace_id, [n.id for n in wanted.objects], embedder.model)
    texts = [text for text in dict.fromkeys(_texts(wanted)) if text_sha256(text) not in has]
    try:
        made = embed_whole(embedder, texts)
    except TransientError as error:
        raise TransientError("strict: could not embed, nothing was stored") from error
    except RejectedError as error:
        raise RejectedError("strict: the embedder refuses to embed a text, nothing was stored") from error
    vectors = {text_sha256(text): made[row].astype(np.float16) for row, text in enumerate(texts)}
    return replace(wanted, vectors=vectors, model=embedder.model)


def _texts(wanted: Put) -> list[str]:
    titles = {new.id: new.title for new in wanted.objects if new.parent_id is None}
    others = list({new.parent_id for new in wanted.objects if new.parent_id and new.parent_id not in titles})
    if others:
        with connection() as conn:
            found = brain_read.by_id(conn, wanted.place.namespace_id, others)
        titles |= {i: each.title for i, each in found.items()}
    return [text_of(new, titles.get(new.parent_id) if new.parent_id else None) for new in wanted.objects]
