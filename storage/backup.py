"""Backups: a dump of the database and the objects it refers to, of one moment, in a folder that proves itself whole.

A backup is a folder: `manifest.json`, `database.dump` (custom format of pg_dump), `blobs/` with an object a file, and
`SHA256SUMS` over all of them, readable by `sha256sum --check`. It has its name only once it is whole and on disk.
Redis is no part of it: everything there is a copy or a message that is written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg import sql
from pydantic import TypeAdapter, ValidationError

from isotherm import __version__
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage import servers
from isotherm.storage.blobs.factory import blob_store
from isotherm.storage.durable import sync_folder, sync_folders, write_new
from isotherm.storage.postgres import cold_blobs, migrate, programs, swap
from isotherm.storage.redis import client as redis_client
from isotherm.storage.settings import Settings

FORMAT = 1
_DUMP, _BLOBS, _SUMS, _MANIFEST = "database.dump", "blobs", "SHA256SUMS", "manifest.json"
_CHUNK = 1024 * 1024
_EXTENSIONS = """
SELECT extname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
WHERE n.nspname = 'public' ORDER BY extname"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds.

    Args: format: of the folder; version: of this product; migration: the newest that the database had; postgres_major:
        of the server; created_at: the moment of the snapshot; dump_bytes, blobs, blob_bytes: sizes; missing: objects the
        database refers to that the store did not have; sums_sha256: of the file of hashes.
    """

    format: int
    version: str
    migration: int
    postgres_major: int
    extensions: list[str]
    created_at: datetime
    dump_bytes: int
    blobs: int
    blob_bytes: int
    missing: int
    sums_sha256: str


class Progress(Protocol):
    """Who is told how far a long work is."""

    def begin(self, what: str, total: int) -> None:
        """A part begins, of so many units."""
        ...

    def advance(self) -> None:
        """One unit of the part is done."""
        ...


def back_up(settings: Settings, folder: Path, progress: Progress) -> Manifest:
    """Write a backup of everything into a new folder, while work goes on.

    The dump and the list of objects are of one snapshot, and no object is collected before they are copied.
    Raises: RejectedError when the folder exists or another backup runs; UnavailableError when a server, the blob store or
        a program fails, or the disk is full. Nothing is left behind then.
    """
    if folder.exists():
        raise RejectedError(f"{folder} exists: name a new folder for the backup")
    part = folder.with_name(f".{folder.name}.part")
    with _files(folder):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True, mode=0o700)
        try:
            manifest = _write(settings, part, progress)
            sync_folder(part)
            part.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return manifest


def _write(settings: Settings, part: Path, progress: Progress) -> Manifest:
    dsn = servers.postgres_dsn(settings)
    with _connected(dsn) as conn:
        if not cold_blobs.hold(conn):
            raise RejectedError("another backup of this database runs")
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        (snapshot, moment) = conn.execute("SELECT pg_export_snapshot(), now()").fetchone() or ()
        objects = cold_blobs.live(conn)
        extensions = [str(name) for (name,) in conn.execute(_EXTENSIONS).fetchall()]
        (migration,) = conn.execute("SELECT max(number) FROM schema_migrations").fetchone() or (0,)
        major = conn.info.server_version // 10_000
        progress.begin("database", swap.tables(conn))
        dump = programs.program(settings, "pg_dump", major)
        write_new(part / _DUMP, b"")  # so that it has the mode of the other files from its first byte on
        options = ("--format=custom", "--no-owner", "--no-privileges", "--no-comments", "--schema=public")
        programs.run([dump, *options, f"--snapshot={snapshot}", f"--file={part / _DUMP}"], dsn, progress.advance)
        sums = [(_hash(part / _DUMP), _DUMP)]
        progress.begin("objects", len(objects))
        copied = list(_copy(settings, part, [key for key, _ in objects], progress))
    lines = "".join(f"{digest}  {name}\n" for digest, name in [*sums, *[(d, n) for d, n, _ in copied]])
    write_new(part / _SUMS, lines.encode())
    manifest = Manifest(
        format=FORMAT, version=__version__, migration=int(str(migration)), postgres_major=major,
        extensions=extensions,
        created_at=datetime.fromisoformat(str(moment)).astimezone(UTC), dump_bytes=(part / _DUMP).stat().st_size,
        blobs=len(copied), blob_bytes=sum(size for _, _, size in copied), missing=len(objects) - len(copied),
        sums_sha256=hashlib.sha256(lines.encode()).hexdigest(),
    )  # fmt: skip
    write_new(part / _MANIFEST, json.dumps(asdict(manifest), default=str, indent=2).encode())
    return manifest


def _copy(settings: Settings, part: Path, keys: list[str], progress: Progress) -> Iterator[tuple[str, str, int]]:
    blobs = blob_store(settings)
    for key in keys:
        body = blobs.get(key)
        progress.advance()
        if body is None:
            continue
        name = f"{_BLOBS}/{key}"
        (part / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_new(part / name, body)
        sync_folders((part / name).parent, part)
        yield hashlib.sha256(body).hexdigest(), name, len(body)


def check(folder: Path, progress: Progress) -> Manifest:
    """Read a backup whole and compare every file with its hash.

    Raises: RejectedError when it is none, is damaged, or comes from a newer version.
    """
    try:
        manifest = TypeAdapter(Manifest).validate_json((folder / _MANIFEST).read_bytes())
        sums = (folder / _SUMS).read_bytes()
    except (OSError, ValidationError) as error:
        raise RejectedError(f"{folder} is no backup: {_MANIFEST} or {_SUMS} cannot be read") from error
    if manifest.format > FORMAT or manifest.migration > migrate.declared()[-1].number:
        raise RejectedError(f"{folder} was written by a newer version, {manifest.version}")
    if hashlib.sha256(sums).hexdigest() != manifest.sums_sha256:
        raise RejectedError(f"{folder} is damaged: {_SUMS}")
    names = _listed(sums)
    progress.begin("check", len(names))
    for name, digest in names.items():
        if not (folder / name).is_file() or _hash(folder / name) != digest:
            raise RejectedError(f"{folder} is damaged: {name}")
        progress.advance()
    return manifest


def restore(settings: Settings, folder: Path, progress: Progress, *, replace: bool = False) -> Manifest:
    """Put a backup in the place of what the database holds, and bring it to this version.

    The backup is checked first. What was in the database stays until the new one is loaded, and is there again when
    loading fails.

    Args: replace: also when the database holds memory already.
    Raises: RejectedError when the backup cannot be used, the database holds memory and `replace` is not set, or
        processes of this product still use it; UnavailableError when a server, the blob store or a program fails.
    """
    with _files(folder):
        manifest = check(folder, progress)
        dsn = servers.postgres_dsn(settings)
        with _connected(dsn) as conn:
            migrate.check_server(conn)
            _demand_quiet(conn, replace=replace)
            major = conn.info.server_version // 10_000
            load = programs.program(settings, "pg_restore", max(major, manifest.postgres_major))
            _put_blobs(settings, folder, progress)
            with swap.successor(conn):
                progress.begin("database", swap.tables(conn, swap.ASIDE))
                for name in manifest.extensions:
                    conn.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(sql.Identifier(name)))
                # With its schema named, what is restored is in it, and not the making of the schema itself.
                options = (
                    "--schema=public",
                    "--no-owner",
                    "--no-privileges",
                    "--single-transaction",
                    "--exit-on-error",
                )
                # Policies name roles that this server may lack; migrating makes them anew where the setting asks for them.
                with programs.listed_without(load, folder / _DUMP, ("POLICY", "ROW SECURITY")) as chosen:
                    programs.run([load, *options, f"--use-list={chosen}", folder / _DUMP], dsn, progress.advance)
            conn.execute("ANALYZE")
    migrate.migrate(dsn, rls=settings.rls)
    redis_client.clear(servers.redis_url(settings), settings.redis_prefix)
    return manifest


def _demand_quiet(conn: swap.Plain, *, replace: bool) -> None:
    if swap.holds_memory(conn) and not replace:
        raise RejectedError("the database holds memory: --replace puts the backup in its place")
    if others := swap.in_use(conn):
        raise RejectedError(
            f"{others} connections of workers or programs are open: stop them first; "
            "`isotherm down` and `isotherm up --workers 0` leave the embedded servers alone"
        )


def _put_blobs(settings: Settings, folder: Path, progress: Progress) -> None:
    blobs = blob_store(settings)
    names = [name for name in _listed((folder / _SUMS).read_bytes()) if name.startswith(f"{_BLOBS}/")]
    progress.begin("objects", len(names))
    for name in names:
        key, body = name.removeprefix(f"{_BLOBS}/"), (folder / name).read_bytes()
        if blobs.get(key) != body:
            blobs.put(key, body)
        progress.advance()


def _listed(sums: bytes) -> dict[str, str]:
    pairs = (line.split("  ", 1) for line in sums.decode().splitlines())
    return {name: digest for digest, name in pairs}


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()


@contextmanager
def _connected(dsn: str) -> Iterator[swap.Plain]:
    """A connection of its own, without the pool's limit on long statements."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10, application_name="isotherm backup") as conn:
            yield conn
    except psycopg.OperationalError as error:
        raise UnavailableError("PostgreSQL cannot be reached, or ended the connection") from error


@contextmanager
def _files(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{folder} cannot be read or written: {error.strerror}") from error
