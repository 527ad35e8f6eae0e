from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.brain.links import NewLink
from isotherm.pipeline.brain.object_lines import BadLine, Numbered, parse
from isotherm.pipeline.brain.objects import NewObject, derived_id
from isotherm.pipeline.brain.split import Section, split, title_of
from isotherm.pipeline.identity import Namespace

NS = Namespace.of("atlas", scope="knowledge")

DOCUMENT = """# Kelp

Kelp grows fast.

## Depth ##
Twelve meters.

```
# not a heading
```

### Light
#### Season
Summer.

# Moss
"""


def test_headings_become_titles_with_those_above_them() -> None:
    assert split(DOCUMENT) == [
        Section("Kelp", "Kelp grows fast."),
        Section("Kelp > Depth", "Twelve meters.\n\n```\n# not a heading\n```"),
        Section("Kelp > Depth > Light > Season", "Summer."),
        Section("Moss", ""),
    ]
    assert title_of(DOCUMENT) == "Kelp"
    assert title_of("plain text\n# later") is None
    assert title_of(" \n") is None
    assert split("") == []


def test_long_sections_are_cut_between_paragraphs_then_sentences_then_words() -> None:
    assert [s.content for s in split("one two.\n\nthree four.\n\nfive", 22)] == ["one two.\n\nthree four.", "five"]
    assert [s.content for s in split("One is here. Two is there. Three.", 14)] == [
        "One is here.",
        "Two is there.",
        "Three.",
    ]
    assert [s.content for s in split("alpha beta gamma", 6)] == ["alpha", "beta", "gamma"]
    assert [s.content for s in split("abcdefgh", 3)] == ["abc", "def", "gh"]


LINES = st.lists(
    st.sampled_from(["# A", "## B b", "word one. Two!", "", "   ", "```", "#no", "long" * 9, "x y z"]), max_size=20
)


@given(st.one_of(st.text(), LINES.map("\n".join)), st.integers(1, 30))
def test_no_part_is_too_long_and_no_character_is_lost(text: str, most: int) -> None:
    found = split(text, most)
    assert all(len(section.content) <= most for section in found)
    titles = "".join(section.title for section in found)
    kept = "".join("".join(section.content.split()) for section in found)
    rest = iter("".join(text.split()))
    assert all(character in rest for character in kept), "in order"
    headings = sum(len(line) for line in text.splitlines() if line.startswith("#"))
    assert len("".join(text.split())) - len(kept) <= headings
    assert not (text.strip() and not found and not titles)


@given(LINES.map("\n".join).filter(lambda text: "#" not in text))
def test_text_without_headings_is_kept_whole(text: str) -> None:
    assert "".join("".join(s.content.split()) for s in split(text, 10)) == "".join(text.split())


def lines(*values: object) -> list[bytes]:
    return [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]


def test_lines_are_objects_and_links_with_ids_or_names() -> None:
    own = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    found = list(
        parse(
            lines(
                {"id": own, "kind": "note", "title": "Kelp", "properties": {"depth": 12}},
                {"id": "moss", "content": "grows"},
                b"",
                {"content": "part", "parent_id": "moss", "position": 1},
                {"source": "moss", "target": own, "label": "near", "confidence": 1},
            ),
            NS,
            "document",
        )
    )
    assert [one.number for one in found] == [1, 2, 4, 5]
    kelp, moss, part, link = (one.value for one in found if isinstance(one, Numbered))
    assert isinstance(kelp, NewObject)
    assert isinstance(moss, NewObject)
    assert isinstance(part, NewObject)
    assert isinstance(link, NewLink)
    assert (kelp.id, kelp.kind, kelp.properties) == (UUID(own), "note", {"depth": 12})
    assert (moss.id, moss.kind) == (derived_id(NS, "name", "moss"), "document")
    assert (part.parent_id, part.position) == (moss.id, 1)
    assert (link.key.source, link.key.target, link.meta.confidence) == (moss.id, kelp.id, 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not a line of JSON"),
        (b"\xff", "not a line of JSON"),
        (b"[1]", "not a JSON object"),
        ({"secretfield": 1}, "1 unknown fields"),
        ({"kind": 3}, "kind: text"),
        ({"id": 3}, "id: an id"),
        ({"position": "1"}, "position"),
        ({"position": True}, "position"),
        ({"properties": [1]}, "properties"),
        ({"source": "a", "target": "a", "label": "x"}, "itself"),
        ({"source": "a", "label": "x"}, "target: an id"),
        ({"source": "a", "target": "b", "label": "contains"}, "label"),
        ({"source": "a", "target": "b", "label": "x", "confidence": "high"}, "confidence"),
    ],
)
def test_a_bad_line_is_named_without_its_words_and_the_others_go_on(line: object, reason: str) -> None:
    bad, good = parse(lines(line, {"title": "good"}), NS, "document")
    assert isinstance(bad, BadLine)
    assert bad.number == 1
    assert reason in bad.reason
    assert "secretfield" not in bad.reason
    assert isinstance(good, Numbered)
