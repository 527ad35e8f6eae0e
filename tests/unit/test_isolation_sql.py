"""Every statement over a table that has an owner names the owner, finds rows by their number, or is excused with a reason."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import isotherm.storage.postgres as package

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(package.__file__).parent
STORAGE = ROOT.parent
_TABLE = re.compile(r"CREATE TABLE (\w+) \((.*?)\n\);", re.DOTALL)
_OWNER_COLUMN = re.compile(r"^\s+(namespace_id|bank_id|namespace) ", re.MULTILINE)
_STATEMENT = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM)\b")
_TOUCHED = re.compile(r"\b(?:FROM|JOIN|UPDATE|INTO|USING)\s+(\w+)")
# An owner's column, or the place in a template where `predicate` and its like are put.
_OWNED = re.compile(r"\b(namespace_id|bank_id|namespace)\b|\{(scope|allowed|which|within|in_bank|depth|cold|of_a)\}")
_OWNER_ITSELF = re.compile(r"\bid = (ANY\()?%|\bid IN \(|\btenant\b")
# Numbers that the database gave: no caller can choose one, and the statement that found it named the owner.
_NUMBER = re.compile(r"\b(?:\w\.)?(key|record_key|object_key|log_id)\s*(=|<>|IN\b)|\bid = ANY\(%\(evidence\)s\)")

# Module, and tables of it that may be asked without an owner: for whom, or how the rows were found.
_ALL = "for the operator, over all owners: counts and ids, no text"
_TICK = "a tick, over all owners: due work, its rows by number"
_WORK = "work by its random id, which is the receipt of whoever asked for it"
_POINT = "points by ids that a statement of the same transaction read under their bank"
EXCUSED = {
    ("health", "brain_drift"): _ALL,
    ("health", "brain_objects interest_points tier_vectors"): _ALL,
    ("health", "operations"): _ALL,
    ("health", "cold_blobs"): _ALL,
    ("postgres.cold_blobs", "cold_blobs"): "the collector of blobs, by number",
    ("postgres.interest_changes", "interest_evidence"): _POINT,
    ("postgres.interest_changes", "interest_points"): _POINT,
    ("postgres.interest_changes", "interest_edges"): _POINT,
    ("postgres.interest_read", "interest_contradictions"): "a part of a statement that is put beside its predicate",
    ("postgres.interest_read", "interest_evidence"): "a part of a statement that is put beside its predicate",
    ("postgres.interest_tend", "interest_points"): _POINT,
    ("postgres.interest_write", "interest_points"): _POINT,
    ("postgres.interest_write", "interest_evidence"): _POINT,
    ("postgres.interest_write", "interest_contradictions"): _POINT,
    ("postgres.tier_forget_interest", "interest_contradictions"): _POINT,
    ("postgres.tier_forget_interest", "interest_points"): _POINT,
    ("postgres.tier_forget_interest", "interest_evidence interest_points"): _POINT,
    ("postgres.interest_usage", "operations"): _WORK,
    ("postgres.operations", "operations"): _WORK,
    ("postgres.steps", "operations"): _WORK,
    ("postgres.steps_together", "operations"): _WORK,
    ("postgres.tier_reembed", "tier_records"): _TICK,
    ("postgres.tier_forget_ledgers", "operations"): _WORK,
    ("postgres.outbox", "operations"): "the relay: messages of all owners, which hold ids only",
    ("postgres.sweep", "operations"): "the sweeper: work of all owners, by age",
    ("tier_stores.folder_index", "namespaces"): "a store's own file, and not this database",
}


def owned_tables() -> set[str]:
    texts = [path.read_text() for path in sorted((ROOT / "migrations").glob("*.sql"))]
    return {name for text in texts for name, body in _TABLE.findall(text) if _OWNER_COLUMN.search("\n" + body)}


def statements() -> Iterator[tuple[str, int, str]]:
    """Module, line and text of whatever looks like SQL; parts that the module knows are filled in."""
    for path in sorted(STORAGE.rglob("*.py")):
        module = ".".join(path.relative_to(STORAGE).with_suffix("").parts)
        if module.startswith("graph.helix"):  # another server, whose client may not be here
            continue
        known = vars(importlib.import_module(f"isotherm.storage.{module}")) if module != "__init__" else {}
        tree = ast.parse(path.read_text())
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            text = None if id(node) in parts else _text(node, known)
            if text and _STATEMENT.search(text):
                yield module, node.lineno, text  # type: ignore[attr-defined]  # literals have lines


def _text(node: ast.AST, known: dict[str, Any]) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(str(v.value) if isinstance(v, ast.Constant) else _filled(v, known) for v in node.values)


def _filled(part: ast.expr, known: dict[str, Any]) -> str:
    assert isinstance(part, ast.FormattedValue)
    name = part.value
    if isinstance(name, ast.Call) and isinstance(name.func, ast.Attribute) and name.func.attr == "format":
        name = name.func.value
    if isinstance(name, ast.Name) and isinstance(known.get(name.id), str):
        return str(known[name.id])
    return "{" + ast.unparse(name) + "}"


def bare(text: str, owned: set[str]) -> str | None:
    """The tables that a statement asks without their owner, None when there are none."""
    touched = {table for table in _TOUCHED.findall(text) if table in owned}
    if not touched or _OWNED.search(text) or _NUMBER.search(text):
        return None
    if touched <= {"namespaces", "banks"} and _OWNER_ITSELF.search(text):
        return None
    return " ".join(sorted(touched))


def test_every_statement_names_the_owner_of_what_it_asks() -> None:
    owned = owned_tables()
    assert {"tier_records", "brain_objects", "interest_points", "graph_nodes"} <= owned
    found: dict[tuple[str, str], list[int]] = {}
    read = 0
    for module, line, text in statements():
        read += 1
        tables = bare(text, owned)
        if tables is not None:
            found.setdefault((module, tables), []).append(line)
    assert read > 300, "the statements are not found any more"
    assert {at: lines for at, lines in found.items() if at not in EXCUSED} == {}
    assert set(EXCUSED) - set(found) == set(), "an excuse that nothing needs"


def test_a_statement_without_its_owner_is_found() -> None:
    owned = owned_tables()
    assert bare("SELECT content FROM tier_records WHERE id = %(id)s", owned) == "tier_records"
    assert bare("SELECT content FROM tier_records WHERE namespace_id = %(ns)s AND id = %(id)s", owned) is None
    assert bare("UPDATE brain_objects SET title = '' WHERE title = %s", owned) == "brain_objects"
