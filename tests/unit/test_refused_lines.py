"""Lines that were refused: whose they are, and how long they stay."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from isotherm.pipeline import transcript
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.erasure import ErasureScope
from isotherm.pipeline.tier.refused import concerns
from isotherm.pipeline.transcript import BadLine
from isotherm.storage import refused_lines

if TYPE_CHECKING:
    from pathlib import Path

NS = Namespace.of("atlas", "s1", tenant="acme")
BANK = Bank("acme", "atlas")
SCOPES = {
    "records": ErasureScope.of_records(NS, ("r1",)),
    "namespace": ErasureScope.of_namespace(NS),
    "session": ErasureScope.of_session(BANK, "s1"),
    "agent": ErasureScope.of_agent(BANK),
    "tenant": ErasureScope.of_tenant("acme"),
}
ALL = set(SCOPES)
OWN = {"tenant": "acme", "agent": "atlas", "session": "s1", "id": "r1"}


def touched(raw: object, **given: str) -> set[str]:
    kept = {"raw": raw if isinstance(raw, str) else json.dumps(raw), **given}
    return {name for name, scope in SCOPES.items() if concerns(scope, kept)}


@pytest.mark.parametrize(
    ("raw", "given", "wanted"),
    [
        (OWN, {}, ALL),
        ({**OWN, "id": "r2"}, {}, ALL - {"records"}),
        ({**OWN, "run": "r"}, {}, {"session", "agent", "tenant"}),
        ({**OWN, "scope": "audit"}, {}, {"session", "agent", "tenant"}),
        ({**OWN, "session": "s2"}, {}, {"agent", "tenant"}),
        ({**OWN, "agent": "forge"}, {}, {"tenant"}),
        ({**OWN, "tenant": "other"}, {}, set()),
        ({"session": "s1"}, {"agent": "atlas", "tenant": "acme"}, ALL - {"records"}),
        ({"session": "s1", "tenant": "other"}, {"agent": "atlas", "tenant": "acme"}, set()),
        ({"session": "s1", "agent": "default"}, {}, set()),
        (json.dumps(OWN)[:-4], {}, ALL - {"records"}),
        ('{not json "s1"', {}, {"namespace", "session"}),
        ('{not json "r1"', {}, {"records"}),
        ("{not json s1", {"agent": "atlas", "tenant": "acme"}, {"agent", "tenant"}),
        ("[1, 2", {}, set()),
        ("7", {}, set()),
        ("[" * 100_000, {}, set()),
    ],
)  # fmt: skip
def test_a_line_is_found_by_the_names_it_holds(raw: object, given: dict[str, str], wanted: set[str]) -> None:
    assert touched(raw, **given) == wanted


def test_a_name_beyond_ascii_is_found_in_a_broken_line() -> None:
    scope = ErasureScope.of_session(Bank(None, "atlas"), "Grüße")
    for raw in ('{"session": "Grüße", "content', '{"session": "Gr\\u00fc\\u00dfe", "content'):
        assert concerns(scope, {"raw": raw})


def test_a_refused_message_of_a_document_keeps_the_names_of_its_session() -> None:
    document = {"sessions": [{"session": "s1", "agent": "atlas", "tenant": "acme", "messages": [{"role": "user"}]}]}
    [bad] = transcript.parse_document(json.dumps(document).encode())
    assert isinstance(bad, BadLine)
    assert touched(bad.raw) == ALL - {"records"}


def kept(folder: Path) -> list[Any]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_only_lines_of_the_scope_are_dropped_and_the_age_stays(tmp_path: Path) -> None:
    folder = tmp_path / "set-aside"
    assert refused_lines.forget(folder, SCOPES["tenant"]) == 0
    for number, session in enumerate(("s1", "s2", "s1")):
        line = BadLine(number, "why", json.dumps({"session": session}))
        file = refused_lines.keep(folder, "talk", line, agent="atlas", tenant="acme")
    with file.open("a") as open_file:
        open_file.write('{"line": 9, "raw": "{\\"session\\": \\"s1\\"')  # a writer that was stopped
    old = time.time() - 1_000
    os.utime(file, (old, old))
    assert refused_lines.forget(folder, SCOPES["session"]) == 2
    assert abs(file.stat().st_mtime - old) < 1
    assert '"s2' in file.read_text()
    assert refused_lines.forget(folder, SCOPES["session"]) == 0
    assert refused_lines.forget(folder, ErasureScope.of_session(BANK, "s2")) == 1


def test_files_go_at_their_age_and_with_their_last_line(tmp_path: Path) -> None:
    folder = tmp_path / "set-aside"
    assert refused_lines.status(folder) == refused_lines.Kept()
    assert refused_lines.purge(folder, timedelta(0)) == 0
    files = [refused_lines.keep(folder, name, BadLine(1, "why", json.dumps(OWN))) for name in ("old", "new", "gone")]
    old = time.time() - 3 * 86_400
    os.utime(files[0], (old, old))
    found = refused_lines.status(folder)
    assert (found.files, found.bytes) == (3, sum(file.stat().st_size for file in files))
    assert found.oldest_s == pytest.approx(3 * 86_400, abs=60)
    assert refused_lines.purge(folder, timedelta(days=2)) == 1
    assert [file.exists() for file in files] == [False, True, True]
    assert refused_lines.forget(folder, SCOPES["agent"]) == 2
    assert not kept(folder)
    assert not list(folder.glob("*.jsonl"))
