"""A model server's answers for sessions that talk "about" topics: read out, judged and embedded by their names alone.

Topics of one root (their first four letters) are one thing, except `anti...`, which contradicts its root. Vectors of one root
are alike; `...left` and `...right` are each near their root and not near each other.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from model_server import Answer, Script, model_server, said, vectors

Json = dict[str, Any]

DIMENSION = 64
_TURN = np.pi / 6


class TopicJudge:
    """Answers chat and embedding requests.

    `refuse` says what it answers to a chat question instead, `hold` until when it lets it wait for its answer;
    `tokens` is what each question is said to have.
    """

    def __init__(self) -> None:
        self.refuse: Callable[[str, str], Answer | None] = lambda _name, _text: None
        self.hold: Callable[[str, str], threading.Event | None] = lambda _name, _text: None
        self.tokens = 11

    def __call__(self, question: Json) -> Answer:
        if "input" in question:
            return vectors(*enumerate(vector(text) for text in question["input"]))
        name, text = name_of(question), question["messages"][1]["content"]
        answer = self.refuse(name, text) or said(json.dumps(_ANSWERS[name](text)))
        if isinstance(answer.body, dict):
            answer.body["usage"] = {"prompt_tokens": self.tokens, "completion_tokens": 0}
        return replace(answer, hold=self.hold(name, text))


def name_of(question: Json) -> str:
    """Which kind of question a request asks."""
    return "embed" if "input" in question else str(question["response_format"]["json_schema"]["name"])


def text_of(question: Json) -> str:
    """What a request is about, repairs included."""
    return json.dumps(question.get("messages") or question["input"])


def asked(script: Script) -> Counter[str]:
    """Requests by kind of question."""
    return Counter(map(name_of, list(script.asked)))


def root(topic: str) -> str:
    return topic.removeprefix("anti")[:4]


def vector(text: str) -> list[float]:
    topic = text.partition("\n")[0]
    turn = _TURN if topic.endswith("left") else -_TURN if topic.endswith("right") else 0.0
    own = np.cos(turn) * _axis(root(topic)) + np.sin(turn) * _axis(f"{root(topic)} turned")
    return [float(x) for x in own + 0.1 * _axis(topic)]


def _axis(word: str) -> Any:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    made = np.random.default_rng(seed).normal(size=DIMENSION)
    return made / np.linalg.norm(made)


def _extracted(text: str) -> Json:
    def item(turn: str, words: str, topic: str) -> Json:
        place = {"first_turn": int(turn), "last_turn": int(turn)}
        return {"topic": topic, "reason": words, "confidence": 0.8, **place}

    return {"items": [item(*found) for found in re.findall(r"^(\d+) user: (.*?about (\w+).*)", text, re.MULTILINE)]}


def _points(text: str) -> dict[str, str]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["handle"]: line["topic"] for line in lines}


def _same(one: str, other: str) -> bool:
    return root(one) == root(other) and one.startswith("anti") == other.startswith("anti")


def _merged(text: str) -> Json:
    found: dict[tuple[str, bool], list[int]] = {}
    for handle, topic in _points(text).items():
        found.setdefault((root(topic), topic.startswith("anti")), []).append(int(handle))
    merges = [{"members": places, "topic": "", "reason": ""} for places in found.values() if len(places) > 1]
    return {"merges": merges}


def _decided(text: str) -> Json:
    points = _points(text)
    decisions, contradictions = [], []
    for handle, topic in points.items():
        if not handle.startswith("n"):
            continue
        others = [o for o in points if o.startswith("h") or int(o[1:]) < int(handle[1:])]
        same = [o for o in sorted(others) if _same(points[o], topic)]
        against = [o for o in others if root(points[o]) == root(topic) and not _same(points[o], topic)]
        action = {"action": "merge", "target": same[0]} if same else {"action": "keep"}
        decisions.append({"point": handle, **action})
        contradictions += [{"left": handle, "right": o, "description": "one denies the other"} for o in against]
    return {"decisions": decisions, "contradictions": contradictions}


_ANSWERS: dict[str, Callable[[str], Json]] = {
    "interest_extract": _extracted,
    "interest_s1": _merged,
    "interest_v1_2": _decided,
}


@contextmanager
def topic_server(judge: TopicJudge) -> Iterator[Script]:
    """The server, for as long as the block runs."""
    with model_server(reply=judge) as script:
        yield script


def environment_of(script: Script) -> dict[str, str]:
    """Settings of a process that asks this server."""
    return {
        "NO_PROXY": "127.0.0.1",
        "ISOTHERM_CHAT": "openai",
        "ISOTHERM_CHAT_URL": script.url,
        "ISOTHERM_CHAT_MODEL": "scripted",
        "ISOTHERM_EMBEDDER": "openai",
        "ISOTHERM_EMBEDDER_URL": script.url,
        "ISOTHERM_EMBEDDER_MODEL": "scripted-vectors",
        "ISOTHERM_EMBEDDER_DIMENSION": str(DIMENSION),
    }


def about(*topics: str, who: str = "") -> list[str]:
    """What a user says in a session about topics. Args: who: what every question that comes of it names."""
    return [f"{who} Tell me about {topic}.".strip() for topic in topics]
