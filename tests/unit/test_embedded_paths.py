"""Where an embedded installation is, and what its helpers do with files; no server is started."""

import errno
import os
from pathlib import Path

import pytest

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage import embedded_binaries as binaries
from isotherm.storage import embedded_paths as paths
from isotherm.storage import embedded_process as process
from isotherm.storage.embedded import Endpoints

STRANGER = 54_321


def test_sockets_are_in_the_data_folder_when_their_path_fits() -> None:
    assert paths.run_dir(Path("/srv/isotherm"), 1000) == Path("/srv/isotherm/run")


@pytest.mark.parametrize("data", [Path("/", "x" * 120), Path("/srv/my data"), Path("/srv/a,b"), Path("/srv/größe")])
def test_sockets_go_to_a_short_plain_folder_when_the_path_would_not_do(data: Path) -> None:
    run = paths.run_dir(data, 1000)
    assert run.parent == Path("/tmp")
    assert run.name == f"isotherm-1000-{paths.digest(data)}"
    assert len(os.fsencode(run / paths.POSTGRES_SOCKET)) <= 103


def test_longest_allowed_socket_path_is_used_and_one_more_byte_is_not() -> None:
    room = paths._SOCKET_LIMIT - len("/run/" + paths.POSTGRES_SOCKET)
    longest = Path("/" + "x" * (room - 1))
    assert paths.run_dir(longest, 1) == longest / "run"
    assert paths.run_dir(Path(f"{longest}x"), 1).parent == Path("/tmp")


def test_folders_that_share_a_long_prefix_have_different_sockets() -> None:
    assert paths.run_dir(Path("/", "x" * 200, "a"), 1) != paths.run_dir(Path("/", "x" * 200, "b"), 1)


def test_short_folder_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = paths.run_dir(Path("/", "x" * 120), 1)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert paths.run_dir(Path("/", "x" * 120), 1) == before


@pytest.mark.parametrize("name", ['a"b', "a$b", "a`b", "a\\b", "a\nb"])
def test_path_that_a_shell_would_read_differently_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(RejectedError, match="its path holds"):
        paths.locate(tmp_path / name)


def test_folder_of_somebody_else_is_rejected_for_an_ordinary_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(RejectedError, match=f"belongs to user {os.getuid()}, not {STRANGER}"):
        paths.locate(tmp_path)
    assert not list(tmp_path.iterdir())


def test_same_place_by_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    expected = paths.locate(tmp_path / "data", tmp_path / "system")
    assert paths.locate(Path("data"), tmp_path / "system") == expected
    assert paths.locate(tmp_path / "link", tmp_path / "system") == expected
    assert not (tmp_path / "data").exists()


def test_private_folder_is_made_with_mode_0700_and_narrowed_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    paths.private_dir(folder, None)
    folder.chmod(0o755)
    paths.private_dir(folder, None)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_private_folder_may_be_neither_link_nor_file_nor_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(RejectedError, match="not a folder, or is a link"):
            paths.private_dir(tmp_path / name, None)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(RejectedError, match="choose another data folder"):
        paths.private_dir(tmp_path / "target", None)
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o755


def test_folder_posing_as_our_sockets_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SHORT_BASE", tmp_path)
    monkeypatch.setattr(paths, "_SOCKET_LIMIT", 1)
    run = paths.locate(tmp_path / "data", tmp_path / "system").run
    run.symlink_to(tmp_path)
    with pytest.raises(RejectedError, match="could pose as the servers"):
        paths.locate(tmp_path / "data", tmp_path / "system")


def test_broker_url_is_the_redis_url_in_another_spelling() -> None:
    endpoints = Endpoints(postgres_dsn="", redis_url="unix:///srv/run/redis.sock?db=3")
    assert endpoints.broker_url == "redis+socket:///srv/run/redis.sock?virtual_host=3"


def test_log_is_rotated_only_when_large(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    process.rotate(log)
    log.write_text("short")
    process.rotate(log)
    assert log.exists()
    os.truncate(log, process.LOG_LIMIT_BYTES + 1)
    process.rotate(log)
    assert not log.exists()
    assert (tmp_path / "server.log.1").stat().st_size == process.LOG_LIMIT_BYTES + 1


def test_failure_names_the_log_and_shows_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    message = str(process.failure("it does not start", log))
    assert str(log) in message
    assert "line 99" in message
    assert "line 91" not in message
    assert "line" not in str(process.failure("it does not start", log, since=log.stat().st_size))


def test_failure_never_follows_a_link_in_the_place_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    (tmp_path / "server.log").symlink_to(tmp_path / "secret")
    assert "hidden" not in str(process.failure("it does not start", tmp_path / "server.log"))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, UnavailableError), (errno.EACCES, RejectedError), (errno.EIO, UnavailableError)],
)
def test_errors_of_files_name_the_folder(number: int, expected: type[Exception]) -> None:
    with pytest.raises(expected, match="/srv/data"), process.disk_errors(Path("/srv/data")):
        raise OSError(number, os.strerror(number))


def test_pid_file_without_a_number_holds_no_pid(tmp_path: Path) -> None:
    for text, expected in (("", None), ("words\n", None), ("42\n/path\n", 42)):
        (tmp_path / "pid").write_text(text)
        assert process.read_pid(tmp_path / "pid") == expected
    assert process.read_pid(tmp_path / "missing") is None


def test_missing_wheel_says_how_to_get_it() -> None:
    with pytest.raises(UnavailableError, match=r"isotherm\[embedded\].*ISOTHERM_PG_BIN"):
        binaries.installed("no-such-wheel", "no_such_wheel", "PostgreSQL", "ISOTHERM_PG_BIN")


def test_named_folder_without_programs_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"there is no .*postgres; correct ISOTHERM_PG_BIN"):
        binaries.postgres_bin(tmp_path, None, tmp_path)
    with pytest.raises(UnavailableError, match=r"there is no .*server; correct ISOTHERM_REDIS_BIN"):
        binaries.redis_server(tmp_path / "server", None, tmp_path)


def test_copy_of_a_wheel_is_complete_readable_and_repaired(tmp_path: Path) -> None:
    package = tmp_path / "private" / "server"
    (package / "bin").mkdir(parents=True, mode=0o700)
    (package / "bin" / "run").write_text("program")
    (package / "bin" / "run").chmod(0o700)
    (package.parent / "server.libs").mkdir(mode=0o700)
    (package.parent / "server.libs" / "lib.so").write_text("library")
    wheel = binaries.Wheel("server", "1.0", package)
    copy = binaries.copied(wheel, tmp_path / "system")
    assert copy == tmp_path / "system" / "bin" / "server-1.0"
    assert (copy / "server" / "bin" / "run").stat().st_mode & 0o777 == 0o755
    (copy / "server.libs" / "lib.so").write_text("")
    (copy / "server" / "bin" / "run").unlink()
    assert binaries.copied(wheel, tmp_path / "system") == copy
    assert (copy / "server" / "bin" / "run").read_text() == "program"
    assert (copy / "server.libs" / "lib.so").read_text() == "library"
    assert sorted(path.name for path in copy.parent.iterdir()) == ["lock", "server-1.0"]
