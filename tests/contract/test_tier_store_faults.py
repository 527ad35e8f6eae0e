"""What stores do when what they keep is damaged, lost or too large, and when a process dies in the middle of a write."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from pydantic import SecretStr
from tier_stores import NS, Opened, record, tier_of

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres.pool import connection
from isotherm.storage.s3 import Bucket, Objects
from isotherm.storage.tier_stores import codec
from isotherm.storage.tier_stores.codec import DamagedError
from isotherm.storage.tier_stores.folder import _INDEX, FolderStore
from isotherm.storage.tier_stores.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from isotherm.pipeline.tier.store import Store

BOMB = zstandard.ZstdCompressor().compress(b"\0" * (codec.MAX_JSON_BYTES + 1))
OTHER = Namespace.of("atlas", "s2")


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    with ExitStack() as held:
        yield Opened(request, tmp_path, held)


def only_file(folder: Path) -> Path:
    (found,) = [path for path in (folder / "records").rglob("*") if path.is_file()]
    return found


def overwrite_folder(store: Any, body: bytes) -> None:
    only_file(store._folder).write_bytes(body)


def overwrite_redis(store: Any, body: bytes) -> None:
    (name,) = store._client.hkeys(store._keys(NS)[0])
    store._client.hset(store._keys(NS)[0], name, b"0" * 16 + body)


def overwrite_s3(store: Any, body: bytes) -> None:
    (row,) = store._objects.list(f"{NS.key.hex()}/records/")
    found = store._objects.get(row.key, max_bytes=2**30)
    store._objects.put(row.key, found.body[:16] + body)


OVERWRITE: dict[str, Callable[[Any, bytes], None]] = {
    "folder": overwrite_folder,
    "redis": overwrite_redis,
    "s3": overwrite_s3,
}
BAD: dict[str, bytes] = {
    "noise": b"no record at all",
    "bomb": BOMB,
    "of another id": codec.encode(NS, record("other")),
    "of another namespace": codec.encode(OTHER, record("r1")),
    "of no form": zstandard.ZstdCompressor().compress(b"[]"),
    "cut off": codec.encode(NS, record("r1"))[:-5],
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("kind", OVERWRITE)
def test_a_damaged_record_is_set_aside_and_never_fatal(opened: Opened, kind: str, bad: str) -> None:
    store: Any = opened.open(kind)
    store.put(NS, record("r1"))
    OVERWRITE[kind](store, BAD[bad])
    store.put(NS, record("good", age=1))
    tier = tier_of(store)
    assert [r.id for r in store.list(NS, tier)] == ["good"]
    assert store.get(NS, "r1") is None
    assert store.count(NS, tier) == 1
    (fault,) = store.damaged()
    assert fault.namespace == NS
    assert "kelp" not in f"{fault.why} {fault.where}"
    assert store.put(NS, record("r1", "again")).version == 1
    assert [r.id for r in store.list(NS, tier)] == ["r1", "good"]
    assert len(store.damaged()) == 1


def kept_bytes(store: Any) -> bytes:
    """All bytes that a store keeps, with the names they are under; an index by ids and times aside."""
    if isinstance(store, FolderStore):
        paths = [path for path in store._folder.rglob("*") if path.is_file() and _INDEX not in path.name]
        return b"".join(path.name.encode() + path.read_bytes() for path in paths)
    if isinstance(store, S3Store):
        rows = list(store._objects.list(""))
        return b"".join(row.key.encode() + store._objects.get(row.key, max_bytes=2**30).body for row in rows)
    keys = store._client.keys(f"{store._prefix}:*")
    return b"".join(key + store._client.dump(key) for key in keys)


@pytest.mark.parametrize("kind", OVERWRITE)
def test_deleted_is_gone_with_what_was_set_aside_of_it(opened: Opened, kind: str) -> None:
    store: Any = opened.open(kind)
    store.put(NS, record("r1"))
    OVERWRITE[kind](store, b"kelp: not packed any more")
    assert store.get(NS, "r1") is None
    assert b"kelp" in kept_bytes(store)
    assert store.delete(NS, "r1") is False
    assert b"kelp" not in kept_bytes(store)
    store.put(NS, record("r1"))
    assert store.delete(NS, "r1") is True
    assert list(store.namespaces()) == []
    assert NS.agent.encode() not in kept_bytes(store)


def test_a_failing_reporter_does_not_disturb_a_read(tmp_path: Path) -> None:
    told: list[str] = []

    def report(damaged: Any) -> None:
        told.append(damaged.record_id)
        raise RuntimeError

    store = FolderStore(tmp_path / "cold", report=report)
    store.put(NS, record())
    overwrite_folder(store, b"noise")
    assert store.get(NS, "r1") is None
    assert told == ["r1"]
    assert [path.read_bytes() for path in (tmp_path / "cold" / "aside").iterdir()] == [b"noise"]
    store.close()


def test_a_bomb_is_refused_before_memory_is_taken() -> None:
    assert len(BOMB) < 100_000
    with pytest.raises(DamagedError, match="larger"):
        codec.decode(BOMB, NS, "r1")
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(b"{}")
    with pytest.raises(DamagedError):
        codec.decode(unknown, NS, "r1")


def test_a_changed_text_does_not_pass_for_the_record() -> None:
    raw = zstandard.ZstdDecompressor().decompress(codec.encode(NS, record()))
    changed = zstandard.ZstdCompressor().compress(raw.replace(b'"kelp"', b'"help"'))
    with pytest.raises(DamagedError, match="hash"):
        codec.decode(changed, NS, "r1")


def test_a_damaged_cold_body_in_the_database_is_left_out_and_can_be_replaced(opened: Opened) -> None:
    store = opened.postgres()
    cold = store.put(NS, record(content="kelp " * 100, tier=Tier.COLD, summary="kelp"))
    store.put(NS, record("good", tier=Tier.COLD, age=1))
    with connection() as conn:
        conn.execute("UPDATE cold_bodies SET body = 'noise'")
    assert store.get(NS, "r1") is None
    assert [r.id for r in store.list(NS, Tier.COLD)] == ["good"]
    assert {fault.record_id for fault in store.damaged()} == {"r1"}
    warm = store.swap(NS, cold, replace(cold, tier=Tier.WARM, summary=None))
    assert warm is not None
    assert store.get(NS, "r1") == warm


def test_files_are_private_and_one_per_record(opened: Opened) -> None:
    store = opened.cold_folder()
    for n in range(3):
        store.put(NS, record("r1", f"text {n}"))
        store.put(NS, record(f"other {n}"))
    store.delete(NS, "other 0")
    folder = store._folder
    assert len([path for path in (folder / "records").rglob("*") if path.is_file()]) == 3
    assert list((folder / "incoming").iterdir()) == []
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0 or path.name == "lock", path
    names = "".join(path.name for path in folder.rglob("*"))
    assert "r1" not in names
    assert "other" not in names


def test_list_and_count_read_no_more_bodies_than_they_answer(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened.cold_folder()
    for n in range(20):
        store.put(NS, record(f"r{n:02d}", age=n))
    read: list[Path] = []
    bounded = codec.MAX_FRAME_BYTES

    def counted(path: Path, max_bytes: int) -> bytes | None:
        assert max_bytes == bounded
        read.append(path)
        return path.read_bytes() if path.exists() else None

    monkeypatch.setattr("isotherm.storage.tier_stores.files.read_bounded", counted)
    assert store.count(NS, Tier.COLD) == 20
    assert read == []
    assert [r.id for r in store.list(NS, Tier.COLD, 3)] == ["r00", "r01", "r02"]
    assert len(read) == 3


@pytest.mark.parametrize("loss", ["gone", "noise"])
def test_a_lost_index_is_made_again_from_the_files(tmp_path: Path, loss: str) -> None:
    folder = tmp_path / "cold"
    store = FolderStore(folder)
    kept = [store.put(NS, record(f"r{n}", age=n)) for n in range(5)]
    kept[2] = store.put(NS, replace(kept[2], content="newer"))
    elsewhere = store.put(OTHER, record("r0", "other"))
    store.delete(NS, "r4")
    store.close()
    for path in folder.glob("index.sqlite*"):
        path.unlink()
    if loss == "noise":
        (folder / "index.sqlite").write_bytes(b"this is no index " * 100)
    again = FolderStore(folder)
    assert list(again.list(NS, Tier.COLD)) == kept[:4]
    assert (again.count(NS, Tier.COLD), again.count(OTHER, Tier.COLD)) == (4, 1)
    assert again.get(OTHER, "r0") == elsewhere
    again.close()


_DIES = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tier_stores import NS, record
from isotherm.storage.tier_stores import folder_index
from isotherm.storage.tier_stores.folder import _INDEX, FolderStore
store = FolderStore(Path(sys.argv[1]))
if sys.argv[2] == "before the index":
    folder_index.Writer.name = lambda *_, **__: os._exit(9)
else:
    FolderStore._do = lambda *_: os._exit(9)
store.put(NS, record("r1", "after"))
"""


@pytest.mark.parametrize(("moment", "found"), [("before the index", "before"), ("after the index", "after")])
def test_a_killed_writer_leaves_one_version_and_no_file_too_many(tmp_path: Path, moment: str, found: str) -> None:
    folder = tmp_path / "cold"
    store = FolderStore(folder)
    store.put(NS, record("r1", "before"))
    here = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", _DIES, str(folder), moment, here], check=False, capture_output=True)
    assert done.returncode == 9, done.stderr.decode()
    assert [r.content for r in store.list(NS, Tier.COLD)] == [found]
    assert store.count(NS, Tier.COLD) == 1
    store.put(NS, record("r2"))  # the next writer tidies up
    assert list((folder / "incoming").iterdir()) == []
    assert len([path for path in (folder / "records").rglob("*") if path.is_file()]) == 2
    store.close()


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cold"
    first, second = FolderStore(folder), FolderStore(folder)
    stored = first.put(NS, record())
    assert second.get(NS, "r1") == stored
    assert second.swap(NS, stored, replace(stored, access_count=1)) is not None
    assert first.swap(NS, stored, replace(stored, access_count=2)) is None
    if (child := os.fork()) == 0:  # a connection must not be taken across
        os._exit(0 if first.put(NS, record("from the child")).version == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert first.count(NS, Tier.COLD) == second.count(NS, Tier.COLD) == 2
    first.close()
    second.close()


def test_names_of_writers_that_died_count_for_nothing_and_go(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened.s3()
    stored = store.put(NS, record())
    objects = store._objects
    (name,) = [row.key for row in objects.list(f"{NS.key.hex()}/names/")]
    objects.put(name[:-1] + ("0" if name[-1] != "0" else "1"), b"")
    assert list(store.list(NS, Tier.COLD)) == [stored]
    assert len(list(objects.list(f"{NS.key.hex()}/names/"))) == 2
    monkeypatch.setattr("isotherm.storage.tier_stores.s3._STALE", timedelta(seconds=-60))
    assert list(store.list(NS, Tier.COLD)) == [stored]
    assert [row.key for row in objects.list(f"{NS.key.hex()}/names/")] == [name]


def test_a_write_whose_answer_was_lost_counts_once(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened.s3()
    first = store.put(NS, record())
    replace_object = Objects.replace

    def lost(self: Objects, key: str, body: bytes, etag: str) -> str | None:
        assert replace_object(self, key, body, etag) is not None
        return replace_object(self, key, body, etag)  # as the client does when it got no answer

    monkeypatch.setattr(Objects, "replace", lost)
    second = store.swap(NS, first, replace(first, content="second"))
    assert second is not None
    assert list(store.list(NS, Tier.COLD)) == [second]


def test_an_object_larger_than_any_record_is_not_read(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened.s3()
    monkeypatch.setattr("isotherm.storage.tier_stores.s3.MAX_FRAME_BYTES", 10_000)
    store.put(NS, record())
    overwrite_s3(store, b"\0" * 20_000)
    assert store.get(NS, "r1") is None
    assert [fault.why for fault in store.damaged()] == ["larger than any record"]


def test_a_server_out_of_reach_or_wrong_keys_can_be_tried_again(opened: Opened) -> None:
    s3 = opened.request.getfixturevalue("s3")
    store: Store = S3Store(Objects(s3.bucket(secret="another")))
    with pytest.raises(UnavailableError, match="credentials"):
        store.put(NS, record())
    nobody = replace(s3.bucket(), endpoint="http://127.0.0.1:9", retry_for=timedelta(seconds=1))
    with pytest.raises(UnavailableError, match="reached") as raised:
        S3Store(Objects(nobody)).get(NS, "r1")
    assert "127.0.0.1" not in str(raised.value)


def test_a_folder_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    with pytest.raises(RejectedError, match="name"):
        FolderStore(Path())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnavailableError, match="folder"):
        FolderStore(tmp_path / "file" / "cold")


def test_without_the_client_a_bucket_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RejectedError, match=r"isotherm\[s3\]"):
        Objects(Bucket("b", endpoint="http://127.0.0.1:9")).get("a", max_bytes=1)


def test_a_bucket_needs_a_name_and_both_keys_or_none() -> None:
    for blank in ("", " "):
        with pytest.raises(RejectedError, match="name"):
            Bucket(blank)
    with pytest.raises(RejectedError, match="together"):
        Bucket("b", access_key=SecretStr("only this"))
