from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from s3_server import S3Server

from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.blobs import BlobStore, bank_prefix, owner_prefix
from isotherm.storage.blobs.factory import blob_store
from isotherm.storage.blobs.folder import FolderBlobs
from isotherm.storage.blobs.s3 import S3Blobs
from isotherm.storage.s3 import Objects
from isotherm.storage.settings import Settings

if TYPE_CHECKING:
    from _pytest.fixtures import FixtureRequest

OWNER = owner_prefix(Namespace.of("atlas", "s1"))


@pytest.fixture(params=["folder", "s3"])
def blobs(request: FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    if request.param == "folder":
        yield FolderBlobs(tmp_path / "blobs")
    else:
        server: S3Server = request.getfixturevalue("s3")
        yield S3Blobs(Objects(server.bucket()))


@pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)) * 300])
def test_what_was_put_is_there_until_it_is_deleted(blobs: BlobStore, data: bytes) -> None:
    key = f"{OWNER}one"
    assert blobs.get(key) is None
    blobs.put(key, data)
    assert blobs.get(key) == data
    assert list(blobs.keys(OWNER)) == [key]
    for _ in range(2):
        blobs.delete(key)
    assert blobs.get(key) is None
    assert list(blobs.keys(OWNER)) == []


def test_owners_do_not_see_each_others_objects(blobs: BlobStore) -> None:
    places = [Namespace.of("atlas", "s1"), Namespace.of("atlas", "s2"), Namespace.of("atlas", "s1", tenant="acme")]
    for place in places:
        blobs.put(f"{owner_prefix(place)}one", owner_prefix(place).encode())
    for place in places:
        assert list(blobs.keys(owner_prefix(place))) == [f"{owner_prefix(place)}one"]
        assert blobs.get(f"{owner_prefix(place)}one") == owner_prefix(place).encode()
    assert len(list(blobs.keys(bank_prefix(places[0])))) == 2
    assert len(list(blobs.keys(""))) == 3
    assert list(blobs.keys("nobody/")) == []


@pytest.mark.parametrize("folder", [Path(), Path("  ")])
def test_a_folder_without_a_name_is_refused(folder: Path) -> None:
    with pytest.raises(RejectedError, match="name"):
        FolderBlobs(folder)


@pytest.mark.parametrize("key", ["", "/a", "a/", "../a", "a/../b", "a//b", "A", "a.tmp", "a\0"])
def test_folder_takes_no_key_that_could_leave_it(tmp_path: Path, key: str) -> None:
    with pytest.raises(RejectedError):
        FolderBlobs(tmp_path).put(key, b"x")


def test_folder_keeps_its_files_to_its_user_and_leaves_no_halves(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    blobs.put("a/b", b"x")
    (tmp_path / "blobs" / "a" / "left.tmp").touch()
    assert list(blobs.keys("")) == ["a/b"]
    assert (tmp_path / "blobs" / "a" / "b").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "blobs" / "a").stat().st_mode & 0o077 == 0


def test_folder_that_cannot_be_written_may_be_written_later(tmp_path: Path) -> None:
    (tmp_path / "blobs").touch()
    with pytest.raises(TransientError):
        FolderBlobs(tmp_path / "blobs").put("a/b", b"x")
    with pytest.raises(UnavailableError):
        FolderBlobs(tmp_path / "blobs").get("a/b")


def test_settings_choose_the_store(tmp_path: Path) -> None:
    assert isinstance(blob_store(Settings(data_dir=tmp_path)), FolderBlobs)
    assert isinstance(blob_store(Settings(blob_store="s3", s3_bucket="b")), S3Blobs)
    with pytest.raises(RejectedError, match="ISOTHERM_S3_BUCKET"):
        blob_store(Settings(blob_store="s3"))
