"""The model server of a soak: it judges and embeds by topics, and can be busy, silent or break off in the middle."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from dataclasses import replace
from typing import Literal

from model_server import Answer, said
from topic_judge import Json, TopicJudge, name_of

Mode = Literal["well", "busy", "silent", "half"]
_HOLD_S = 3.0


class HurtModel:
    """Answers as its mode says; how often it did is counted by mode.

    busy: 429, with and without a time to wait; silent: no answer until the injury is over; half: the body breaks off, or is
    whole and its JSON is not, or the model stopped in the middle of what it said. `unsaid` are the topics that it came to
    no more then, after others: such an answer serves with what is whole.
    """

    def __init__(self, seed: int) -> None:
        self._judge, self._dice = TopicJudge(), random.Random(seed)
        self._mode: Mode = "well"
        self._over = threading.Event()
        self.answered: Counter[str] = Counter()
        self.unsaid: set[str] = set()

    def set(self, mode: Mode) -> None:
        """Say how requests fare from now on; those that wait are let go."""
        self._over.set()
        self._over = threading.Event()
        self._mode = mode

    def __call__(self, question: Json) -> Answer:
        mode = self._mode
        self.answered[mode] += 1
        if mode == "busy":
            return Answer(status=429, headers=self._dice.choice(({}, {"Retry-After": "0"}, {"Retry-After": "1"})))
        right = _summary(question) if name_of(question) == "cold_summary" else self._judge(question)
        if mode == "silent":
            return replace(right, hold=self._over, hold_s=_HOLD_S, half=True)
        return self._half(question, right) if mode == "half" else right

    def _half(self, question: Json, right: Answer) -> Answer:
        way = self._dice.randrange(3)
        if way == 0:
            return replace(right, half=True)
        if way == 1 or name_of(question) == "embed":
            text = str(right.body).replace("'", '"')
            return replace(right, body=text[: len(text) // 2])
        body = right.body
        assert isinstance(body, dict)
        choice = body["choices"][0]
        said = choice["message"]["content"]
        cut = {**choice, "message": {**choice["message"], "content": said[: len(said) // 2]}, "finish_reason": "length"}
        if name_of(question) == "interest_extract":
            self.unsaid |= _left_out(json.loads(said)["items"], len(said) // 2)
        return replace(right, body={**body, "choices": [cut]})


def _left_out(items: list[Json], chars: int) -> set[str]:
    """Topics of the items that are not whole in so many characters; none when no item is, since that is asked again."""
    whole = [n for n in range(1, len(items) + 1) if len(json.dumps({"items": items[:n]})) - len("]}") <= chars]
    return {item["topic"] for item in items[max(whole) :]} if whole else set()


def _summary(question: Json) -> Answer:
    """A summary in the words that the text begins with."""
    text = str(question["messages"][1]["content"]).split()
    return said(json.dumps({"summary": f"In brief: {' '.join(text[1:9])}"}))
