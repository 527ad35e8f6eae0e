"""Kinds as stored: written in one transaction, retired instead of deleted."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg.types.json import Jsonb

from isotherm.pipeline.brain.kinds import KindSpec
from isotherm.storage.postgres.pool import connection

_ALL = "SELECT spec FROM brain_kinds WHERE retired_at IS NULL ORDER BY kind"
_UPSERT = """
INSERT INTO brain_kinds (kind, spec) VALUES (%(kind)s, %(spec)s)
ON CONFLICT (kind) DO UPDATE SET spec = excluded.spec, updated_at = now(), retired_at = NULL"""
_RETIRE = "UPDATE brain_kinds SET retired_at = now() WHERE retired_at IS NULL AND kind <> ALL(%(kept)s)"
# Two who apply kinds at once are taken one after the other, so that what is stored is what one of them wanted.
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(352194131)"


class PostgresKinds:
    """The kinds of an installation. The pool must be open."""

    def kinds(self) -> list[KindSpec]:
        """All kinds that are not retired, by name. Raises: KindError when a stored one cannot be read."""
        with connection() as conn:
            rows = conn.execute(_ALL).fetchall()
        return [KindSpec.of_json(row[0]) for row in rows]

    def put_kinds(self, specs: Iterable[KindSpec], *, retire_others: bool) -> None:
        """Write kinds; with `retire_others` the ones that are not given are retired."""
        wanted = sorted(specs, key=lambda spec: spec.kind)
        with connection() as conn:
            conn.execute(_ONE_AT_A_TIME)
            for spec in wanted:
                conn.execute(_UPSERT, {"kind": spec.kind, "spec": Jsonb(spec.to_json())})
            if retire_others:
                conn.execute(_RETIRE, {"kept": [spec.kind for spec in wanted]})
