"""Who reads and judges: the rules, or a chat model where the settings name one, and what happens when that cannot answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Semaphore

from isotherm.pipeline.errors import BudgetSpentError, RejectedError
from isotherm.pipeline.interest import questions, s1, v1_2
from isotherm.pipeline.interest.budget import Budget, Prices, StoodIn
from isotherm.pipeline.interest.candidates import Candidate, Outcome, Point, Vector
from isotherm.pipeline.interest.extract import RuleExtractor
from isotherm.pipeline.interest.pairs import relate_by_rules
from isotherm.pipeline.interest.s1 import Merge
from isotherm.pipeline.interest.v1_2 import Unit
from isotherm.pipeline.interest.windows import Window
from isotherm.pipeline.ports import ChatModel, Embedder, Redactor
from isotherm.storage.interest_copies import RememberingChat, RememberingEmbedder
from isotherm.storage.interest_meter import BoundedChat, Meter, MeteredChat
from isotherm.storage.models import factory
from isotherm.storage.models.keyphrases import CountingKeyphrases
from isotherm.storage.postgres import interest_copies, interest_usage
from isotherm.storage.postgres.pool import statement
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.storage.settings import Settings

PER_STEP = 20


@dataclass(frozen=True, slots=True)
class Readers:
    """The models of a run. Without a chat model the rules do its work; without an embedder names and rules alone count.

    Args: parallel: questions that a step may have under way at a time.
    """

    chat: ChatModel | None
    embedder: Embedder | None
    redactor: Redactor
    parallel: int = 1

    @property
    def per_step(self) -> int:
        """Windows or groups of a step: one round of questions, so that workers that are free ask the others meanwhile.

        Rules need milliseconds for one; and questions that go one after the other are not spread over workers either.
        """
        return self.parallel if self.parallel > 1 else PER_STEP

    @classmethod
    def of(cls, settings: Settings, step: ClaimedStep | None = None) -> Readers:
        """As the settings ask.

        Args: step: whose bank remembers answers and vectors, and whose run pays; None remembers and counts nothing.
        Raises: RejectedError naming the settings that are missing.
        """
        chat, embedder = factory.chat_model(settings), factory.embedder(settings)
        parallel = 1
        if step is not None and step.bank_id is not None and (chat or embedder):
            with statement() as conn:
                erasures = interest_copies.erasures(conn, step.bank_id)
            if chat is not None:
                model = settings.chat_model or ""
                meter = _meter(settings, step, model)
                # Where money is counted, the next question waits until the one before is paid.
                parallel = settings.chat_parallel if meter.budget is None else 1
                metered = MeteredChat(BoundedChat(chat, Semaphore(parallel)), meter)
                chat = RememberingChat(metered, step.bank_id, erasures)
            embedder = None if embedder is None else RememberingEmbedder(embedder, step.bank_id, erasures)
        return cls(chat, embedder, factory.redactor(settings), parallel)

    def extract(self, window: Window) -> tuple[list[Candidate], StoodIn | None]:
        """The candidates of a window, secrets taken out, and why they are not the model's, if they are not.

        The rules stand in for a model that refuses. A window for which the budget does not last is left unread instead: a
        retry reads it, and would find what the rules made of it in its way.
        Raises: TransientError when the model may answer later.
        """
        why: StoodIn | None = None
        found: list[Candidate] | None = None
        if self.chat is not None:
            try:
                found = questions.read_extracted(self.chat.ask(questions.ask_extract(window)), window)
            except BudgetSpentError:
                return [], StoodIn.BUDGET_SPENT
            except RejectedError:
                why = StoodIn.REFUSED
        if found is None:
            found = RuleExtractor(CountingKeyphrases()).extract(window)
        return [self._clean(candidate) for candidate in found], why

    def merge(self, group: Sequence[Point]) -> tuple[list[Merge], StoodIn | None]:
        """Which members of a group are one, and why the group is kept as it is, if the model could not say.

        Raises: TransientError when the model may answer later.
        """
        if self.chat is None:
            return s1.RuleJudge(relate_by_rules).judge(group), None
        try:
            return questions.read_merged(self.chat.ask(questions.ask_merge(group))), None
        except RejectedError as error:
            return [], _why(error)

    def adjudicate(self, unit: Unit) -> tuple[Outcome, StoodIn | None]:
        """What becomes of a unit, every member once, and why it waits for review, if the model could not say.

        Raises: TransientError when the model may answer later.
        """
        if self.chat is None:
            return v1_2.completed(v1_2.adjudicate_by_rules(unit, relate_by_rules), unit), None
        try:
            said = questions.read_decided(self.chat.ask(questions.ask_adjudicate(unit)), unit)
        except RejectedError as error:
            return v1_2.completed(Outcome(), unit), _why(error)
        return v1_2.completed(said, unit), None

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


def _meter(settings: Settings, step: ClaimedStep, model: str) -> Meter:
    prices = Prices(settings.chat_input_price, settings.chat_output_price)
    budget = Budget(settings.run_tokens, settings.run_money)
    with statement() as conn:
        counted = (interest_usage.granted(conn, step.operation_id) or budget) != Budget()
    return Meter(step.operation_id, step.stage, step.unit, model, prices, budget if counted else None)


def _why(error: RejectedError) -> StoodIn:
    return StoodIn.BUDGET_SPENT if isinstance(error, BudgetSpentError) else StoodIn.REFUSED
