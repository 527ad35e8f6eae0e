"""What a program of a soak asks about interests, and which there must be then."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from soak_program import Program
from topic_judge import root

from isotherm import storage
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.tasks import producers

_ROOTS = 30
_LETTERS = "bdfgklmnprstvz"


_SAID = "Tell me about {}."


def thing(name: str) -> str:
    """What a topic is one interest with: its root, and what denies it is another one.

    An interest that was told anew, since what it was told by is forgotten, has the words of what was said for a name.
    """
    before, after = _SAID.split("{}")
    topic = name.removeprefix(before).removesuffix(after)
    return f"{'anti' if topic.startswith('anti') else ''}{root(topic)}"


@dataclass
class InterestCalls(Program):
    """Args: said: topics by session; runs: their operations; undone: changes that were taken back, by what they were about;
    forgotten: interests that may be there or not."""

    said: dict[str, list[str]] = field(default_factory=dict)
    runs: dict[str, UUID] = field(default_factory=dict)
    undone: Counter[str] = field(default_factory=Counter)
    forgotten: set[str] = field(default_factory=set)

    def topic(self) -> str:
        n, letters = self.dice.randrange(_ROOTS), len(_LETTERS)
        word = "".join(_LETTERS[(self.number * 5 + n * k + k) % letters] for k in (1, 3))
        start = f"{chr(97 + self.number % 26)}{word}{chr(97 + n % 26)}"
        return f"{self.dice.choice(('', '', '', 'anti'))}{start}{self.dice.choice(('', 'e', 'es'))}"

    def ingest(self) -> None:
        name, topics = f"talk{self.count}", [self.topic() for _ in range(3)]
        session, now = Namespace.of(self.agent, name), datetime.now(UTC)
        lines = [
            TranscriptLine(n + 1, self.agent, name, None, "user", _SAID.format(topic), now - timedelta(minutes=9 - n))
            for n, topic in enumerate(topics)
        ]
        self.runs[name] = self.keep(lambda: producers.ingest_session(session, lines))
        self.said[name] = topics

    def forget_talk(self) -> None:
        """A session is forgotten, and what was made of it alone."""
        if self.said:
            name = self.dice.choice(list(self.said))
            self.erasures.add(self.keep(lambda: producers.forget_session(self.bank, name, key=self.key())))
            del self.said[name]
            self.gone.add(self.runs[name])  # or restarted and over, without the session

    def forget_interest(self) -> None:
        """An interest is forgotten; a run that reads its session later may find it again."""
        if found := self.insist(lambda: producers.interests(self.bank, limit=20)):
            one = self.dice.choice(found)
            self.forgotten.add(thing(one.name))
            forget = producers.forget_interests
            self.erasures.add(self.keep(lambda: forget(self.bank, [one.id], key=self.key())))

    def settle(self) -> None:
        """A contradiction is settled or opened again."""
        if found := self.insist(lambda: producers.contradictions(self.bank, limit=5)):
            one, side = self.dice.choice(found), self.dice.choice(("left", "right", None))
            # It may be gone since: what it was made of was forgotten, or the two became one.
            self.maybe(lambda: producers.resolve_contradiction(self.bank, one.id, side=side))
            if self.dice.random() < 0.5:
                self.maybe(lambda: producers.reopen_contradiction(self.bank, one.id))

    def undo(self) -> None:
        """A change is taken back."""
        memory = storage.open().interest
        if entries := [e for e in self.insist(lambda: memory.log(self.bank, limit=20)) if e.undoable]:
            entry = self.dice.choice(entries)
            self.undone[thing(entry.name)] += 1
            self.maybe(lambda: producers.undo_change(self.bank, entry.id))

    def ask(self) -> None:
        topic = self.topic()
        self.insist(lambda: producers.interests(self.bank, limit=20))
        self.insist(lambda: producers.recall_interests(self.bank, topic))
        self.insist(lambda: producers.interest_context(self.bank, topic))
