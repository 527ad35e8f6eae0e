"""Every verb of every surface asked with a namespace that is missing, blank, somebody else's or looks like a wildcard."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from commanding import isotherm
from inprocess import drive

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.records import NewRecord
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers
from isotherm.tasks.produce_interest import runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("filled")

OURS = Namespace.of("atlas", "s1", tenant="acme")
SECRET = "xyzzyplugh"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OBJECT = UUID(int=(1 << 100) + 7)
OTHER_OBJECT = UUID(int=(1 << 100) + 8)

# Names that some store would take for "all" or for the neighbor's.
FOREIGN = {
    "another tenant": Namespace.of("atlas", "s1", tenant="zenith"),
    "no tenant": Namespace.of("atlas", "s1"),
    "another agent": Namespace.of("boreas", "s1", tenant="acme"),
    "wildcard agent": Namespace.of("*", "s1", tenant="acme"),
    "pattern": Namespace.of("%", "%", tenant="%"),
    "wildcard tenant": Namespace.of("atlas", "s1", tenant="*"),
    "underscores": Namespace.of("_____", "__", tenant="____"),
    "null by name": Namespace.of("atlas", "s1", tenant="null"),
    "cut off": Namespace.of("atla", "s1", tenant="acme"),
    "upper case": Namespace.of("Atlas", "s1", tenant="acme"),
}
BLANK = {
    "no agent": {"agent": None},
    "empty agent": {"agent": ""},
    "blank agent": {"agent": "  "},
    "empty tenant": {"tenant": ""},
    "empty session": {"session": ""},
    "a NUL": {"agent": "at\0las"},
    "a surrogate": {"tenant": "\ud800"},
    "no text": {"agent": 7},
    "too long": {"agent": "a" * 10_000},
}


@pytest.fixture(scope="module", params=[False, True], ids=["predicates", "and row security"])
def row_security(request: pytest.FixtureRequest) -> bool:
    """All of it with and without the second lock."""
    return bool(request.param)


@pytest.fixture(scope="module")
def filled(kept_storage: Storage) -> Storage:
    """A record, an object with an edge, an interest and a contradiction, all of one agent of one tenant."""
    producers.remember(OURS, f"{SECRET} in a record", record_id="r")
    producers.put(OURS, "note", object_id=OBJECT, title=f"{SECRET} title", content=f"{SECRET} text")
    producers.put(OURS, "note", object_id=OTHER_OBJECT, title=f"{SECRET} other")
    producers.link(OURS, OBJECT, OTHER_OBJECT, "near", note=SECRET)
    producers.ingest_session(OURS, [line(OURS, f"I prefer {SECRET} tea over coffee.")])
    drive()
    assert producers.interests(OURS.bank)
    return kept_storage


def line(namespace: Namespace, text: str) -> TranscriptLine:
    return TranscriptLine(1, namespace.agent, str(namespace.session), namespace.tenant, "user", text, NOON)


def tail(namespace: Namespace) -> Any:
    return storage.open().tier.tail(namespace)


READS: dict[str, Callable[[Namespace], Any]] = {
    "get": lambda ns: producers.get(ns, "r"),
    "get whole": lambda ns: producers.get(ns, "r", whole=True),
    "explain": lambda ns: producers.explain(ns, "r", query=SECRET),
    "recall": lambda ns: producers.recall(ns, SECRET, touch=False),
    "recall of a bank": lambda ns: producers.recall(ns.bank, SECRET, touch=False),
    "recall of sessions": lambda ns: producers.recall(ns.bank, SECRET, sessions=["s1"], touch=False),
    "recall_context": lambda ns: producers.recall_context(ns, SECRET, touch=False),
    "list_all": producers.list_all,
    "list_all of a bank": lambda ns: producers.list_all(ns.bank),
    "export": lambda ns: list(producers.export(ns)),
    "export of a bank": lambda ns: list(producers.export(ns.bank)),
    "plan": producers.plan,
    "tail": tail,
    "search": lambda ns: producers.search(ns, SECRET),
    "find_exact": lambda ns: producers.find_exact(ns, str(OBJECT)),
    "find_objects": lambda ns: producers.find_objects(ns, SECRET),
    "find_links": lambda ns: producers.find_links(ns, "near", SECRET),
    "read": lambda ns: producers.read(ns, OBJECT),
    "list_children": lambda ns: producers.list_children(ns, OBJECT),
    "expand": lambda ns: producers.expand(ns, OBJECT, ["near"]),
    "interests": lambda ns: producers.interests(ns.bank),
    "recall_interests": lambda ns: producers.recall_interests(ns.bank, SECRET),
    "interest_context": lambda ns: producers.interest_context(ns.bank, SECRET),
    "contradictions": lambda ns: producers.contradictions(ns.bank, resolved=True),
    "themes": lambda ns: storage.open().interest.themes(ns.bank),
    "log": lambda ns: storage.open().interest.log(ns.bank),
    "evidence": lambda ns: list(storage.open().interest.evidence(ns.bank, a_point()).values()),
    "point": lambda ns: storage.open().interest.point(ns.bank, a_point()[0]),
}
# Verbs over what is there: somebody else's is not.
CHANGES: dict[str, Callable[[Namespace], Any]] = {
    "update": lambda ns: producers.update(ns, "r", content="taken over"),
    "pin": lambda ns: producers.pin(ns, ["r"]),
    "unpin": lambda ns: producers.unpin(ns, ["r"]),
    "restore": lambda ns: producers.restore(ns, ["r"]),
    "soft_delete": lambda ns: producers.soft_delete(ns, OBJECT),
    "unlink": lambda ns: producers.unlink(ns, OBJECT, OTHER_OBJECT, "near"),
    "link": lambda ns: producers.link(ns, OBJECT, OTHER_OBJECT, "far"),
    "undo_change": lambda ns: producers.undo_change(ns.bank, a_change()),
    "resolve_contradiction": lambda ns: producers.resolve_contradiction(ns.bank, uuid4()),
    "reopen_contradiction": lambda ns: producers.reopen_contradiction(ns.bank, uuid4()),
}
# Verbs that make what is not there: with a name that is none they must not.
MAKES: dict[str, Callable[[Namespace], Any]] = {
    "remember": lambda ns: producers.remember(ns, "kelp"),
    "remember_records": lambda ns: producers.remember_records(ns, [NewRecord("x", "kelp", NOON)]),
    "remember_messages": lambda ns: producers.remember_messages(
        [TranscriptLine(1, ns.agent, str(ns.session), ns.tenant, "user", "kelp", NOON)]
    ),
    "ingest_session": lambda ns: producers.ingest_session(ns, [line(OURS, "kelp")]),
    "reconcile": producers.reconcile,
    "put": lambda ns: producers.put(ns, "note", title="kelp"),
    "forget": producers.forget,
    "forget ids": lambda ns: producers.forget(ns, ["r"]),
    "forget_objects": lambda ns: producers.forget_objects(ns, [OBJECT]),
    "forget_interests": lambda ns: producers.forget_interests(ns.bank, [OBJECT]),
    "forget_session": lambda ns: producers.forget_session(ns.bank, ns.session or ""),
}
OF_BANK = {"recall of a bank", "recall of sessions", "list_all of a bank", "export of a bank", "interests", "recall_interests",
           "forget_interests", "interest_context", "contradictions", "themes", "log", "evidence", "point", "undo_change",
           "resolve_contradiction", "reopen_contradiction"}  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    "recall": ["recall", "tea record"],
    "get": ["get", "r"],
    "explain": ["explain", "r"],
    "export": ["export"],
}


def a_point() -> list[UUID]:
    return [row[0] for row in fetch_all("SELECT id FROM interest_points LIMIT 1")]


def a_change() -> int:
    return int(fetch_all("SELECT min(id) FROM interest_log")[0][0])


def owned() -> list[Any]:
    """All that is stored of ours, and how many namespaces there are."""
    tables = ("tier_records", "brain_objects", "brain_edges", "interest_points", "interest_evidence", "interest_log")
    rows = [fetch_all(f"SELECT md5(t::text) FROM {table} AS t ORDER BY 1") for table in tables]
    return [*rows, fetch_all("SELECT count(*) FROM namespaces"), fetch_all("SELECT count(*) FROM banks")]


@pytest.mark.parametrize("verb", READS)
def test_no_read_answers_for_another_name(verb: str) -> None:
    call = READS[verb]
    assert verb in {"plan", "contradictions", "list_children", "themes"} or shows(call(OURS)), "the owner finds it"
    for named, namespace in FOREIGN.items():
        try:
            answer = call(namespace)
        except RejectedError:
            continue
        assert not shows(answer), named


def shows(answer: Any) -> bool:
    return any(sign in repr(answer) for sign in (SECRET, str(OBJECT), "'r'", str(a_point()[0])))


@pytest.mark.parametrize("verb", CHANGES)
def test_no_change_reaches_another_name(verb: str) -> None:
    before = owned()
    for named, namespace in FOREIGN.items():
        with pytest.raises(RejectedError):
            CHANGES[verb](namespace)
        assert owned() == before, named


@pytest.mark.parametrize("verb", sorted({**READS, **CHANGES, **MAKES}))
def test_name_that_is_none_is_refused_by_every_verb_and_makes_nothing(verb: str) -> None:
    before = owned()
    for wrong in BLANK.values():
        if "session" in wrong and verb in OF_BANK:
            continue
        parts: dict[str, Any] = {"agent": "atlas", "session": "s1", "tenant": "acme", **wrong}
        with pytest.raises(RejectedError):
            {**READS, **CHANGES, **MAKES}[verb](Namespace(**parts))
    assert owned() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_shows_what_another_name_has(command: str) -> None:
    ours = isotherm(*COMMANDS[command], *options(OURS))
    assert ours.returncode == 0, ours.stderr
    assert SECRET in ours.stdout or command == "explain"
    for named in ("another tenant", "no tenant", "wildcard agent", "pattern", "empty agent", "empty tenant"):
        blank: dict[str, Any] = {"agent": "atlas", "session": "s1", "tenant": "acme", **BLANK.get(named, {})}
        done = isotherm(*COMMANDS[command], *options(FOREIGN.get(named) or Namespace(**blank)))
        assert SECRET not in done.stdout + done.stderr, named
        assert named in FOREIGN or "must not be blank" in done.stderr


def options(namespace: Namespace) -> list[str]:
    tenant = [] if namespace.tenant is None else ["--tenant", namespace.tenant]
    return ["--agent", namespace.agent, "--session", str(namespace.session), *tenant]


def test_lists_over_a_tenant_take_a_missing_one_for_none_and_never_for_all() -> None:
    lists: list[Callable[[str | None], list[Any]]] = [
        producers.list_namespaces,
        lambda tenant: list(producers.export(None, tenant=tenant)),
        producers.set_aside,
        lambda tenant: runs(tenant=tenant),
    ]
    for call in lists:
        for tenant in ("*", "%", "zenith"):
            assert call(tenant) == []
        assert SECRET not in repr(call(None))
        with pytest.raises(RejectedError):
            call(" ")
    assert [ns.tenant for ns in producers.list_namespaces("acme")] == ["acme"]


# The owner of what is stored


def test_owner_named_in_metadata_or_a_key_changes_nothing() -> None:
    before = fetch_all("SELECT count(*) FROM namespaces")
    poison = {"tenant": "zenith", "namespace": "boreas", "namespace_id": 1, "bank_id": 1, "agent": "boreas"}
    producers.update(OURS, "r", metadata=poison)
    producers.put(OURS, "note", object_id=OTHER_OBJECT, title=f"{SECRET} other", properties=poison)
    assert producers.get(OURS, "r").namespace == OURS
    assert fetch_all("SELECT count(DISTINCT (namespace_id, bank_id)) FROM tier_records") == [(1,)]
    assert fetch_all("SELECT count(DISTINCT (namespace_id, bank_id)) FROM brain_objects") == [(1,)]
    assert fetch_all("SELECT count(*) FROM namespaces") == before
    drive()


KEYED: dict[str, Callable[[Namespace], Any]] = {
    "remember": lambda ns: producers.remember(ns, "kelp", key="one key"),
    "put": lambda ns: producers.put(ns, "note", title="kelp", key="one key"),
    "forget": lambda ns: producers.forget(ns, ["never there"], key="one key"),
}


@pytest.mark.parametrize("verb", KEYED)
def test_one_key_in_two_namespaces_is_two_operations(verb: str) -> None:
    spaces = [Namespace.of(agent, session, tenant=tenant)
              for agent, session, tenant in (("k", "1", None), ("k", "2", None), ("k", "1", "k"), ("kk", "1", None))]  # fmt: skip
    first = [KEYED[verb](ns) for ns in spaces]
    again = [KEYED[verb](ns) for ns in spaces]
    assert len({a.operation_id for a in first}) == len(spaces)
    assert all(a.new for a in first)
    assert [(a.operation_id, a.new) for a in again] == [(a.operation_id, False) for a in first]
    assert Bank(None, "k") == spaces[0].bank
    drive()
