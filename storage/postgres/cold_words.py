"""The words of cold records: a row for each, under an inverted index, in a fraction of the room that postings take.

A word stands there with its bank before it, so that a search reads entries of its own bank only. A record's namespace is an
entry too, so that a search within a session is as cheap as the rarer of word and session.
"""

from __future__ import annotations

from isotherm.storage.postgres.namespaces import Scope, bank_id, namespace_ids, predicate

# Half of a word's number is enough within a bank: a false match could misplace a candidate of that bank, no more.
_WORD = "(({bank})::bigint << 32 | ({term} & 4294967295))"


def word(bank: str, term: str) -> str:
    """SQL of how a word of a bank stands in `cold_words.words`. Args: bank, term: SQL of their numbers."""
    return _WORD.format(bank=bank, term=term)


def having(scope: Scope, term: str) -> str:
    """SQL that keeps rows of `cold_words AS c` inside a scope that have a word; its parameters are those of `predicate`.

    The index answers it, namespace included; rows are tested by their own columns as well.
    """
    bank = bank_id(scope)
    tests = [f"c.words @> ARRAY[{word(bank, term)}]", f"c.bank_id = {bank}", predicate(scope, "c")[0]]
    if ids := namespace_ids(scope):
        tests.append(f"c.words && ARRAY(SELECT -n.id FROM unnest({ids}) AS n (id))")
    return " AND ".join(tests)
