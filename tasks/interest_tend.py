"""What happens to interests between sessions: vectors they lack are made, and what waited for review is judged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray
from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.events import InterestsAged, InterestsTended
from isotherm.pipeline.interest import themes, v1_3
from isotherm.pipeline.interest.candidates import HistPoint, Outcome, Point, Vector
from isotherm.pipeline.interest.v1_2 import Unit
from isotherm.pipeline.ports import Embedder
from isotherm.storage.models import factory
from isotherm.storage.postgres import (
    interest_copies,
    interest_history,
    interest_index,
    interest_tend,
    interest_themes,
    interest_turn,
    namespaces,
)
from isotherm.storage.postgres.interest_tend import Pending
from isotherm.storage.postgres.interest_themes import Theme
from isotherm.storage.postgres.interest_write import PlanWriter
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import Connection, connection, moment
from isotherm.storage.postgres.steps import NewStep
from isotherm.tasks import passes
from isotherm.tasks.interest_decide import bank_of, has_turn
from isotherm.tasks.interest_models import Readers
from isotherm.tasks.interest_run import Json, readers
from isotherm.tasks.observe import emit
from isotherm.tasks.publish import publish_and_remove
from isotherm.tasks.stage import claimed, stage_task, tell
from isotherm.tasks.ticks import tick

_VECTORS_MAX = 500
_PENDING_MAX = 40
_AGED_MAX = 500
_BANKS_MAX = 100
_PLACED_MAX = 10_000
# A judge that refused is asked again after a while, not every minute.
_REST = timedelta(minutes=10)
_KEEP_COPIES = timedelta(days=30)


@stage_task(stages.TEND)
def tend(payload: Json) -> Json:
    """Make the vectors that an agent's interests lack, judge what waits for review, group by theme, and keep the index of a large bank, in its turn."""
    with claimed(payload) as step:
        with connection() as conn:
            if not has_turn(conn, step):
                return step.receipt
        bank_id, who = bank_of(step), readers(step)
        embedded = _embed(bank_id, who)
        with connection() as conn:
            waiting = interest_tend.pending(conn, bank_id, _PENDING_MAX)
        review = _Review(bank_id, who, waiting)
        review.judge()
        grouped = _themes(bank_id, who, more=embedded >= _VECTORS_MAX)
        interest_index.grow(bank_id)
        with connection() as conn:
            judged = review.write(conn, step.operation_id)
            messages = interest_turn.release(conn, bank_id, step.operation_id, changed=bool(embedded or judged))
            counts = {"embedded": embedded, "judged": judged, "waiting": len(waiting) - judged, "themes": grouped}
            step.settle(conn, counts, is_result=True)
        publish_and_remove(messages)
        tell(step, InterestsTended(**counts))
    return step.receipt


def _embed(bank_id: int, who: Readers) -> int:
    """Vectors are remembered as they are made: a killed runner has lost none. What changes meanwhile is left to the next one."""
    if who.embedder is None:
        return 0
    with connection() as conn:
        bare = interest_tend.bare(conn, bank_id, who.embedder.model, _VECTORS_MAX)
    vectors = who.embed([point.candidate for point in bare])
    with connection() as conn:
        made = {
            point.id: vec
            for point, vec in zip(bare, vectors, strict=True)
            if vec is not None and interest_tend.embed(conn, bank_id, point, vec, who.embedder.model)
        }
        interest_tend.relate(conn, bank_id, made, who.embedder.model)
    return len(made)


def _themes(bank_id: int, who: Readers, *, more: bool) -> int:
    """Find the theme of each point that nobody looked at; when many are new, group all anew. Returns how many themes are.

    Args: more: points still lack a vector of this model; the themes there are stay until they have one.
    Grouping takes its time and holds nothing meanwhile; it is the bank's turn, and what is forgotten is found by the version.
    """
    if who.embedder is None:
        return 0
    model, dimension = who.embedder.model, who.embedder.dimension
    with connection() as conn:
        state = interest_themes.state(conn, bank_id, model)
        there = interest_themes.middles(conn, bank_id, model)
    if more:
        return len(there)
    if not state.anew:
        return _place(bank_id, state.version, there, who.embedder)
    with connection() as conn:
        points = interest_themes.everything(conn, bank_id, model, dimension, themes.POINTS_MAX)
    found = _grouped(*points)
    with connection() as conn:
        is_new = interest_themes.replace(conn, bank_id, state.version, found, model, len(points[0]))
    return len(found) if is_new else len(there)


def _place(bank_id: int, version: int, there: Sequence[tuple[UUID, Vector]], embedder: Embedder) -> int:
    stacked = np.stack([vec for _, vec in there]) if there else np.zeros((0, embedder.dimension), np.float32)
    with connection() as conn:
        points = interest_themes.unplaced(conn, bank_id, embedder.model, _PLACED_MAX)
        near = [(point, themes.placed(vec, stacked).theme) for point, vec in points]
        placed = {point: None if theme is None else there[theme][0] for point, theme in near}
        interest_themes.place(conn, bank_id, version, placed)
    return len(there)


def _grouped(ids: Sequence[UUID], names: Sequence[str], vectors: NDArray[np.float32]) -> list[Theme]:
    every = themes.counted(names)
    found = []
    for group in themes.grouped(vectors):
        if len(group) > 1:
            middle = themes.middle(vectors[group])
            nearest = [group[place] for place in np.argsort(-(vectors[group] @ middle), kind="stable")]
            name = themes.named([names[row] for row in nearest], every)
            found.append(Theme(name, middle, [ids[row] for row in group]))
    return found


class _Review:
    """Judges points one after the other; each sees what became of those before it."""

    def __init__(self, bank_id: int, who: Readers, waiting: Sequence[Pending]) -> None:
        self._bank_id, self._who, self._waiting = bank_id, who, waiting
        self._points: dict[str, Point] = {}
        self._history: dict[str, HistPoint] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._reworded: dict[str, Vector] = {}

    def judge(self) -> None:
        """Ask about each. What the judge refuses goes on waiting. Raises: TransientError while it cannot be reached."""
        vectors = self._who.embed([one.candidate for one in self._waiting])
        self._points = {
            f"p{n}": Point(one.candidate, vec) for n, (one, vec) in enumerate(zip(self._waiting, vectors, strict=True))
        }
        model = self._who.embedder.model if self._who.embedder else None
        mine = {one.id for one in self._waiting}
        for handle, point in self._points.items():
            with connection() as conn:
                near = interest_history.near(conn, self._bank_id, [point], model)
            hist = tuple(h for h in near.points if h.id not in mine)
            self._history |= {str(h.id): h for h in hist}
            unit = Unit({handle: point}, hist, tuple(self._outcomes.values()), self._points)
            outcome, why = self._who.adjudicate(unit)
            if why is None:
                self._outcomes[handle] = outcome
        self._reworded = self._who.reworded(list(self._outcomes.values()), self._points)

    def write(self, conn: Connection, operation_id: UUID) -> int:
        """Write what was decided about points that nobody changed meanwhile; returns how many points that are."""
        now = interest_tend.pending(conn, self._bank_id, _PENDING_MAX, hold=True)
        still = dict(zip(self._points, interest_tend.unchanged(self._waiting, now), strict=True))
        if not all(still[handle] for handle in self._outcomes):
            return 0  # somebody was faster; the next run sees what is left
        handles = dict(zip(self._points, self._waiting, strict=True))
        points = {handle: self._points[handle] for handle in self._outcomes}
        stated = {handle: [handles[handle].id] for handle in points}
        pending = frozenset(one.id for one in self._waiting)
        used, retired = interest_history.names(conn, self._bank_id, [p.candidate.name for p in points.values()])
        key = namespaces.bank_of(conn, self._bank_id).key
        stored = v1_3.Stored(key, used, retired, stated, pending)
        planned = v1_3.plan(points, list(self._outcomes.values()), list(self._history.values()), stored, self._reworded)
        model = self._who.embedder.model if self._who.embedder else None
        PlanWriter(conn, self._bank_id, operation_id, model=model, pending=pending).write(planned)
        return len(points)


@tick(stages.AGE)
def age() -> Json:
    """Say of interests whose time it is how fresh they are now, and drop old copies of what models said."""
    storage.open()
    with connection() as conn:
        aged = interest_tend.age(conn, moment(conn), _AGED_MAX)
    with connection() as conn:
        copies = interest_copies.purge(conn, keep=_KEEP_COPIES, limit=_AGED_MAX)
    if aged.changed or aged.expired:
        emit(InterestsAged(aged.changed, aged.expired))
    return {"changed": aged.changed, "expired": aged.expired, "copies": copies}


@tick(stages.INTERESTS_DUE)
def due() -> Json:
    """Ask for the tending of every bank whose interests lack a vector or wait for review."""
    embedder = factory.embedder(storage.open().settings)
    model = None if embedder is None else embedder.model
    with connection() as conn:
        banks = interest_tend.due(conn, model=model, rest=_REST, full=_VECTORS_MAX, limit=_BANKS_MAX)
    for bank_id in banks:
        new = NewOperation(uuid7(), interest_tend.KIND, uuid4(), bank_id=bank_id)
        passes.start(new, NewStep(stages.TEND, {}))
    return {"banks": len(banks)}
