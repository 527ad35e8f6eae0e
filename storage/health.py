"""Facts for an examination: versions, clocks, drift, objects, stamps and work that ended badly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import redis

from isotherm.pipeline.tier.blobs import BlobStore
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.redis.client import translated

_BATCH = 1_000

_SERVER = """
SELECT current_setting('server_version'), session_user::text, rolsuper, (SELECT max(number) FROM schema_migrations)
FROM pg_roles WHERE rolname = session_user"""
_EXTENSIONS = "SELECT extname, extversion FROM pg_extension WHERE extname <> 'plpgsql' ORDER BY extname"
_DRIFT = """
SELECT count(*), count(*) FILTER (WHERE nodes + edges > 0), coalesce(sum(nodes), 0), coalesce(sum(edges), 0),
       extract(epoch FROM now() - min(checked_at))::float8
FROM brain_drift"""
_STAMPS = """
SELECT 'records', model, count(*) FROM tier_vectors GROUP BY model
UNION ALL
SELECT 'objects', vector_model, count(*) FROM brain_objects
WHERE vector_model IS NOT NULL AND deleted_at IS NULL GROUP BY vector_model
UNION ALL
SELECT 'interests', embedding_model, count(*) FROM interest_points WHERE embedding_model IS NOT NULL GROUP BY embedding_model
ORDER BY 1, 2"""
_ENDED_BADLY = """
SELECT s.stage, s.state, count(DISTINCT s.operation_id), min(s.operation_id::text), min(s.last_error)
FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE s.state IN ('failed', 'dead') GROUP BY s.stage, s.state ORDER BY 3 DESC, 1, 2"""
_BLOBS_KNOWN = "SELECT object_key FROM cold_blobs WHERE object_key = ANY(%s)"
_BLOBS_LIVE = """
SELECT id, object_key FROM cold_blobs WHERE state = 'live' AND id > %s ORDER BY id LIMIT %s"""


@dataclass(frozen=True, slots=True)
class Server:
    """PostgreSQL as it is: its version, who we are there, the newest migration, extensions with versions."""

    version: str
    role: str
    superuser: bool
    migration: int
    extensions: dict[str, str]


def server(conn: Connection) -> Server:
    """What the database says about itself."""
    version, role, superuser, migration = conn.execute(_SERVER).fetchone() or ("", "", False, 0)
    extensions = {str(name): str(number) for name, number in conn.execute(_EXTENSIONS).fetchall()}
    return Server(str(version), str(role), bool(superuser), int(migration), extensions)


def skews(conn: Connection, client: redis.Redis) -> dict[str, float]:
    """Seconds by which the clocks of PostgreSQL and Redis are ahead of this machine's, after half a round trip.

    Raises: UnavailableError when Redis cannot be reached.
    """
    before = time.time()
    (theirs,) = conn.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone() or (before,)
    after = time.time()
    found = {"PostgreSQL": float(theirs) - (before + after) / 2}
    with translated():
        before = time.time()
        seconds, micros = client.time()
        after = time.time()
    found["Redis"] = seconds + micros / 1e6 - (before + after) / 2
    return found


@dataclass(frozen=True, slots=True)
class Drift:
    """What the last comparisons of graphs found.

    Args: graphs: that were compared; differing: those that differed, by so many nodes and edges, which were repaired;
        oldest_s: seconds since the oldest comparison, None when there is none.
    """

    graphs: int
    differing: int
    nodes: int
    edges: int
    oldest_s: float | None


def drift(conn: Connection) -> Drift:
    """What is known of the graphs without comparing them now."""
    graphs, differing, nodes, edges, oldest = conn.execute(_DRIFT).fetchone() or (0, 0, 0, 0, None)
    return Drift(int(graphs), int(differing), int(nodes), int(edges), None if oldest is None else float(oldest))


def stamps(conn: Connection) -> list[tuple[str, str, int]]:
    """Vectors by what they belong to and the stamp of the model that made them; reads every vector's row."""
    return [(str(of), str(model), int(count)) for of, model, count in conn.execute(_STAMPS).fetchall()]


@dataclass(frozen=True, slots=True)
class Ended:
    """Steps of one stage that ended badly: the operations they belong to, one of those, and a reason."""

    stage: str
    state: str
    operations: int
    example: str
    reason: str


def ended_badly(conn: Connection) -> list[Ended]:
    """Stages with steps that failed or died, those with the most operations first."""
    return [
        Ended(str(a), str(b), int(c), str(d), str(e or "")) for a, b, c, d, e in conn.execute(_ENDED_BADLY).fetchall()
    ]


@dataclass(frozen=True, slots=True)
class Objects:
    """The blob store against its rows: objects without a row, and live rows without an object."""

    checked: int
    unknown: int
    missing: int


def compare_objects(blobs: BlobStore) -> Objects:
    """Compare the blob store with its rows, both ways; reads every key.

    An object whose upload began meanwhile has its row first, and one that is collected loses its row last, so nothing
    that is on its way counts. Raises: TransientError when the store cannot be read.
    """
    checked = unknown = 0
    names: set[str] = set()
    keys = blobs.keys("")
    while some := list(islice(keys, _BATCH)):
        names.update(some)
        checked += len(some)
        with system(), connection() as conn:
            known = known_objects(conn, some)
        unknown += sum(key not in known and blobs.get(key) is not None for key in some)
    return Objects(checked, unknown, _missing(blobs, names))


def known_objects(conn: Connection, keys: Sequence[str]) -> set[str]:
    """Those of these objects of the blob store that have a row."""
    return {str(row[0]) for row in conn.execute(_BLOBS_KNOWN, (list(keys),)).fetchall()}


def _missing(blobs: BlobStore, names: set[str]) -> int:
    missing, last = 0, 0
    while True:
        with system(), connection() as conn:
            rows = conn.execute(_BLOBS_LIVE, (last, _BATCH)).fetchall()
        # One that became live after the keys were read is asked for by its name.
        missing += sum(str(key) not in names and blobs.get(str(key)) is None for _, key in rows)
        if len(rows) < _BATCH:
            return missing
        last = int(rows[-1][0])
