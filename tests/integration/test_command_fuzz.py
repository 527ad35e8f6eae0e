"""Any value to any argument, option and input of every verb: an exit code that means something, and one sentence; never a traceback.

`ISOTHERM_FUZZ=all` gives every value to every place; otherwise each verb meets each value at one of its places.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from verbs import Verb, call, verbs

from isotherm import storage
from isotherm.pipeline.errors import UnavailableError
from isotherm.tasks import broker, processes
from isotherm.tasks.commands import erase, memory
from isotherm.tasks.commands.output import Exit

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

ALL = os.environ.get("ISOTHERM_FUZZ") == "all"
_USAGE = 2
_KNOWN = {int(code) for code in Exit if code is not Exit.BUG} | {_USAGE}
_BACKSLASHED = "a\udcff\udc80"  # bytes of an argument that are no UTF-8
_ID = "0198c000-0000-7000-8000-000000000000"

VALUES: dict[str, str] = {
    "nothing": "",
    "blank": " \t\n",
    "hyphens": "--",
    "wildcard": "*",
    "quote": "'; DROP TABLE tier_records; --%s%(a)s\\",
    "no UTF-8": _BACKSLASHED,
    "markup": "[bold]x[/nonsense]\x1b[31m\u202e",
    "long": "k" * 100_000,
    "minus": "-1",
    "far below": "-" + "9" * 400,
    "far above": "9" * 5_000,
    "infinite": "inf",
    "no number": "nan",
    "large number": "1e400",
    "first moment": "0001-01-01T00:00:00+14:00",
    "last moment": "9999-12-31T23:59:59-12:00",
    "later moment": "99999-01-01T00:00:00Z",
    "an id": _ID,
    "other digits": "\u0663\u0664",
    "mapping": '{"a": NaN, "b": 1e400, "c\\u0000": "\\ud800"}',
    "far down": "[" * 50_000,
}
FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "half a character": "kelp \N{SNOWMAN}".encode()[:-1],
    "far down": b'{"a":' * 50_000,
    "no lines": b'{"session": "s", "role": "user", "content": "' + b"x" * 3_000_000,
    "list": b"[1, null, NaN, 1e999, {}]",
    "numbers": b"9" * 5_000,
    "lines": b'{"session": "\\ud800", "role": 1, "content": {}, "time": 1e400}\n[]\nnull\n"x"\n{"format": 9e999}\n',
}


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files and folders that no verb expects, by what they are."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, body in FILES.items():
        (folder / f"{name}.jsonl").write_bytes(body)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "missing").symlink_to(folder / "nowhere")
    (folder / "full").mkdir()
    (folder / "full" / "x.md").write_bytes(FILES["binary"])
    (folder / "device").symlink_to("/dev/null")  # by a link, so that nothing can put a file in the place of the device
    others = {"loop": folder / "loop", "dangling": folder / "missing", "folder": folder / "full", "device": folder / "device",
              "below a file": folder / "list.jsonl" / "x", "long path": folder / ("n" * 300)}  # fmt: skip
    return {f"file: {name}": str(folder / f"{name}.jsonl") for name in FILES} | {k: str(v) for k, v in others.items()}


@pytest.fixture
def here(kept_storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own, and a machine on which nothing is started and no worker answers."""

    def not_here(*_: object) -> bool:
        raise UnavailableError("nothing is started here")

    assert kept_storage
    monkeypatch.setattr(processes.Processes, "_start", not_here)
    monkeypatch.setattr(broker, "consumers", lambda *_, **__: {})
    monkeypatch.setattr(memory.wait_for, "__defaults__", (0.0,))
    monkeypatch.setattr(erase, "_WAIT_S", 0.0)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    storage.open()


def lines(verb: Verb, values: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Calls of a verb: each value at one of its places after the other, or everywhere."""
    places = [*range(max(verb.needed, len(verb.arguments))), *verb.options]
    for number, (name, value) in enumerate(sorted(values.items())):
        for place in places if ALL else places[number % len(places or [0]) :][:1]:
            arguments = ["x"] * verb.needed
            options: list[str] = []
            if isinstance(place, int):
                arguments[place : place + 1] = [value]
            else:
                options = [f"{place}={value}"]
            yield f"{place} {name}", [*verb.words, *options, "--", *arguments]


def check(what: str, line: list[str], stdin: bytes = b"") -> None:
    ended = call(*line, stdin=stdin)
    told = (what, ended.code, ended.stderr[-600:])
    assert ended.code in _KNOWN, told
    assert "Traceback" not in ended.said, told
    assert ended.code not in {Exit.REFUSED, Exit.UNAVAILABLE} or ended.stdout or ended.stderr.strip(), told
    if ended.stderr.startswith("isotherm:"):
        assert ended.stderr.count("\n") == 1, told
        assert len(ended.stderr) < 700, told


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("verb", verbs(), ids=str)
def test_any_value_at_any_place_ends_in_a_sentence(verb: Verb, placed: dict[str, str]) -> None:
    for what, line in lines(verb, VALUES | placed):
        check(what, line)
    for switch in set(verb.switches) - {"--watch"}:
        check(switch, verb.line(switch))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("verb", [v for v in verbs() if v.arguments], ids=str)
def test_any_standard_input_ends_in_a_sentence(verb: Verb) -> None:
    for name, body in FILES.items():
        check(name, verb.line(argument="-"), stdin=body)


def test_a_process_of_its_own_ends_the_same_way(environment: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "isotherm.tasks.cli", "remember", "-", "--agent", _BACKSLASHED],
        input=FILES["binary"], capture_output=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.startswith(b"isotherm: ")
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.usefixtures("here")
def test_a_device_stays_one_when_something_is_written_to_it(placed: dict[str, str]) -> None:
    assert call("export", "--out", placed["device"]).code == 0
    assert Path(placed["device"]).is_char_device()
