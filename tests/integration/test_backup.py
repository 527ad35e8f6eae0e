"""A backup taken while work goes on, put into an empty database, equals what was there; a damaged one changes nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from commanding import answer, isotherm
from inprocess import drive, run_pass
from psycopg import sql
from tiering import NS, policy

from isotherm import storage
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage import backup, settings
from isotherm.storage.postgres import cold_blobs, pool, programs, swap
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    import redis

    from isotherm.storage.embedded import Endpoints
    from isotherm.storage.opened import Storage

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"


class Silent:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def begin(self, what: str, total: int) -> None:
        self.parts.append(f"{what} {total}")

    def advance(self) -> None:
        pass


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def empty_dsn(endpoints: Endpoints) -> Iterator[str]:
    name = f"restored_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"
        storage.close()
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def rows(dsn: str) -> dict[str, list[tuple[object, ...]]]:
    """Every table, every row, as text."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SET timezone = 'UTC'")
        tables = [str(name) for (name,) in conn.execute(_TABLES).fetchall()]
        query = "SELECT md5(t::text) FROM {} AS t ORDER BY 1"
        return {t: conn.execute(sql.SQL(query).format(sql.Identifier(t))).fetchall() for t in tables}


def remember(*ids: str) -> None:
    old = datetime.now(UTC) - timedelta(days=9)
    big = {i: random.Random(i).randbytes(40_000).hex() for i in ids}
    producers.remember_records(NS, [NewRecord(i, big[i], old, tier=Tier.WARM) for i in ids])
    drive()


@pytest.fixture
def cold_memory(memory: Storage) -> Storage:
    """Two large bodies in the blob store, an object of the knowledge base, and a pinned record."""
    remember("a", "b")
    producers.remember(NS, "kelp grows below the pier", record_id="small", pinned=True)
    producers.put(NS, "note", title="Kelp", content="a forest in the sea")
    drive()
    run_pass(NS, policy(warm_capacity=0))
    assert len(list(memory.blobs.keys(""))) == 2
    return memory


def into(monkeypatch: pytest.MonkeyPatch, dsn: str, data: Path) -> None:
    storage.close()
    monkeypatch.setenv("ISOTHERM_POSTGRES_DSN", dsn)
    monkeypatch.setenv("ISOTHERM_DATA_DIR", str(data))
    settings.settings.cache_clear()


def test_restored_copy_equals_row_by_row_and_object_by_object(
    cold_memory: Storage, dsn: str, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: redis.Redis
) -> None:
    texts = {i: cold_memory.tier.original(NS, i) for i in ("a", "b")}
    before, folder = rows(dsn), tmp_path / "backup"
    told = answer("backup", str(folder))
    assert (told["blobs"], told["missing"]) == (2, 0)
    modes = {path.name: path.stat().st_mode & 0o077 for path in folder.rglob("*")}
    assert {name for name, mode in modes.items() if mode} <= {path.name for path in folder.rglob("*") if path.is_dir()}
    assert modes["database.dump"] == 0
    if os.path.exists("/usr/bin/sha256sum"):  # noqa: PTH110
        assert (
            subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=False).returncode == 0
        )
    client.set("isotherm:{1}:tail", "stale")
    client.set("other", "stays")
    into(monkeypatch, empty_dsn, tmp_path / "elsewhere")
    with psycopg.connect(empty_dsn, autocommit=True) as conn:  # an empty database has no tables yet
        assert not swap.holds_memory(conn)
    backup.restore(settings.settings(), folder, Silent())
    assert rows(empty_dsn) == before
    assert (client.get("isotherm:{1}:tail"), client.get("other")) == (None, b"stays")
    memory = storage.open()
    assert {i: memory.tier.original(NS, i) for i in ("a", "b")} == texts
    assert "small" in [i.record.id for i in producers.recall(NS, "kelp").items]
    remember("later")  # sequences go on where they were
    assert memory.tier.get(NS, "later") is not None


def test_backup_is_of_one_moment_while_others_write_and_collect(
    cold_memory: Storage, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {i: cold_memory.tier.original(NS, i) for i in ("a", "b")}

    class Meddling(Silent):
        def begin(self, what: str, total: int) -> None:
            super().begin(what, total)
            if what == "objects":  # the snapshot is taken: everything changes now
                producers.restore(NS, ["a", "b"])
                drive()
                producers.remember(NS, "too late", record_id="late")
                drive()
                assert ticks.collect() == {"objects": 0}

    manifest = backup.back_up(settings.settings(), tmp_path / "backup", Meddling())
    assert (manifest.blobs, manifest.missing) == (2, 0)
    assert ticks.collect() == {"objects": 2}
    into(monkeypatch, empty_dsn, tmp_path / "elsewhere")
    backup.restore(settings.settings(), tmp_path / "backup", Silent())
    memory = storage.open()
    assert {i: memory.tier.original(NS, i) for i in ("a", "b")} == texts
    with pytest.raises(RejectedError, match="no such record"):
        memory.tier.get(NS, "late")


def test_database_with_memory_is_replaced_only_when_asked_for(cold_memory: Storage, dsn: str, tmp_path: Path) -> None:
    assert cold_memory
    backup.back_up(settings.settings(), tmp_path / "backup", Silent())
    producers.remember(NS, "newer", record_id="newer")
    drive()
    storage.close()
    refused = isotherm("restore-db", str(tmp_path / "backup"))
    assert (refused.returncode, "--replace" in refused.stderr) == (1, True)
    done = isotherm("restore-db", str(tmp_path / "backup"), "--replace")
    assert done.returncode == 0, done.stderr
    with pytest.raises(RejectedError, match="no such record"):
        storage.open().tier.get(NS, "newer")
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'isotherm%'").fetchall() == []


def test_database_in_use_is_not_replaced(cold_memory: Storage, tmp_path: Path) -> None:
    assert cold_memory
    assert pool.is_open()
    backup.back_up(settings.settings(), tmp_path / "backup", Silent())
    with pytest.raises(RejectedError, match="stop them first"):
        backup.restore(settings.settings(), tmp_path / "backup", Silent(), replace=True)


@pytest.mark.parametrize("victim", ["database.dump", "SHA256SUMS", "manifest.json", "blobs"])
def test_damaged_backup_is_refused_by_name_and_changes_nothing(
    cold_memory: Storage, dsn: str, tmp_path: Path, victim: str
) -> None:
    assert cold_memory
    folder = tmp_path / "backup"
    backup.back_up(settings.settings(), folder, Silent())
    storage.close()
    before = rows(dsn)
    file = next(p for p in (folder / victim).rglob("*") if p.is_file()) if victim == "blobs" else folder / victim
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(RejectedError, match=file.name if victim == "blobs" else victim):
        backup.restore(settings.settings(), folder, Silent(), replace=True)
    assert rows(dsn) == before


def test_load_that_fails_puts_everything_back(
    cold_memory: Storage, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cold_memory
    folder = tmp_path / "backup"
    backup.back_up(settings.settings(), folder, Silent())
    storage.close()
    before = rows(dsn)

    def killed(*_: object) -> None:
        raise UnavailableError("pg_restore failed: killed")

    with monkeypatch.context() as patch:
        patch.setattr(programs, "run", killed)
        with pytest.raises(UnavailableError, match="killed"):
            backup.restore(settings.settings(), folder, Silent(), replace=True)
    assert rows(dsn) == before
    with psycopg.connect(dsn, autocommit=True) as conn:  # killed outright: the old one is still aside
        swap._put_aside(conn)
    backup.restore(settings.settings(), folder, Silent(), replace=True)
    assert rows(dsn) == before


def test_newer_backup_and_older_program_are_refused(cold_memory: Storage, tmp_path: Path) -> None:
    assert cold_memory
    folder = tmp_path / "backup"
    backup.back_up(settings.settings(), folder, Silent())
    with pytest.raises(RejectedError, match="exists"):
        backup.back_up(settings.settings(), folder, Silent())
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "migration": 9_999}))
    with pytest.raises(RejectedError, match="newer version"):
        backup.check(folder, Silent())
    with pytest.raises(UnavailableError, match="ISOTHERM_PG_BIN"):
        programs.program(settings.settings(), "pg_dump", 99)


def test_missing_object_is_counted_and_failed_backup_leaves_nothing(
    cold_memory: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold_memory.blobs.delete(min(cold_memory.blobs.keys("")))
    told = isotherm("backup", str(tmp_path / "backup"))
    assert (told.returncode, "1 objects were not in the blob store" in told.stdout) == (0, True)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(programs, "_candidates", lambda *_: iter(()))
    with pytest.raises(UnavailableError):
        backup.back_up(settings.settings(), tmp_path / "second", Silent())
    assert sorted(p.name for p in tmp_path.iterdir() if "second" in p.name) == []


def test_one_backup_at_a_time(cold_memory: Storage, dsn: str, tmp_path: Path) -> None:
    assert cold_memory
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert cold_blobs.hold(conn)
        with pytest.raises(RejectedError, match="another backup"):
            backup.back_up(settings.settings(), tmp_path / "backup", Silent())
