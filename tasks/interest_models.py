"""Who reads and judges: the rules, or a chat model where the settings name one, and what happens when that cannot answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.interest import questions, s1, v1_2
from isotherm.pipeline.interest.candidates import Candidate, Outcome, Point, Vector
from isotherm.pipeline.interest.extract import RuleExtractor
from isotherm.pipeline.interest.pairs import relate_by_rules
from isotherm.pipeline.interest.s1 import Merge
from isotherm.pipeline.interest.v1_2 import Unit
from isotherm.pipeline.interest.windows import Window
from isotherm.pipeline.ports import ChatModel, Embedder, Redactor
from isotherm.storage.interest_copies import RememberingChat, RememberingEmbedder
from isotherm.storage.models import factory
from isotherm.storage.models.keyphrases import CountingKeyphrases
from isotherm.storage.settings import Settings


@dataclass(frozen=True, slots=True)
class Readers:
    """The models of a run. Without a chat model the rules do its work; without an embedder names and rules alone count."""

    chat: ChatModel | None
    embedder: Embedder | None
    redactor: Redactor

    @classmethod
    def of(cls, settings: Settings, bank_id: int | None = None) -> Readers:
        """As the settings ask.

        Args: bank_id: whose answers and vectors are remembered; None remembers nothing.
        Raises: RejectedError naming the settings that are missing.
        """
        chat, embedder = factory.chat_model(settings), factory.embedder(settings)
        if bank_id is not None:
            chat = None if chat is None else RememberingChat(chat, bank_id, settings.chat_model or "")
            embedder = None if embedder is None else RememberingEmbedder(embedder, bank_id)
        return cls(chat, embedder, factory.redactor(settings))

    def extract(self, window: Window) -> tuple[list[Candidate], bool]:
        """The candidates of a window, secrets taken out, and whether the rules had to stand in for the model.

        Raises: TransientError when the model may answer later.
        """
        fallback = False
        found: list[Candidate] | None = None
        if self.chat is not None:
            try:
                found = questions.read_extracted(self.chat.ask(questions.ask_extract(window)), window)
            except RejectedError:
                fallback = True
        if found is None:
            found = RuleExtractor(CountingKeyphrases()).extract(window)
        return [self._clean(candidate) for candidate in found], fallback

    def merge(self, group: Sequence[Point]) -> tuple[list[Merge], bool]:
        """Which members of a group are one, and whether the group is kept as it is because the model could not say.

        Raises: TransientError when the model may answer later.
        """
        if self.chat is None:
            return s1.RuleJudge(relate_by_rules).judge(group), False
        try:
            return questions.read_merged(self.chat.ask(questions.ask_merge(group))), False
        except RejectedError:
            return [], True

    def adjudicate(self, unit: Unit) -> tuple[Outcome, bool]:
        """What becomes of a unit, every member once, and whether it waits for review because the model could not say.

        Raises: TransientError when the model may answer later.
        """
        if self.chat is None:
            return v1_2.completed(v1_2.adjudicate_by_rules(unit, relate_by_rules), unit), False
        try:
            said = questions.read_decided(self.chat.ask(questions.ask_adjudicate(unit)), unit)
        except RejectedError:
            return v1_2.completed(Outcome(), unit), True
        return v1_2.completed(said, unit), False

    def embed(self, candidates: Sequence[Candidate]) -> list[Vector | None]:
        """A vector for each candidate, in one batch; None for each without an embedder.

        Raises: TransientError, RejectedError.
        """
        if self.embedder is None or not candidates:
            return [None] * len(candidates)
        return list(self.embedder.embed([c.text for c in candidates]))

    def reworded(self, outcomes: Sequence[Outcome], points: Mapping[str, Point]) -> dict[str, Vector]:
        """Vectors of the points that got new words, by the handle that names their decision, or the id of a stored one. Raises: as `embed`."""
        found = {
            d.members[0]: v1_2.reworded(points[d.members[0]].candidate, d)
            for outcome in outcomes
            for d in outcome.decisions
            if d.topic.strip()
        }
        for revision in (r for outcome in outcomes for r in outcome.revisions):
            found.setdefault(revision.target, Candidate(revision.topic, revision.reason))
        vectors = self.embed(list(found.values()))
        return {handle: vec for handle, vec in zip(found, vectors, strict=True) if vec is not None}

    def _clean(self, candidate: Candidate) -> Candidate:
        redact = self.redactor.redact
        tags = tuple(redact(tag) for tag in candidate.tags)
        return replace(candidate, topic=redact(candidate.topic), reason=redact(candidate.reason), tags=tags)
