"""Words of cold records: where they stand, when they change their form, and what a search reads of them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from inprocess import drive
from tiering import NS, archive, restore, store, tiers

from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import tier_candidates, tier_held
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.tier_candidates import Quotas
from isotherm.tasks import producers

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def forms() -> dict[str, tuple[int, int]]:
    """By record: how many words it has as postings, and how many in its own row."""
    rows = fetch_all(
        """SELECT r.id, (SELECT count(*) FROM tier_postings AS p WHERE p.record_key = r.key),
           coalesce((SELECT cardinality(c.words) - 1 FROM cold_words AS c WHERE c.record_key = r.key), 0)
           FROM tier_records AS r ORDER BY r.id"""
    )
    return {i: (postings, words) for i, postings, words in rows}


def test_words_change_their_form_with_the_move(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(0)), ("b", timedelta(0)), tier=Tier.WARM, content="kelp forest")
    archive("a")
    assert forms() == {"a": (0, 2), "b": (2, 0)}
    restore("a")
    assert forms() == {"a": (2, 0), "b": (2, 0)}
    archive("b")
    archive("a")
    producers.update(NS, "a", metadata={"searchable": "moss"})
    drive()
    assert forms() == {"a": (0, 1), "b": (0, 2)}, "it stays cold and is found by other words"
    producers.update(NS, "a", content="reed sedge")
    drive()
    assert forms()["a"][1] == 0, "a new text makes it warm"
    producers.forget(NS, ["b"])
    assert list(forms()) == ["a"]
    accepted = fetch_all("SELECT counts ->> 'words' FROM erasures")
    drive()
    assert accepted == [("2",)]


def test_a_move_to_cold_that_fails_leaves_the_words_where_they_were(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory
    store(("a", timedelta(0)), tier=Tier.WARM)
    monkeypatch.setattr(tier_held, "free", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        archive("a")
    assert forms() == {"a": (1, 0)}
    assert tiers() == {"a": Tier.WARM}


def test_frequent_words_propose_warm_records_first_and_cold_ones_up_to_the_quota(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory
    store(*((f"r{n}", timedelta(0)) for n in range(6)), tier=Tier.WARM)
    archive("r0", "r1", "r2")

    def proposed(limit: int, *among: Tier) -> set[str]:
        monkeypatch.setattr(tier_candidates, "PER_WORD", limit)
        with connection() as conn:
            found = tier_candidates.candidates(conn, Scope(namespace=NS), "kelp", among or list(Tier), Quotas(0, 10))
        return {one.id for one in found.candidates}

    assert proposed(3) == {"r3", "r4", "r5"}
    assert {"r3", "r4", "r5"} < proposed(5)
    assert len(proposed(5)) == 5
    assert proposed(9) == {f"r{n}" for n in range(6)}
    assert proposed(9, Tier.COLD) == {"r0", "r1", "r2"}
    assert proposed(9, Tier.WARM, Tier.HOT) == {"r3", "r4", "r5"}
