from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import check_brain, settle
from typer.testing import CliRunner

from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from isotherm.storage.opened import Storage

GUIDE = """# Kelp guide

Kelp grows fast.

## Depth

Twelve meters at most.

## Light

It needs light.
"""


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(autouse=True)
def checked(memory: Storage) -> Iterator[None]:
    assert memory
    yield
    check_brain()


def isotherm(*arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; returns its exit code and what it printed."""
    ended = CliRunner(env={"COLUMNS": "160"}).invoke(app, arguments)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def answer(*arguments: str) -> Any:
    code, out, err = isotherm(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_document_is_put_searched_and_expanded(tmp_path: Path) -> None:
    file = tmp_path / "guide.md"
    file.write_text(GUIDE)
    done = answer("put", str(file))
    assert (done["parts"], done["written"], done["removed"], done["bad_lines"]) == (3, 4, 0, [])
    found = answer("search", "twelve meters")
    [best] = found["objects"]
    assert (best["id"], best["title"], best["kind"]) == (done["objects"][0], "Kelp guide", "document")
    assert next((e["title"], e["snippet"], e["position"]) for e in best["evidence"]) == (
        "Depth",
        "Twelve meters at most.",
        1,
    )
    assert best["legs"]["lexical"]["added"] == 1
    around = answer("expand", best["id"])
    assert around["mode"] == "mixed"
    assert [item["title"] for item in around["objects"]] == ["", "Depth", "Light"]
    part = around["objects"][1]["id"]
    assert next(item["id"] for item in answer("expand", part)["objects"]) == best["id"]
    for command in (("search", "twelve"), ("expand", best["id"])):
        code, out, _ = isotherm(*command)
        assert code == 0
        assert "Depth" in out or "Kelp guide" in out


def test_a_document_put_again_replaces_its_parts(tmp_path: Path) -> None:
    file = tmp_path / "guide.md"
    file.write_text(GUIDE)
    first = answer("put", str(file))
    assert (answer("put", str(file))["written"], answer("put", str(file))["objects"]) == (0, first["objects"])
    file.write_text(GUIDE.partition("## Light")[0].replace("Twelve", "Thirty"))
    again = answer("put", str(file))
    assert (again["objects"], again["written"], again["removed"]) == (first["objects"], 1, 1)
    assert answer("search", "twelve")["objects"] == []
    assert len(answer("search", "thirty")["objects"]) == 1


def test_lines_of_json_are_objects_and_links_and_bad_ones_are_named(tmp_path: Path) -> None:
    file = tmp_path / "things.jsonl"
    rows = [
        {"content": "twelve meters", "parent_id": "kelp"},
        {"source": "kelp", "target": "moss", "label": "near", "note": "same bay"},
        {"id": "kelp", "title": "Kelp", "properties": {"depth": 12}},
        {"id": "moss", "kind": "plant", "title": "Moss"},
    ]
    file.write_text("\n".join([*map(json.dumps, rows), "{broken"]))
    code, out, _ = isotherm("put", str(file), "--json")
    done = json.loads(out)
    assert code == 1
    assert (len(done["objects"]), done["parts"], done["links"]) == (2, 1, 1)
    assert done["bad_lines"] == [{"file": "things.jsonl", "line": 5, "reason": "not a line of JSON"}]
    settle()
    [kelp] = answer("search", "twelve")["objects"]
    assert [o["title"] for o in answer("search", "moss", "--kind", "plant")["objects"]] == ["Moss"]
    around = answer("expand", kelp["id"], "--label", "near")
    assert [(o["title"], o["relations"][0]["note"]) for o in around["objects"]] == [("Moss", "same bay")]
    assert answer("expand", kelp["id"], "--label", "near", "--direction", "in")["objects"] == []
    _, out, _ = isotherm("expand", kelp["id"])
    assert "→ near" in out


def test_kinds_are_stored_and_shown_and_what_has_them_is_found(tmp_path: Path) -> None:
    assert answer("kinds") == {"kinds": []}
    kinds = tmp_path / "kinds.json"
    fields = [{"name": "depth", "type": "number", "required": True}, {"name": "code", "type": "string"}]
    kinds.write_text(json.dumps([{"kind": "plant", "description": "what grows", "fields": fields}]))
    assert answer("kinds", "--apply", str(kinds)) == answer("kinds")
    assert [f["operators"] for f in answer("kinds")["kinds"][0]["fields"]] == [
        ["eq", "in", "gt", "gte", "lt", "lte"],
        ["eq", "in"],
    ]
    code, out, _ = isotherm("kinds")
    assert (code, "depth: number!" in out) == (0, True)
    rows = tmp_path / "plants.jsonl"
    rows.write_text(
        "\n".join(
            json.dumps(
                {"id": name, "kind": "plant", "title": name, "properties": {"depth": depth, "code": f"P-{depth}"}}
            )
            for name, depth in (("kelp", 12), ("moss", 0))
        )
    )
    answer("put", str(rows))
    names = lambda *more: [o["title"] for o in answer("find", *more, "--kind", "plant")["objects"]]  # noqa: E731
    assert names("P-12")[0] == "kelp"
    assert names("Kelp", "--where", "depth>=12") == ["kelp"]
    assert names("kelp", "--where", "depth<12", "--where", "code=P-0") == []
    assert names("plant moss", "--objects", "-w", "depth<=0") == ["moss"]
    for where, reason in (("depth", "name=value"), ("color=red", "color"), ("depth=deep", "number")):
        code, _, err = isotherm("find", "kelp", "-k", "plant", "-w", where)
        assert (code, reason in err) == (1, True)
    for broken, reason in (("{", "not JSON"), ("{}", "a list"), ('[{"kind": ""}]', "name")):
        kinds.write_text(broken)
        code, _, err = isotherm("kinds", "--apply", str(kinds))
        assert (code, reason in err) == (1, True)


def test_an_object_is_shown_whole_and_edges_are_found_by_their_notes(tmp_path: Path) -> None:
    file = tmp_path / "guide.md"
    file.write_text(GUIDE)
    [guide] = answer("put", str(file))["objects"]
    rows = tmp_path / "things.jsonl"
    rows.write_text(
        json.dumps({"id": "moss", "title": "Moss", "content": "grows [slowly]", "properties": {"color": "[green]"}})
        + "\n"
        + json.dumps({"source": guide, "target": "moss", "label": "near", "note": "same rocky bay"})
    )
    [moss] = answer("put", str(rows))["objects"]
    shown = answer("get", guide)
    assert (shown["title"], len(shown["parts"]), shown["revision"]) == ("Kelp guide", 3, 1)
    code, out, _ = isotherm("get", moss)
    assert (code, "grows [slowly]" in out, "[green]" in out) == (0, True, True)
    assert "Depth" in isotherm("get", guide)[1]
    [link] = answer("links", "near", "bays")["links"]
    assert (link["source"]["id"], link["target"]["title"], link["note"]) == (guide, "Moss", "same rocky bay")
    assert "same rocky bay" in isotherm("links", "near", "bay")[1]
    for command in (("get", "7d444840-9dc0-11d1-b245-5ffdce74fad2"), ("get", "moss"), ("links", "near", " ")):
        assert isotherm(*command)[0] == 1
    settle()


def test_agents_and_tenants_have_knowledge_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("kelp grows")
    answer("put", str(file), "--agent", "atlas", "--title", "Ours")
    answer("put", str(file), "--agent", "atlas", "--tenant", "t", "--title", "Theirs", "--kind", "memo")
    assert [o["title"] for o in answer("search", "kelp", "--agent", "atlas")["objects"]] == ["Ours"]
    theirs = answer("search", "kelp", "--agent", "atlas", "--tenant", "t")
    assert [(o["title"], o["kind"]) for o in theirs["objects"]] == [("Theirs", "memo")]
    assert theirs["namespace"] != answer("search", "kelp", "--agent", "atlas")["namespace"]
    assert answer("search", "kelp")["objects"] == []
    assert fetch_all("SELECT DISTINCT scope FROM namespaces") == [("knowledge",)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("search", " "), "blank"),
        (("expand", "kelp"), "UUID"),
        (("expand", "7d444840-9dc0-11d1-b245-5ffdce74fad2"), "no object"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(arguments: tuple[str, ...], reason: str) -> None:
    code, _, err = isotherm(*arguments)
    assert code == 1
    assert reason in err


def test_a_title_is_for_one_file(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("kelp")
    code, _, err = isotherm("put", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--title", "T")
    assert (code, "single file" in err) == (1, True)
