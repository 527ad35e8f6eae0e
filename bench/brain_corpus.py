"""A knowledge base of a given size made at once: rows, words, statistics and vectors as the product would write them.

They are copied in with their indexes dropped and made again afterwards, since what is measured begins after that. Texts are
60 words by a Zipf law without stop words, ten parts to a document; vectors lie in clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
from corpus import SEED, Corpus, word, zipf
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.psycopg import register_vector
from psycopg import sql

from isotherm.pipeline import text
from isotherm.pipeline.brain.index_text import index_text_with_parent, text_sha256
from isotherm.pipeline.brain.objects import derived_id
from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres import namespaces
from isotherm.tasks import produce_brain

STAMP = "bench-given"
DIMENSION = 384
PARTS = 10
WORDS = 60
_CLUSTERS = 256
# Cosine of a vector and its center is then about 0.8, of two of one cluster about 0.6.
_NOISE = 0.04
_QUERY_WORDS = 6
_COLUMNS = ("key", "namespace_id", "bank_id", "id", "kind", "title", "summary", "content", "content_type", "properties",
            "parent_id", "position", "revision", "index_sha256", "terms", "length", "vector", "vector_model", "vector_dim",
            "vector_state", "created_at", "updated_at")  # fmt: skip
_TYPES = ("int8", "int8", "int8", "uuid", "text", "text", "text", "text", "text", "jsonb", "uuid", "int4", "int8", "bytea",
          "int8[]", "int4", "halfvec", "text", "int4", "text", "timestamptz", "timestamptz")  # fmt: skip
_INDEXES = """
SELECT c.relname, pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = %s::regclass AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = i.indexrelid)"""
# Rows of a fixed length, so that a whole column of them is one array: count, then length and value of each.
_POSTING = np.dtype([("n", ">i2"), ("l1", ">i4"), ("ns", ">i8"), ("l2", ">i4"), ("term", ">i8"), ("l3", ">i4"), ("key", ">i8"),
                     ("l4", ">i4"), ("tf", ">i4"), ("l5", ">i4"), ("length", ">i4")])  # fmt: skip
_HEADER, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Built:
    """What stands in the database.

    Args: texts: of the parts; vectors: of the parts, shape (parts, 384), unit length; postings: word rank, row key, count and
        length of the row, ordered by rank and key; keys: of the parts' rows.
    """

    namespace: Namespace
    texts: Corpus
    vectors: NDArray[np.float32]
    postings: tuple[Ints, Ints, Ints, Ints]
    keys: range

    def queries(self, count: int, *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
        """Six words of a part each, and a vector near that of the part."""
        rng = np.random.default_rng([SEED, seed, len(self.keys)])
        found = {}
        for number in rng.integers(0, len(self.keys), count):
            words = rng.permutation(np.unique(self.texts.ranks[number]))[:_QUERY_WORDS]
            found[" ".join(map(word, words))] = _unit(
                self.vectors[number] + rng.normal(0, _NOISE, DIMENSION).astype(np.float32)
            )
        return found


class Given:
    """An embedder that knows its texts; others get a vector made from a hash of theirs, at little cost."""

    model = STAMP
    dimension = DIMENSION

    def __init__(self, known: dict[str, NDArray[np.float32]]) -> None:
        self.known = known

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape (n, 384), rows of unit length."""
        return np.stack([self.known[one] if one in self.known else made(one) for one in texts])


_CENTERS = np.random.default_rng(SEED).standard_normal((_CLUSTERS, DIMENSION)).astype(np.float32)
_CENTERS /= np.linalg.norm(_CENTERS, axis=1, keepdims=True)


def made(said: str) -> NDArray[np.float32]:
    """A vector for a text, in one of the clusters: always the same for the same text."""
    rng = np.random.default_rng(int.from_bytes(text_sha256(said)[:8], "big"))
    return _unit(_CENTERS[rng.integers(_CLUSTERS)] + rng.normal(0, _NOISE, DIMENSION).astype(np.float32))


def corpus_of(parts: int) -> tuple[Corpus, NDArray[np.float32]]:
    """Texts of 60 words, and a vector for each, by a fixed seed."""
    rng = np.random.default_rng([SEED, parts])
    noise = rng.normal(0, _NOISE, (parts, DIMENSION)).astype(np.float32)
    return zipf(parts, shortest=WORDS, longest=WORDS), _unit(_CENTERS[rng.integers(_CLUSTERS, size=parts)] + noise)


def title_of(document: int) -> str:
    """Two words that only this document has, as names have."""
    return f"N{document}x of {word(document % 977)}"


def build(dsn: str, parts: int) -> Built:
    """Fill an empty knowledge base of one namespace. The pool must be open to the same database."""
    namespace = produce_brain.knowledge("bench")
    place = namespaces.resolve(namespace)
    texts, vectors = corpus_of(parts)
    documents = parts // PARTS
    with psycopg.connect(dsn, autocommit=True) as conn:
        register_vector(conn)
        with unindexed(conn, "brain_objects"):
            rows = _rows(namespace, place, texts, vectors, documents)
            _copy(conn, "brain_objects", _COLUMNS, _TYPES, rows)
            conn.execute("SELECT setval(pg_get_serial_sequence('brain_objects', 'key'), %s)", (documents + parts,))
            postings = _postings(texts, documents)
            _copy_postings(conn, place.namespace_id, postings, parts)
        conn.execute("VACUUM (ANALYZE) brain_objects, brain_postings, brain_terms, brain_stats")
    return Built(namespace, texts, vectors, postings, range(documents + 1, documents + parts + 1))


@contextmanager
def unindexed(conn: psycopg.Connection[Any], table: str) -> Iterator[None]:
    """Drop the indexes of a table, but for those of its keys, and make them again afterwards, at once."""
    indexes = conn.execute(_INDEXES, (table,)).fetchall()
    for name, _ in indexes:
        conn.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
    yield
    conn.execute("SET maintenance_work_mem = '1GB'")
    for _, definition in indexes:
        conn.execute(definition)


def known(namespace: Namespace, parts: int) -> Built:
    """What `build` made, without making it again."""
    texts, vectors = corpus_of(parts)
    documents = parts // PARTS
    keys = range(documents + 1, documents + parts + 1)
    return Built(namespace, texts, vectors, _postings(texts, documents), keys)


def document_id(namespace: Namespace, document: int) -> UUID:
    """The id of a document."""
    return derived_id(namespace, "bench", str(document))


def _rows(
    namespace: Namespace, place: namespaces.Place, texts: Corpus, vectors: NDArray[np.float32], documents: int
) -> Iterator[tuple[Any, ...]]:
    now = datetime.now(UTC)
    ids = [document_id(namespace, n) for n in range(documents)]
    start = (place.namespace_id, place.bank_id)
    end = (STAMP, DIMENSION, "done", now, now)
    titles = [text.term_counts(title_of(n)) for n in range(documents)]
    terms = _Terms()
    for n, object_id in enumerate(ids):
        title = title_of(n)
        yield (n + 1, *start, object_id, "document", title, "", "", "", _JSON, None, None, 1, text_sha256(title),
               sorted(titles[n]), sum(titles[n].values()), HalfVector(made(title)), *end)  # fmt: skip
    for n, ranks in enumerate(texts.ranks):
        parent, content = n // PARTS % documents, texts.text(n)
        found = sorted({*map(terms.__getitem__, np.unique(ranks).tolist()), *titles[parent]})
        said = index_text_with_parent(title_of(parent), "", "", content)
        yield (documents + n + 1, *start, derived_id(namespace, "part", str(n)), "part", "", "", content, "", _JSON,
               ids[parent], n % PARTS, 1, text_sha256(said), found, len(ranks) + sum(titles[parent].values()),
               HalfVector(vectors[n]), *end)  # fmt: skip


class _Terms(dict[int, int]):
    """The term of the word of a rank."""

    def __missing__(self, rank: int) -> int:
        self[rank] = text.terms(word(rank))[0]
        return self[rank]


_JSON = psycopg.types.json.Jsonb({})


def _postings(texts: Corpus, documents: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Rank, row key, count and length, for the words of the texts; those of titles are in no query."""
    lengths = np.array([len(ranks) for ranks in texts.ranks])
    owners = np.repeat(np.arange(len(lengths)), lengths)
    pairs, counts = np.unique(
        np.concatenate(texts.ranks) * len(lengths) + owners, return_counts=True
    )  # ordered by word, then by text
    ranks, texts_of = np.divmod(pairs, len(lengths))
    return ranks, texts_of + documents + 1, counts, lengths[texts_of]


def _copy_postings(conn: psycopg.Connection[Any], ns: int, postings: tuple[Ints, Ints, Ints, Ints], parts: int) -> None:
    ranks, keys, counts, lengths = postings
    used, first, having = np.unique(ranks, return_index=True, return_counts=True)
    terms = _Terms()
    by_term = sorted((terms[int(rank)], int(at), int(many)) for rank, at, many in zip(used, first, having, strict=True))
    order = np.concatenate([np.arange(at, at + many) for _, at, many in by_term])
    rows = posting_rows(ns, np.repeat([t for t, _, _ in by_term], [m for _, _, m in by_term]), keys[order], counts[order],
                        lengths[order])  # fmt: skip
    copy_bytes(conn, "brain_postings (namespace_id, term, object_key, tf, length)", rows)
    _copy(conn, "brain_terms", ("namespace_id", "term", "documents"), ("int8", "int8", "int8"),
          ((ns, term, many) for term, _, many in by_term))  # fmt: skip
    conn.execute("INSERT INTO brain_stats VALUES (%s, %s, %s)", (ns, parts, parts * WORDS))


def posting_rows(space: int, terms: Ints, keys: Ints, counts: Ints, lengths: Ints) -> bytes:
    """Five columns as PostgreSQL's binary format has them: three of 8 bytes, two of 4."""
    rows = np.zeros(len(terms), _POSTING)
    rows["n"], rows["l1"], rows["l2"], rows["l3"], rows["l4"], rows["l5"] = 5, 8, 8, 8, 4, 4
    rows["ns"], rows["term"], rows["key"], rows["tf"], rows["length"] = space, terms, keys, counts, lengths
    return rows.tobytes()


def copy_bytes(conn: psycopg.Connection[Any], into: str, rows: bytes) -> None:
    """Copy rows that are in binary format already. Args: into: table and columns."""
    with conn.cursor().copy(sql.SQL(f"COPY {into} FROM STDIN (FORMAT BINARY)")) as copy:  # type: ignore[arg-type]
        copy.write(_HEADER)
        for at in range(0, len(rows), 1 << 20):
            copy.write(rows[at : at + (1 << 20)])
        copy.write(_END)


def _copy(
    conn: psycopg.Connection[Any], table: str, columns: Sequence[str], types: Sequence[str], rows: Iterator[Any]
) -> None:
    into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with conn.cursor().copy(into) as copy:
        copy.set_types(list(types))
        for row in rows:
            copy.write_row(row)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return unit
