"""What tests of the knowledge base share: steps run in this process, and what must hold of the database whatever ran."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from inprocess import drive

from isotherm.pipeline import text
from isotherm.pipeline.brain.index_text import text_of, text_sha256
from isotherm.pipeline.brain.objects import NewObject
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import brain, produce_brain

_ROWS = """
SELECT r.key, r.namespace_id, r.id, r.kind, r.title, r.summary, r.content, r.properties, r.parent_id, p.title, r.terms,
       r.length, r.index_sha256, r.deleted_at IS NOT NULL
FROM brain_objects AS r LEFT JOIN brain_objects AS p ON p.namespace_id = r.namespace_id AND p.id = r.parent_id"""


def uid(number: int) -> UUID:
    """A readable id."""
    return UUID(int=(1 << 100) + number)


def new(number: int, title: str = "", content: str = "", **more: Any) -> NewObject:
    """An object with a readable id."""
    parent = more.pop("parent", None)
    kind = more.pop("kind", "note" if parent is None else "chunk")
    return NewObject(
        uid(number), kind, title, content=content, parent_id=None if parent is None else uid(parent), **more
    )


def titles(answer: Any) -> list[str]:
    return [result.object.title for result in answer.results]


def settle() -> list[str]:
    """Run every step that waits, and fold the statistics."""
    ran = drive()
    brain.fold()
    return ran


def check_brain() -> None:
    """Words, statistics and parts agree with the objects, once the statistics are folded."""
    while brain.fold()["changes"]:
        pass
    postings: dict[int, dict[int, tuple[int, int, int]]] = {}
    for ns, term, key, tf, length in fetch_all("SELECT namespace_id, term, object_key, tf, length FROM brain_postings"):
        postings.setdefault(key, {})[term] = (ns, tf, length)
    documents: Counter[int] = Counter()
    lengths: Counter[int] = Counter()
    having: Counter[tuple[int, int]] = Counter()
    for (
        key,
        ns,
        object_id,
        kind,
        title,
        summary,
        content,
        properties,
        parent,
        parent_title,
        terms,
        length,
        sha,
        gone,
    ) in fetch_all(_ROWS):
        found = text_of(NewObject(object_id, kind, title, summary, content, "", properties, parent), parent_title)
        counts = {} if gone else text.term_counts(found)
        total = sum(counts.values())
        if not gone:
            assert bytes(sha) == text_sha256(found), object_id
        assert sorted(terms) == sorted(counts), object_id
        assert length == total, object_id
        assert postings.pop(key, {}) == {term: (ns, tf, total) for term, tf in counts.items()}, object_id
        if counts:
            documents[ns] += 1
            lengths[ns] += total
            having.update((ns, term) for term in counts)
    assert not postings, "words of objects that are gone"
    folded = {ns: (n, total) for ns, n, total in fetch_all("SELECT namespace_id, documents, length FROM brain_stats")}
    assert {ns: row for ns, row in folded.items() if row != (0, 0)} == {
        ns: (n, lengths[ns]) for ns, n in documents.items()
    }
    words = fetch_all("SELECT namespace_id, term, documents FROM brain_terms WHERE documents <> 0")
    assert {(ns, term): n for ns, term, n in words} == dict(having)
    orphans = """SELECT r.id FROM brain_objects AS r
                 LEFT JOIN brain_objects AS p ON p.namespace_id = r.namespace_id AND p.id = r.parent_id
                 WHERE r.parent_id IS NOT NULL AND r.deleted_at IS NULL
                   AND (p.id IS NULL OR p.deleted_at IS NOT NULL OR p.parent_id IS NOT NULL)"""
    assert fetch_all(orphans) == []


KNOWLEDGE = produce_brain.knowledge("atlas")
OTHER = produce_brain.knowledge("atlas", tenant="other")
