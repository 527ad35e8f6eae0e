from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline import text
from isotherm.pipeline.brain.index_text import text_of, text_sha256
from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.brain.writing import StoredRow, plan_put, retitled, statistics
from isotherm.pipeline.errors import RejectedError

WORDS = st.sampled_from(["kelp", "moss kelp", "fern", ""])
PARENTS, PARTS = (1, 2), (11, 12, 13)


def whole(number: int, title: str) -> NewObject:
    return NewObject(UUID(int=number), "note", title)


def part(number: int, parent: int, content: str) -> NewObject:
    return NewObject(UUID(int=number), "chunk", content=content, parent_id=UUID(int=parent))


OBJECTS = st.lists(
    st.one_of(
        st.builds(whole, st.sampled_from(PARENTS), WORDS),
        st.builds(part, st.sampled_from(PARTS), st.sampled_from(PARENTS), WORDS),
    ),
    min_size=1, max_size=5, unique_by=lambda new: new.id,
)  # fmt: skip


class Shelf:
    """Rows as a database would keep them, changed by plans alone."""

    def __init__(self) -> None:
        self.rows: dict[UUID, StoredRow] = {}
        self.documents, self.length, self.terms = 0, 0, Counter[int]()

    def put(self, new: list[NewObject], *, replace_parts: bool) -> None:
        known = [n.id for n in new if n.parent_id is None and n.id in self.rows]
        parents = known if replace_parts else retitled(new, self.rows)
        parts = [r for r in self.rows.values() if r.parent_id in parents and not r.deleted]
        plan = plan_put(new, self.rows, parts, replace_parts=replace_parts)
        change = statistics(plan)
        self.documents += change.documents
        self.length += change.length
        self.terms.update(change.terms)
        for c in plan.changes:
            self.rows[c.new.id] = self._row(
                c.new, c.words.sha256, c.words.counts, 1 + (c.stored.revision if c.stored else 0)
            )
        for r in plan.reworded:
            self.rows[r.stored.id] = replace(
                r.stored, index_sha256=r.words.sha256, terms=sorted(r.words.counts), length=r.words.length
            )
        for gone in plan.removed:
            self.rows[gone.id] = replace(gone, deleted=True, terms=(), length=0, revision=gone.revision + 1)

    def _row(self, new: NewObject, sha: bytes, counts: dict[int, int], revision: int) -> StoredRow:
        return StoredRow(
            key=new.id.int, id=new.id, kind=new.kind, title=new.title, summary=new.summary, content=new.content,
            content_type=new.content_type, properties=new.properties, parent_id=new.parent_id, position=new.position,
            revision=revision, index_sha256=sha, terms=sorted(counts), length=sum(counts.values()), vector_state="done",
            deleted=False,
        )  # fmt: skip

    def check(self) -> None:
        live = [r for r in self.rows.values() if not r.deleted]
        terms: Counter[int] = Counter()
        for row in live:
            found = text_of(row, self.rows[row.parent_id].title if row.parent_id else None)
            assert row.index_sha256 == text_sha256(found)
            assert set(row.terms) == set(text.term_counts(found))
            terms.update(row.terms)
        assert self.documents == sum(1 for r in live if r.terms)
        assert self.length == sum(r.length for r in live)
        assert {t: n for t, n in self.terms.items() if n} == dict(terms)


@given(st.lists(st.tuples(OBJECTS, st.booleans()), max_size=6))
def test_words_and_statistics_stay_true_over_any_puts(puts: list[tuple[list[NewObject], bool]]) -> None:
    shelf = Shelf()
    for new, replace_parts in puts:
        try:
            shelf.put(new, replace_parts=replace_parts)
        except RejectedError:
            assert any(n.parent_id is not None and n.parent_id not in shelf.rows for n in new)
        shelf.check()


@given(OBJECTS.filter(lambda new: all(n.parent_id is None or any(p.id == n.parent_id for p in new) for n in new)))
def test_putting_the_same_again_changes_nothing(new: list[NewObject]) -> None:
    shelf = Shelf()
    shelf.put(new, replace_parts=True)
    before = dict(shelf.rows)
    shelf.put(new, replace_parts=True)
    assert shelf.rows == before
