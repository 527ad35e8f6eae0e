"""Whose rows a transaction may touch, where row-level security is on: what is in hand says so, and nothing means none.

The namespaces stay in every predicate. This is the second lock, for the statement that forgot: verbs and stages enter the
reach of the namespace or bank that they were given, and ticks and operators' verbs say that they go over all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar
from uuid import UUID

import psycopg

from isotherm.pipeline import stages
from isotherm.pipeline.identity import Bank, Namespace

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

# Roles are the server's, not a database's: several databases share these two. Nobody logs in as one of them.
TENANT: Final = "isotherm_tenant"
SYSTEM: Final = "isotherm_system"

# Work of these stages may belong to no bank: an erasure outlives what it erases, a quota's pass goes over a tenant.
_OVER_ALL: Final = frozenset(
    {stages.FORGET, stages.PLAN, stages.MIGRATE, stages.SUMMARIZE, stages.ARCHIVE, stages.RESTORE, stages.REPORT,
     stages.TIER_EMBED}
)  # fmt: skip
# A run over one session adds to what is known of its bank.
_OF_BANK: Final = frozenset(
    {stages.EXTRACT, stages.S1_FOLD, stages.S1_JUDGE, stages.S2_CLUSTER, stages.V1_2_ADJUDICATE, stages.V1_3_PERSIST,
     stages.TEND}
)  # fmt: skip

_BY_NAME = """
SELECT isotherm_reach(%(tenant)s, %(scope)s, %(agent)s, %(session)s, %(run)s),
       set_config('isotherm.graphs', %(graphs)s, true)"""
_BY_ID = """
SELECT set_config('isotherm.namespaces', %(namespaces)s, true), set_config('isotherm.banks', %(banks)s, true),
       set_config('isotherm.whole_banks', %(whole)s, true), set_config('isotherm.graphs', %(graphs)s, true)"""
_AS_SYSTEM = f"SELECT set_config('role', '{SYSTEM}', true)"


class HasPlace(Protocol):
    """Whatever stands in a namespace of a bank, by their numbers; None where it has none."""

    @property
    def bank_id(self) -> int | None:
        """Number of the bank."""
        ...

    @property
    def namespace_id(self) -> int | None:
        """Number of the namespace."""
        ...


H = TypeVar("H", bound=HasPlace)


class Work(HasPlace, Protocol):
    """Work of a stage."""

    @property
    def stage(self) -> str:
        """Its stage."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """Rows that may be touched.

    Args: owner: by its names, which the database resolves; namespace_ids, bank_ids: by numbers, of a bank its own tables
        only; whole_bank_ids: banks with all of their namespaces; graphs: names in the graph; all: everything.
    """

    owner: Namespace | Bank | None = None
    namespace_ids: frozenset[int] = frozenset()
    bank_ids: frozenset[int] = frozenset()
    whole_bank_ids: frozenset[int] = frozenset()
    graphs: frozenset[UUID] = frozenset()
    all: bool = False

    def __or__(self, other: Reach) -> Reach:
        """Both, of reaches by numbers."""
        return Reach(
            None,
            self.namespace_ids | other.namespace_ids,
            self.bank_ids | other.bank_ids,
            self.whole_bank_ids | other.whole_bank_ids,
            self.graphs | other.graphs,
            self.all or other.all,
        )


_NOTHING: Final = Reach()
_REACH: ContextVar[Reach] = ContextVar("reach", default=_NOTHING)


@contextmanager
def _within(reach: Reach) -> Iterator[None]:
    known = _REACH.set(reach)
    try:
        yield
    finally:
        _REACH.reset(known)


def system() -> AbstractContextManager[None]:
    """Over all owners: for ticks, the sweeper and the relay, work found by its id, and what operators ask."""
    return _within(Reach(all=True))


def reaching(owner: Namespace | Bank | HasPlace) -> AbstractContextManager[None]:
    """Within a namespace, or a bank with all of its namespaces; by numbers where these are in hand."""
    if isinstance(owner, Namespace | Bank):
        return _within(Reach(owner))
    return _within(_of_place(owner))


def _of_place(place: HasPlace) -> Reach:
    banks = frozenset() if place.bank_id is None else frozenset({place.bank_id})
    if place.namespace_id is None:
        return Reach(whole_bank_ids=banks)
    return Reach(namespace_ids=frozenset({place.namespace_id}), bank_ids=banks)


def working(*work: Work) -> AbstractContextManager[None]:
    """Within what the operations of some steps belong to."""
    reach = _NOTHING
    for each in work:
        reach |= _of_work(each)
    return _within(reach)


def _of_work(work: Work) -> Reach:
    if work.bank_id is None and work.namespace_id is None:
        return Reach(all=work.stage in _OVER_ALL)
    if work.bank_id is not None and work.stage in _OF_BANK:
        return Reach(whole_bank_ids=frozenset({work.bank_id}))
    return _of_place(work)


def graph_of(name: UUID) -> AbstractContextManager[None]:
    """Within what is in reach already, and a graph by its name; a graph is no table of a bank, and knows owners by it."""
    reach = _REACH.get()
    return _within(replace(reach, graphs=reach.graphs | {name}))


def of_owner(function: Callable[P, R]) -> Callable[P, R]:
    """Have a verb run within the reach of the namespace, bank or scope that is its first argument."""

    @wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        with _within(_of_arguments((*args[:2], *kwargs.values()))):  # before it there is `self` at most
            return function(*args, **kwargs)

    return within


def of_operation(function: Callable[Concatenate[S, H, P], R]) -> Callable[Concatenate[S, H, P], R]:
    """Have a method run within the reach of the operation that it writes, by the numbers that this has."""

    @wraps(function)
    def within(self: S, new: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with reaching(new):
            return function(self, new, *args, **kwargs)

    return within


def over_all(function: Callable[P, R]) -> Callable[P, R]:
    """Have a verb run over all owners, for one that is given work by its id, or that an operator asks."""

    @wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        with system():
            return function(*args, **kwargs)

    return within


def _of_arguments(arguments: Sequence[object]) -> Reach:
    for value in arguments:
        if isinstance(value, Namespace | Bank):
            return Reach(value)
        owner = getattr(value, "owner", None)
        if isinstance(owner, Namespace | Bank):
            return Reach(owner)
    return _NOTHING  # wrong input, which the verb refuses by itself; and nothing is within reach of it


def enter(conn: psycopg.Connection[Any]) -> None:
    """Begin a transaction within the reach of the caller. Its role and settings end with it.

    Raises: RejectedError for an owner whose names are none.
    """
    reach = _REACH.get()
    if reach.all:
        conn.execute(_AS_SYSTEM)
    elif reach.owner is not None:
        reach.owner.check()
        conn.execute(_BY_NAME, {**_names(reach.owner), "graphs": _literal(reach.graphs)})
    elif reach != _NOTHING:
        values = {
            "namespaces": _literal(reach.namespace_ids),
            "banks": _literal(reach.bank_ids | reach.whole_bank_ids),
            "whole": _literal(reach.whole_bank_ids),
            "graphs": _literal(reach.graphs),
        }
        conn.execute(_BY_ID, values)


def _names(owner: Namespace | Bank) -> dict[str, str | None]:
    if isinstance(owner, Bank):
        return {"tenant": owner.tenant, "scope": None, "agent": owner.agent, "session": None, "run": None}
    return {
        "tenant": owner.tenant,
        "scope": owner.scope,
        "agent": owner.agent,
        "session": owner.session,
        "run": owner.run,
    }


def _literal(ids: frozenset[int] | frozenset[UUID]) -> str:
    return "{" + ",".join(sorted(map(str, ids))) + "}"
