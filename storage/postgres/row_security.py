"""Row-level security as it is switched on and off: roles, what they may do, and a policy for every table that has an owner.

Nothing of it is a migration: it follows a setting, takes in tables that come later, and is taken back without a trace in the
data. The owner of the tables is not bound by it, so migrations, backups and restores see everything.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors as pg

from isotherm.pipeline.errors import RejectedError
from isotherm.storage.postgres.reach import SYSTEM, TENANT

Plain = psycopg.Connection[Any]

_TENANT_POLICY: Final = "isotherm_reach"
_SYSTEM_POLICY: Final = "isotherm_system"

# Asked once for each statement, since a sub-select without a reference to the row is.
_IN: Final = "(SELECT isotherm_ids('isotherm.{name}'))::bigint[]"
_IN_NAMESPACES: Final = _IN.format(name="namespaces")
_IN_BANKS: Final = _IN.format(name="banks")
_IN_WHOLE: Final = _IN.format(name="whole_banks")
_IN_GRAPHS: Final = "(SELECT isotherm_graphs())::uuid[]"

# Where a table has no bank, its namespaces are looked up; they are under a policy of their own.
_OF_NAMESPACE: Final = (
    f"namespace_id = ANY ({_IN_NAMESPACES}) OR namespace_id IN ("
    f"SELECT n.id FROM namespaces AS n WHERE n.bank_id = ANY ({_IN_WHOLE}))"
)
_OF_PLACE: Final = f"namespace_id = ANY ({_IN_NAMESPACES}) OR bank_id = ANY ({_IN_WHOLE})"
_OF_BANK: Final = f"bank_id = ANY ({_IN_BANKS})"
_OF_GRAPH: Final = f"namespace = ANY ({_IN_GRAPHS})"

# Tables whose rows say in another way whose they are.
_SPECIAL: Final = {
    "banks": f"id = ANY ({_IN_BANKS})",
    "namespaces": f"id = ANY ({_IN_NAMESPACES}) OR bank_id = ANY ({_IN_WHOLE})",
    "operations": f"{_OF_NAMESPACE} OR (namespace_id IS NULL AND {_OF_BANK})",
}
# Tables whose rows hang on a row that says it, by the column that names it.
_HANGING: Final = {
    "operation_steps": ("operation_id", "operations"),
    "interest_usage": ("operation_id", "operations"),
    "interest_budgets": ("operation_id", "operations"),
    "cold_bodies": ("record_key", "tier_records"),
    "brain_unnamed": ("object_key", "brain_objects"),
    "interest_theme_points": ("point_id", "interest_points"),
}
# What they hang on: its key, of which type, and its rule.
_HELD_BY: Final = {
    "operations": ("id", "uuid", _SPECIAL["operations"]),
    "tier_records": ("key", "bigint", _OF_PLACE),
    "brain_objects": ("key", "bigint", _OF_PLACE),
    "interest_points": ("id", "uuid", _OF_BANK),
}
_ALL_RIGHTS: Final = "SELECT, INSERT, UPDATE, DELETE"
# Tables that belong to nobody, with what the tenants' role may do there.
GLOBAL: Final = {
    "schema_migrations": "SELECT",
    "brain_kinds": _ALL_RIGHTS,  # the schema of an installation
    "outbox": "SELECT (id, payload), INSERT, DELETE",  # ids, never texts; who writes next removes what is out, of all owners
    "tier_embedding": "",
    "touch_batches": "",
    "erasures": "",
}

_COLUMNS: Final = """
SELECT c.relname, array_agg(a.attname::text) FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT EXISTS (
    SELECT FROM pg_depend AS d WHERE d.objid = c.oid AND d.deptype = 'e')
GROUP BY c.relname ORDER BY c.relname"""

_FUNCTIONS: Final = """
CREATE OR REPLACE FUNCTION isotherm_ids(name text) RETURNS bigint[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(nullif(current_setting(name, true), ''), '{}')::bigint[]
$$;
CREATE OR REPLACE FUNCTION isotherm_graphs() RETURNS uuid[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(nullif(current_setting('isotherm.graphs', true), ''), '{}')::uuid[]
$$;
-- Names become numbers where the caller may see neither yet. Planned for each call: which names are absent decides on the
-- index. Without a scope it is a whole bank.
CREATE OR REPLACE FUNCTION isotherm_reach(of_tenant text, of_scope text, of_agent text, of_session text, of_run text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    bank bigint;
    space bigint;
BEGIN
    SELECT b.id INTO bank FROM banks AS b
    WHERE b.agent = of_agent AND (b.tenant = of_tenant OR (of_tenant IS NULL AND b.tenant IS NULL));
    IF of_scope IS NOT NULL THEN
        SELECT n.id INTO space FROM namespaces AS n
        WHERE n.scope = of_scope AND n.agent = of_agent
          AND (n.tenant = of_tenant OR (of_tenant IS NULL AND n.tenant IS NULL))
          AND (n.session = of_session OR (of_session IS NULL AND n.session IS NULL))
          AND (n.run = of_run OR (of_run IS NULL AND n.run IS NULL));
    END IF;
    PERFORM set_config('isotherm.namespaces', CASE WHEN space IS NULL THEN '{}' ELSE ARRAY[space]::text END, true),
            set_config('isotherm.banks', CASE WHEN bank IS NULL THEN '{}' ELSE ARRAY[bank]::text END, true),
            set_config('isotherm.whole_banks',
                       CASE WHEN bank IS NULL OR of_scope IS NOT NULL THEN '{}' ELSE ARRAY[bank]::text END, true);
END $$;
REVOKE ALL ON FUNCTION isotherm_reach(text, text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION isotherm_reach(text, text, text, text, text) TO isotherm_tenant;
"""
_DROP_FUNCTIONS: Final = """
DROP FUNCTION IF EXISTS isotherm_reach(text, text, text, text, text);
DROP FUNCTION IF EXISTS isotherm_graphs();
DROP FUNCTION IF EXISTS isotherm_ids(text);
"""

# Words of cold records are otherwise found by an operator that is not leakproof alone: without this, in the rows of all owners.
_INDEX: Final = "CREATE INDEX IF NOT EXISTS cold_words_of_bank ON cold_words (bank_id, namespace_id)"
_DROP_INDEX: Final = "DROP INDEX IF EXISTS cold_words_of_bank"

_ROLES: Final = """
SELECT r.rolname, pg_has_role(session_user, r.oid, 'SET') FROM pg_roles AS r WHERE r.rolname IN (%s, %s)"""
_MARKS: Final = """
SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class AS c
WHERE c.relnamespace = 'public'::regnamespace AND obj_description(c.oid, 'pg_class') LIKE 'isotherm row security %%'
  AND EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = %(system)s AND has_table_privilege(r.oid, c.oid, 'SELECT'))"""
_SECURED: Final = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relrowsecurity"
_LEFT: Final = "SELECT to_regproc('public.isotherm_ids') IS NOT NULL"
_POLICIES: Final = "SELECT tablename::text, policyname::text FROM pg_policies WHERE schemaname = 'public'"
# Roles whose rights the tenants' role has or may take, itself included.
_BYPASS: Final = """
SELECT r.rolname::text FROM pg_roles AS r
WHERE EXISTS (SELECT FROM pg_roles WHERE rolname = %(tenant)s) AND pg_has_role(%(tenant)s, r.oid, 'MEMBER')
  AND (r.rolsuper OR r.rolbypassrls OR EXISTS (
      SELECT FROM pg_class AS c WHERE c.relowner = r.oid AND c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace))"""
_OWNED_BY_LOGIN: Final = """
SELECT bool_and(pg_has_role(session_user, c.relowner, 'USAGE')) FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace"""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a row is in reach. Args: seen: for what is there; written: for what comes."""

    seen: str
    written: str


def rule(table: str, columns: set[str]) -> Rule | None:
    """When a row of a table is in reach; None when the table has no owner that is known."""
    if table in _HANGING:
        column, holder = _HANGING[table]
        key = _HELD_BY[holder][0]
        # One statement may write both, and sees its own rows nowhere: what is nobody's yet is held by a foreign key.
        new = f"NOT isotherm_foreign_{holder}({column})"
        return Rule(f"EXISTS (SELECT FROM {holder} AS h WHERE h.{key} = {column}) OR {new}", new)
    condition = _condition(table, columns)
    return None if condition is None else Rule(condition, condition)


def _condition(table: str, columns: set[str]) -> str | None:
    if table in GLOBAL:
        return None
    if table in _SPECIAL:
        return _SPECIAL[table]
    if "namespace_id" in columns:
        return _OF_PLACE if "bank_id" in columns else _OF_NAMESPACE
    if "bank_id" in columns:
        return _OF_BANK
    return _OF_GRAPH if "namespace" in columns and table.startswith("graph_") else None


@dataclass(frozen=True, slots=True)
class State:
    """Row-level security as a database has it.

    Args: usable: of the two roles, those that this login may become; tables: that have an owner; bare: of these, those
        without a policy or with theirs switched off; unknown: tables that say in no known way whose their rows are;
        bypassing: what gets the tenants' role around its policies, a role that none binds or a policy of somebody else's;
        any: whether any of it is there; owner: whether this login has the rights of the tables' owner, whom none binds.
    """

    usable: frozenset[str]
    tables: tuple[str, ...]
    bare: tuple[str, ...]
    unknown: tuple[str, ...]
    bypassing: tuple[str, ...]
    any: bool
    owner: bool

    @property
    def ready(self) -> bool:
        """Whether processes may rely on it."""
        return not (self.bare or self.bypassing) and self.usable == {TENANT, SYSTEM}


def demand(conn: Plain) -> None:
    """Raise RejectedError unless processes may rely on it."""
    if not state(conn).ready:
        raise RejectedError("row-level security is to be on, and this database is not prepared: run `isotherm migrate`")


def state(conn: Plain) -> State:
    """Look at roles, policies and tables; changes nothing."""
    roles = conn.execute(_ROLES, (TENANT, SYSTEM)).fetchall()
    secured = {str(row[0]) for row in conn.execute(_SECURED).fetchall()}
    policies = [(str(table), str(name)) for table, name in conn.execute(_POLICIES).fetchall()]
    with_policy = {table for table, name in policies if name == _TENANT_POLICY}
    roles_around = [f"role {row[0]}" for row in conn.execute(_BYPASS, {"tenant": TENANT}).fetchall()]
    others = [f"policy {name} on {table}" for table, name in policies if name not in {_TENANT_POLICY, _SYSTEM_POLICY}]
    known = _tables(conn)
    owned = [table for table, columns in known.items() if rule(table, columns)]
    owner = conn.execute(_OWNED_BY_LOGIN).fetchone()
    return State(
        frozenset(str(name) for name, usable in roles if usable),
        tuple(owned),
        tuple(table for table in owned if table not in secured or table not in with_policy),
        tuple(table for table in known if table not in owned and table not in GLOBAL),
        (*roles_around, *others),
        any=bool(secured or with_policy) or conn.execute(_LEFT).fetchone() == (True,),
        owner=owner == (True,),
    )


def _tables(conn: Plain) -> dict[str, set[str]]:
    return {str(table): set(columns) for table, columns in conn.execute(_COLUMNS).fetchall()}


def switch(conn: Plain, *, on: bool) -> None:
    """Bring a migrated database to the setting, in one transaction.

    No data change. A table whose policy changes is locked for a moment, and one gets an index; doing it again changes
    nothing, but for tables that came since.
    Raises: RejectedError when the roles are not there and this login may not create them, or the tenants' role could get
    around the policies.
    """
    if not on and not state(conn).any:
        return
    with conn.transaction():
        if on:
            _roles(conn)
            conn.execute(_FUNCTIONS)
            conn.execute(_INDEX)
            for holder in _HELD_BY:
                conn.execute(_foreign(holder).encode())
        held = _marks(conn)
        for table, columns in _tables(conn).items():
            wanted = _Wanted.of(table, columns)
            if on and held.get(table) != wanted.mark:
                _secure(conn, table, wanted)
            elif not on:
                _release(conn, table)
        if on:
            _demand_bound(conn)
        else:
            conn.execute(_DROP_FUNCTIONS)
            conn.execute(_DROP_INDEX)
            for role in _present(conn):
                conn.execute(f"REVOKE USAGE ON SCHEMA public FROM {role}".encode())
            for holder, (_, kind, _) in _HELD_BY.items():
                conn.execute(f"DROP FUNCTION IF EXISTS isotherm_foreign_{holder}({kind})".encode())


def _foreign(holder: str) -> str:
    """A function that tells whether a row is there and out of reach, asked with the rights of the tables' owner."""
    key, kind, condition = _HELD_BY[holder]
    return f"""
CREATE OR REPLACE FUNCTION isotherm_foreign_{holder}(wanted {kind}) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = public, pg_temp AS $$
    SELECT EXISTS (SELECT FROM {holder} WHERE {key} = wanted AND ({condition}) IS NOT TRUE)
$$;
REVOKE ALL ON FUNCTION isotherm_foreign_{holder}({kind}) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION isotherm_foreign_{holder}({kind}) TO {TENANT};"""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a table is to have. Args: rule: of the tenants' policy, None for none; rights: of the tenants' role."""

    rule: Rule | None
    rights: str

    @classmethod
    def of(cls, table: str, columns: set[str]) -> _Wanted:
        found = rule(table, columns)
        return cls(found, _ALL_RIGHTS if found else GLOBAL.get(table, ""))

    @property
    def mark(self) -> str:
        """What tells it from what another version wanted; it stands with the table."""
        said = f"{self.rule}/{self.rights}"
        return f"isotherm row security {hashlib.sha256(said.encode()).hexdigest()[:16]}"


def _marks(conn: Plain) -> dict[str, str]:
    """What was written beside each table; those that the roles have no rights on, as after a restore, have none."""
    return {str(table): str(mark) for table, mark in conn.execute(_MARKS, {"system": SYSTEM}).fetchall()}


def _roles(conn: Plain) -> None:
    there = {str(row[0]): row for row in conn.execute(_ROLES, (TENANT, SYSTEM)).fetchall()}
    try:
        for role in (TENANT, SYSTEM):
            if role not in there:
                conn.execute(f"CREATE ROLE {role} NOLOGIN NOINHERIT".encode())
            if role not in there or not there[role][1]:
                conn.execute(f"GRANT {role} TO CURRENT_USER WITH SET TRUE, INHERIT FALSE".encode())
            conn.execute(f"GRANT USAGE ON SCHEMA public TO {role}".encode())
    except pg.InsufficientPrivilege as error:
        raise RejectedError(
            f"this login may not make or take the roles: as an administrator, CREATE ROLE {TENANT} NOLOGIN; "
            f"CREATE ROLE {SYSTEM} NOLOGIN; GRANT {TENANT}, {SYSTEM} TO it WITH SET TRUE, INHERIT FALSE"
        ) from error


def _secure(conn: Plain, table: str, wanted: _Wanted) -> None:
    """Give a table its policies and grants anew."""
    _release(conn, table)
    conn.execute(f'GRANT {_ALL_RIGHTS} ON "{table}" TO {SYSTEM}'.encode())
    if wanted.rights:
        conn.execute(f'GRANT {wanted.rights} ON "{table}" TO {TENANT}'.encode())
    if wanted.rule:
        for policy, role, held in (
            (_TENANT_POLICY, TENANT, wanted.rule),
            (_SYSTEM_POLICY, SYSTEM, Rule("true", "true")),
        ):
            using = f"USING ({held.seen}) WITH CHECK ({held.written})"
            conn.execute(f'CREATE POLICY {policy} ON "{table}" TO {role} {using}'.encode())
        conn.execute(f'ALTER TABLE "{table}" ENABLE ROW LEVEL SECURITY'.encode())
    conn.execute(f"COMMENT ON TABLE \"{table}\" IS '{wanted.mark}'".encode())


def _release(conn: Plain, table: str) -> None:
    """Take from a table what `_secure` gave it."""
    for policy in (_TENANT_POLICY, _SYSTEM_POLICY):
        conn.execute(f'DROP POLICY IF EXISTS {policy} ON "{table}"'.encode())
    conn.execute(f'ALTER TABLE "{table}" DISABLE ROW LEVEL SECURITY'.encode())
    for role in _present(conn):
        conn.execute(f'REVOKE ALL ON "{table}" FROM {role}'.encode())
    conn.execute(f'COMMENT ON TABLE "{table}" IS NULL'.encode())


def _present(conn: Plain) -> list[str]:
    return sorted(str(row[0]) for row in conn.execute(_ROLES, (TENANT, SYSTEM)).fetchall())


def _demand_bound(conn: Plain) -> None:
    now = state(conn)
    if now.bypassing:
        raise RejectedError(f"{TENANT} could get around its policies by {', '.join(now.bypassing)}")
    if now.bare:
        raise RejectedError(f"tables without a policy: {', '.join(now.bare)}")
