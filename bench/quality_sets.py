"""The retrieval sets that `quality.py` asks: texts, questions, what belongs to each question, and vectors made beforehand.

None of the data are part of this project. A folder named `minilm_embeddings` beside the sets holds the ready vectors.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Measure = Callable[[Sequence[str], frozenset[str]], float]

_MARKER = re.compile(r"\s*->->.*$", re.DOTALL)
_SIDE_BY_SIDE = 780  # passages that published runs on 2Wiki had indexed


@dataclass(frozen=True, slots=True)
class Document:
    """A text to find, with a name of its own within its collection."""

    name: str
    title: str
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """A query, the names of the documents that belong to it, and what kind of question it is."""

    text: str
    gold: frozenset[str]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents that are searched together, and the questions asked of them."""

    name: str
    documents: Sequence[Document]
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """A set with its protocol.

    Args: measures: what is reported, the first one has the gates; vectors: by text of documents (title and content, one
        below the other) and questions; empty when the offline model makes them; floors: what `words`, `vectors` and
        `both` must reach by the first measure; better: how much of its better leg the fused order must reach.
    """

    name: str
    collections: Sequence[Collection]
    measures: Mapping[str, Measure]
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    better: float = 1.0


def recall(k: int) -> Measure:
    """Share of what belongs to a question among the first k."""
    return lambda found, gold: len(gold & set(found[:k])) / len(gold)


def every(k: int) -> Measure:
    """1 when all that belongs to a question is among the first k, else 0."""
    return lambda found, gold: float(gold <= set(found[:k]))


def ndcg(k: int) -> Measure:
    """Normalized discounted cumulative gain of the first k, binary gain."""

    def measure(found: Sequence[str], gold: frozenset[str]) -> float:
        gain = sum(1 / math.log2(rank + 2) for rank, one in enumerate(found[:k]) if one in gold)
        best = sum(1 / math.log2(rank + 2) for rank in range(min(len(gold), k)))
        return gain / best if best else 0.0

    return measure


def scifact(data: Path) -> RetrievalSet:
    """Claims about 5,183 abstracts; the 240 of the development part."""
    return _scifact(data, "scifact", "claims_dev_shared240.jsonl", "scifact_dev_shared240.npy",
                    {"words": 0.65, "vectors": 0.634, "both": 0.69})  # fmt: skip


def scifact_train(data: Path) -> RetrievalSet:
    """The same abstracts asked by the 809 claims that one may tune on."""
    return _scifact(data, "scifact_train", "claims_train.jsonl", "scifact_train.npy", {})


def musique(data: Path) -> RetrievalSet:
    """Questions over two to four passages, 1,890 of them."""
    return _passages(data, "musique", data / "musique_train100", "questions_shared80.jsonl", {"vectors": 0.600})


def hotpot(data: Path) -> RetrievalSet:
    """Questions over two passages, 994 of them."""
    return _passages(data, "hotpot", data / "hotpot_train100", "questions_shared80.jsonl", {})


def wiki(data: Path) -> RetrievalSet:
    """2WikiMultiHopQA over all 6,119 passages."""
    return _passages(data, "2wiki", data / "2wiki_hipporag", "questions_shared81.jsonl", {})


def wiki_780(data: Path) -> RetrievalSet:
    """The same questions over the 780 passages that published runs had indexed."""
    folder = data / "2wiki_hipporag"
    return _passages(data, "2wiki", folder, "questions_shared81.jsonl", {}, most=_SIDE_BY_SIDE, name="2wiki780")


def beam(data: Path) -> RetrievalSet:
    """Ten kinds of questions over 16 long chats, each chat searched by itself, message by message."""
    folder = data / "beam_100k"
    chats = [_chat(folder, path) for path in sorted(folder.glob("*.chat.json.gz"))]
    if not chats:
        raise FileNotFoundError(folder)
    return RetrievalSet("beam", chats, {"R@10": recall(10), "R@5": recall(5)})


SETS: Mapping[str, Callable[[Path], RetrievalSet]] = {
    "scifact": scifact,
    "scifact_train": scifact_train,
    "musique": musique,
    "hotpot": hotpot,
    "2wiki780": wiki_780,
    "2wiki": wiki,
    "beam": beam,
}


def _scifact(data: Path, name: str, claims: str, made: str, floors: Mapping[str, float]) -> RetrievalSet:
    folder, ready = data / "scifact", data / "minilm_embeddings"
    documents = [
        Document(str(row["_id"]), row["title"], " ".join(row["sentences"])) for row in _rows(folder / "corpus.jsonl.gz")
    ]
    questions = [Question(row["text"], frozenset(map(str, row["cited_doc_ids"]))) for row in _rows(folder / claims)]
    vectors = _ready(documents, ready / "scifact_corpus.npy") | _asked(questions, ready / made)
    measures = {"nDCG@10": ndcg(10), "R@10": recall(10)}
    return RetrievalSet(name, [Collection(name, documents, questions)], measures, vectors, floors)


def _passages(
    data: Path,
    vectors_name: str,
    folder: Path,
    asked: str,
    floors: Mapping[str, float],
    *,
    most: int | None = None,
    name: str = "",
) -> RetrievalSet:
    ready = data / "minilm_embeddings"
    documents = [
        Document(str(row["idx"]), row["title"], row["text"] if "text" in row else "".join(row["sentences"]))
        for row in _rows(folder / "corpus.jsonl.gz")
    ][:most]
    questions = [Question(row["question"], frozenset(map(str, row["gold_passages"]))) for row in _rows(folder / asked)]
    made = ready / f"{vectors_name}_{asked.removesuffix('.jsonl')}.npy"
    vectors = _ready(documents, ready / f"{vectors_name}_corpus.npy") | _asked(questions, made)
    measures = {"R@5": recall(5), "R@10": recall(10), "All@5": every(5), "All@8": every(8)}
    collection = Collection(name or vectors_name, documents, questions)
    return RetrievalSet(collection.name, [collection], measures, vectors, floors)


def _chat(folder: Path, path: Path) -> Collection:
    number = path.name.split(".")[0]
    batches = json.loads(gzip.decompress(path.read_bytes()))
    messages = [message for batch in batches for turn in batch["turns"] for message in turn]
    documents = [Document(str(m["id"]), "", _MARKER.sub("", m["content"]).strip() or "-") for m in messages]
    asked = json.loads((folder / f"{number}.probing_questions.json").read_text(encoding="utf-8"))
    questions = [
        Question(one["question"], gold, kind)
        for kind, ones in asked.items()
        for one in ones
        if (gold := frozenset(_ids(one.get("source_chat_ids"))))
    ]
    return Collection(f"chat{number}", documents, questions)


def _ids(given: Any) -> Iterator[str]:  # noqa: ANN401 - a list, or lists by what they stand for
    if isinstance(given, Mapping):
        for each in given.values():
            yield from _ids(each)
    elif isinstance(given, list):
        for each in given:
            yield from _ids(each)
    elif given is not None:
        yield str(given)


def _rows(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.decode().splitlines() if line.strip()]


def _ready(documents: Sequence[Document], made: Path) -> dict[str, Vectors]:
    return _paired((text_of_document(one) for one in documents), np.load(made)[: len(documents)])


def _asked(questions: Sequence[Question], made: Path) -> dict[str, Vectors]:
    return _paired((one.text for one in questions), np.load(made))


def _paired(texts: Iterable[str], made: NDArray[Any]) -> dict[str, Vectors]:
    return dict(zip(texts, made.astype(np.float32), strict=True))


def text_of_document(document: Document) -> str:
    """What a vector of a document is made from: title and content, trimmed, one below the other."""
    return "\n".join(part for part in (document.title.strip(), document.content.strip()) if part)
