"""Namespaces and banks: names resolved to ids once per process, and the predicates that keep a read inside its scope."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from isotherm.pipeline.errors import ErasedError, OutOfReachError, RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.storage.postgres.pool import Connection, again_if_raced, connection, on_erased
from isotherm.storage.postgres.reach import system

T = TypeVar("T")

# Ids that were asked for, each once and in the order in which records are locked. Records are looked up by them one by one:
# the planner takes a namespace for one of average size, and would as soon look through all of its records for some ids.
EACH_ID = """(SELECT DISTINCT i.id COLLATE "C" AS id FROM unnest(%(ids)s::text[]) AS i (id) ORDER BY 1) AS g"""

_HOLD = "SELECT 1 FROM namespaces WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"

# A lookup first: an insert that finds its row would wait for every writer that holds a reference to it. For the same
# reason the update that makes a conflict return its row names no key column.
_FIND = """
SELECT n.id, n.bank_id FROM namespaces AS n WHERE n.id = ({lookup})"""

_MAKE = """
WITH wanted AS (SELECT %(tenant)s::text AS tenant, %(scope)s::text AS scope, %(agent)s::text AS agent,
                       %(session)s::text AS session, %(run)s::text AS run),
bank AS (
    INSERT INTO banks (tenant, agent) SELECT tenant, agent FROM wanted
    ON CONFLICT (tenant, agent) DO UPDATE SET created_at = banks.created_at RETURNING id
)
INSERT INTO namespaces AS n (bank_id, tenant, scope, agent, session, run)
SELECT bank.id, w.tenant, w.scope, w.agent, w.session, w.run FROM wanted AS w, bank
ON CONFLICT (tenant, scope, agent, session, run) DO UPDATE SET created_at = n.created_at
RETURNING n.id, n.bank_id"""

_LIST = """
SELECT n.id, n.bank_id, n.tenant, n.scope, n.agent, n.session, n.run, n.due_at FROM namespaces AS n
WHERE (%(agent)s::text IS NULL OR n.agent = %(agent)s) AND n.tenant IS NOT DISTINCT FROM %(tenant)s::text
ORDER BY n.agent, n.session NULLS FIRST, n.id"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows of a namespace stand: its id and the id of its bank."""

    namespace_id: int
    bank_id: int


@dataclass(frozen=True, slots=True)
class Scope:
    """What a read may see: one namespace, or a bank with all of its sessions or the listed ones.

    A read without a scope does not exist: neither part set is refused, and so is a name that is blank or no name, since it
    must never mean all.
    """

    bank: Bank | None = None
    namespace: Namespace | None = None
    sessions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (self.bank is None) == (self.namespace is None):
            raise RejectedError("a scope is one namespace or one bank")
        if self.sessions is not None and self.bank is None:
            raise RejectedError("sessions are listed for a bank")
        if not isinstance(self.owner, Namespace | Bank):
            raise RejectedError("a scope is one namespace or one bank")
        self.owner.check()

    @property
    def owner(self) -> Namespace | Bank | None:
        """The one that is set; never None once it was checked."""
        return self.namespace or self.bank

    @property
    def whole_bank(self) -> Bank:
        """The bank, whatever of it is in the scope."""
        bank = self.bank or (self.namespace.bank if self.namespace else None)
        assert bank is not None  # noqa: S101 - __post_init__ demands one of the two
        return bank


def resolve(namespace: Namespace) -> Place:
    """The ids of a namespace, made on first use and remembered by this process.

    Raises: UnavailableError and TransientError as the pool does.
    """
    place = find(namespace)
    if place is None:
        with system(), connection() as conn:  # where nobody has ids yet
            row = conn.execute(_MAKE, columns(namespace)).fetchone()
        assert row is not None  # noqa: S101 - INSERT RETURNING answers with one row
        place = _keep(namespace, Place(int(row[0]), int(row[1])))
    return place


def find(namespace: Namespace, *, again: bool = False) -> Place | None:
    """The ids of a namespace, None when nothing was ever written to it; for reads, which make none.

    Args: again: look at the database, whatever this process remembers: another may have erased the namespace.
    Raises: RejectedError for a name that `Namespace.of` refuses; as `resolve` besides.
    """
    if again:
        _PLACES.pop(namespace, None)
    place = _PLACES.get(namespace)
    if place is None:
        namespace.check()
        values = {f"scope_{name}": value for name, value in columns(namespace).items()}
        with system(), connection() as conn:
            row = conn.execute(_FIND.format(lookup=_namespace_lookup(namespace)), values).fetchone()
        if row is not None:
            place = _keep(namespace, Place(int(row[0]), int(row[1])))
    return place


_PLACES: dict[Namespace, Place] = {}
_MOST_PLACES = 100_000


def _keep(namespace: Namespace, place: Place) -> Place:
    if len(_PLACES) > _MOST_PLACES:
        _PLACES.clear()
    _PLACES[namespace] = place
    return place


def forget_places() -> None:
    """Drop what this process remembers; needed when a namespace was erased or the database changed."""
    _PLACES.clear()
    _LARGE.clear()


# Banks that had more records than are ever counted, and when that was seen: to count so many takes as long as to find.
_LARGE: dict[Bank, float] = {}
_LARGE_S = 60.0


def is_large(bank: Bank) -> bool:
    """Whether a bank was seen to be large within the last minute."""
    return time.monotonic() - _LARGE.get(bank, -_LARGE_S) < _LARGE_S


def keep_large(bank: Bank) -> None:
    """Remember that a bank is large, unless that is known."""
    if not is_large(bank):
        if len(_LARGE) > _MOST_PLACES:
            _LARGE.clear()
        _LARGE[bank] = time.monotonic()


on_erased(forget_places)


def again_if_erased(write: Callable[[], T]) -> T:
    """Write, and once more when a namespace was erased since this process looked up its ids; `write` looks them up itself.

    Either is made again as `pool.again_if_raced` does. Raises: as `write` does.
    """
    try:
        return again_if_raced(write)
    except (ErasedError, OutOfReachError):
        return again_if_raced(write)


def hold(conn: Connection, namespace_ids: Sequence[int]) -> None:
    """Lock namespaces in order until the transaction ends; who only refers to one is not held up."""
    conn.execute(_HOLD, (list(namespace_ids),))


def columns(namespace: Namespace) -> dict[str, str | None]:
    """The identity columns of a namespace as statement parameters."""
    return {
        "tenant": namespace.tenant,
        "scope": namespace.scope,
        "agent": namespace.agent,
        "session": namespace.session,
        "run": namespace.run,
    }


def predicate(scope: Scope, alias: str = "r") -> tuple[str, dict[str, Any]]:
    """SQL that keeps rows with `namespace_id` and `bank_id` columns inside a scope, and its parameters.

    Names are resolved inside the query. An equality against NULL would not use the unique index, hence the spelling.
    """
    if scope.namespace is not None:
        found = _namespace_lookup(scope.namespace)
        return f"{alias}.namespace_id = ({found})", {f"scope_{k}": v for k, v in columns(scope.namespace).items()}
    assert scope.bank is not None  # noqa: S101 - __post_init__ demands one of the two
    found = _bank_lookup(scope.bank)
    sql = f"{alias}.bank_id = ({found})"
    params: dict[str, Any] = {"scope_tenant": scope.bank.tenant, "scope_agent": scope.bank.agent}
    if scope.sessions is not None:
        sql += f" AND {within_namespaces(scope, alias)}"
        params["scope_sessions"] = list(scope.sessions)
    return sql, params


def within_namespaces(scope: Scope, alias: str) -> str:
    """The predicate of a scope that names namespaces, for tables that have no bank; its parameters are those of `predicate`."""
    if scope.namespace is not None:
        return f"{alias}.namespace_id = ({_namespace_lookup(scope.namespace)})"
    ids = namespace_ids(scope)
    assert ids is not None  # noqa: S101 - a whole bank names none
    return f"{alias}.namespace_id = ANY({ids})"


def namespace_ids(scope: Scope) -> str | None:
    """SQL of an array of the namespaces that a scope names, None for a whole bank; its parameters are those of `predicate`."""
    if scope.namespace is not None:
        return f"ARRAY({_namespace_lookup(scope.namespace)})"
    if scope.sessions is None:
        return None
    return f"""ARRAY(SELECT n.id FROM namespaces AS n
        WHERE n.bank_id = {bank_id(scope)} AND n.session = ANY(%(scope_sessions)s))"""


def in_order(scope: Scope, columns: str, tests: Sequence[str], *, limit: str, newest_first: bool) -> str:
    """SQL of the first records of a scope by (created_at, id), as many as are wanted; its parameters are those of `predicate`.

    Of listed sessions each gives its own first ones by its index: that of the bank has all the other sessions between them,
    and without one the planner would sort all that they hold.

    Args: columns: of `tier_records AS r`; tests: of the same, SQL; limit: SQL of a number.
    """
    way = " DESC" if newest_first else ""
    sql = f"""SELECT {{columns}} FROM {{rows}} WHERE {{tests}} ORDER BY r.created_at{way}, r.id{way} LIMIT {limit}"""
    if scope.sessions is None:
        return sql.format(columns=columns, rows="tier_records AS r", tests=" AND ".join([predicate(scope)[0], *tests]))
    own = sql.format(columns="*", rows="tier_records AS r", tests=" AND ".join(["r.namespace_id = s.id", *tests]))
    rows = f"unnest({namespace_ids(scope)}) AS s (id) CROSS JOIN LATERAL ({own}) AS r"
    return sql.format(columns=columns, rows=rows, tests="true")


def behind(position: tuple[datetime, str] | None) -> tuple[list[str], dict[str, Any]]:
    """What keeps records behind a (created_at, id), SQL and its parameters; nothing for None.

    A statement of its own for each: one for both cannot begin in the middle of an index.
    """
    if position is None:
        return [], {}
    test = '(r.created_at, r.id) > (%(after_at)s::timestamptz, %(after_id)s::text COLLATE "C")'
    return [test], {"after_at": position[0], "after_id": position[1]}


def in_bank_of(scope: Scope, alias: str = "r") -> str:
    """SQL that names the bank of a scope beside `predicate`, for indexes that lead with it; it takes no other parameters."""
    return f"{alias}.bank_id = {bank_id(scope)}"


def bank_id(scope: Scope) -> str:
    """SQL of the id of a scope's bank; its parameters are those of `predicate`."""
    return f"({_bank_lookup(scope.whole_bank)})"


def _namespace_lookup(namespace: Namespace) -> str:
    values = columns(namespace)
    return _lookup("namespaces", tuple(k for k, v in sorted(values.items()) if v is None), tuple(sorted(values)))


def _bank_lookup(bank: Bank) -> str:
    return _lookup("banks", ("tenant",) if bank.tenant is None else (), ("agent", "tenant"))


@lru_cache(maxsize=64)
def _lookup(table: str, absent: tuple[str, ...], names: tuple[str, ...]) -> str:
    tests = [f"x.{name} IS NULL" if name in absent else f"x.{name} = %(scope_{name})s" for name in names]
    return f"SELECT x.id FROM {table} AS x WHERE {' AND '.join(tests)}"


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """A namespace as listed: its place, its name and when its next migration pass is due (UTC, None: not known)."""

    place: Place
    namespace: Namespace
    due_at: Any


def listed(conn: Connection, *, tenant: str | None, agent: str | None = None) -> list[NamespaceRow]:
    """The namespaces of a tenant, or of one of its agents, by agent and session."""
    rows = conn.execute(_LIST, {"tenant": tenant, "agent": agent}).fetchall()
    return [
        NamespaceRow(
            Place(int(i), int(bank)),
            Namespace(tenant=t, scope=scope, agent=a, session=session, run=run),
            due,
        )
        for i, bank, t, scope, a, session, run, due in rows
    ]


def bank_of(conn: Connection, bank_id: int) -> Bank:
    """The name of a bank that exists."""
    row = conn.execute("SELECT tenant, agent FROM banks WHERE id = %s", (bank_id,)).fetchone()
    assert row is not None  # noqa: S101 - ids come from rows that refer to it
    return Bank(row[0], row[1])
