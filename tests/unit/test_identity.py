from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace, message_id

T0 = datetime(2026, 1, 1, tzinfo=UTC)
part = st.one_of(st.sampled_from(["", ":", "a", "a:b", "a:", ":b", "b"]), st.text(max_size=4))
namespaces = st.builds(
    Namespace, agent=part, session=st.none() | part, scope=part, run=st.none() | part, tenant=st.none() | part
)


@settings(deadline=None, max_examples=300)
@given(namespaces, namespaces)
def test_tier_weak_13_namespace_keys_are_injective(first: Namespace, second: Namespace) -> None:
    assert (first.key == second.key) is (first == second)
    assert (first.bank.key == second.bank.key) is (first.bank == second.bank)


def test_tier_x22_agents_with_colons_do_not_share_a_key() -> None:
    assert Namespace.of("a", "s").key != Namespace.of("a:b", "s").key
    assert Namespace("a", session=None).key != Namespace("a", session="").key


def test_tier_t01_label_reads_like_the_specification_key_prefix() -> None:
    assert Namespace.of("bot", "sess", run="run").label == "session:sess:run:bot"


def test_tier_t02_scoping_to_a_tenant_twice_is_once() -> None:
    base = Namespace.of("assistant", "demo:assistant")
    scoped = base.for_tenant("tenant-a")
    assert (scoped.tenant, scoped.session) == ("tenant-a", "demo:assistant")
    assert scoped.for_tenant("tenant-a") == scoped


def test_tier_t03_a_tenant_never_looks_like_a_session() -> None:
    bare = Namespace.of("assistant", "tenant-a/demo:assistant")
    keys = {bare.key, bare.for_tenant("tenant-a").key, bare.for_tenant("tenant/a").key}
    assert len(keys) == 3


@pytest.mark.parametrize("field", ["agent", "session", "scope", "run", "tenant"])
@pytest.mark.parametrize("bad", ["", "  ", "a\x00", "a\n", "x" * 600])
def test_each_part_is_checked_by_name(field: str, bad: str) -> None:
    parts: dict[str, Any] = {"agent": "bot", field: bad}
    with pytest.raises(RejectedError, match=rf"^{field}: "):
        Namespace.of(**parts)


def test_a_blank_tenant_is_refused() -> None:
    with pytest.raises(RejectedError, match=r"^tenant: "):
        Namespace.of("bot").for_tenant(" ")


def test_bank_is_tenant_and_agent() -> None:
    assert (
        Namespace.of("bot", "one", tenant="t").bank == Bank("t", "bot") == Namespace.of("bot", "two", tenant="t").bank
    )


def test_message_ids_depend_on_each_argument_and_on_nothing_else() -> None:
    base = Namespace.of("bot", "s")
    ids = {
        message_id(base, T0, "user", "hi", 0),
        message_id(base.for_tenant("t"), T0, "user", "hi", 0),
        message_id(base, T0 + timedelta(microseconds=1), "user", "hi", 0),
        message_id(base, T0, "assistant", "hi", 0),
        message_id(base, T0, "user", "hi!", 0),
        message_id(base, T0, "user", "hi", 1),
    }
    assert len(ids) == 6
    assert all(len(name) == 32 for name in ids)
    elsewhere = T0.astimezone(timezone(timedelta(hours=-7)))
    assert message_id(base, elsewhere, "user", "hi", 0) == message_id(base, T0, "user", "hi", 0)
