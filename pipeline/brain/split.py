"""A document into parts that are each about one thing: by headings first, then by paragraphs, sentences and words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

PART_CHARS: Final = 1_000

_HEADING = re.compile(r"^(#{1,6})[ \t]+(\S.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r"^[ \t]{0,3}(```|~~~)")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
_WORD = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document: the headings above it, outermost first joined by ` > `, and its text."""

    title: str
    content: str


def split(text: str, most: int = PART_CHARS) -> list[Section]:
    """Split a text, Markdown or plain.

    Words stay in order and none is lost; headings become titles. A section that is short enough is one part; a longer one
    is cut between paragraphs, a long paragraph between sentences, a long sentence between words, a long word anywhere.
    Lines inside code fences are never headings.

    Args: most: characters of a part, 1 or more.
    """
    found = []
    for title, body in _sections(text):
        found += [Section(title, part) for part in _packed(body, max(most, 1))]
        if not body.strip() and title:
            found.append(Section(title, ""))
    return _without_empty_parents(found)


def title_of(text: str) -> str | None:
    """The first heading of a text, None when it has none before its first paragraph."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    match = _HEADING.match(first)
    return match.group(2) if match else None


def _sections(text: str) -> Iterator[tuple[str, str]]:
    above: list[tuple[int, str]] = []
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark and fence in {"", mark.group(1)}:
            fence = "" if fence else mark.group(1)
        heading = None if fence or mark else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        if above or "".join(lines).strip():
            yield _joined(above), "\n".join(lines)
        depth = len(heading.group(1))
        above = [*((d, t) for d, t in above if d < depth), (depth, heading.group(2))]
        lines = []
    yield _joined(above), "\n".join(lines)


def _joined(above: list[tuple[int, str]]) -> str:
    return " > ".join(title for _, title in above)


def _without_empty_parents(found: list[Section]) -> list[Section]:
    """A heading with nothing below it but other headings is in their titles already."""
    return [
        one
        for at, one in enumerate(found)
        if one.content or not (at + 1 < len(found) and found[at + 1].title.startswith(one.title + " > "))
    ]


def _packed(body: str, most: int) -> list[str]:
    """Pieces of a body, as many joined as fit."""
    parts: list[str] = []
    for piece, between in _pieces(body, most):
        if parts and len(parts[-1]) + len(between) + len(piece) <= most:
            parts[-1] += between + piece
        else:
            parts.append(piece)
    return parts


def _pieces(body: str, most: int) -> Iterator[tuple[str, str]]:
    """Texts no longer than `most`, each with what stands between it and the one before."""
    for paragraph in _cut(_PARAGRAPH, body):
        between = "\n\n"
        for sentence in [paragraph] if len(paragraph) <= most else _cut(_SENTENCE, paragraph):
            for words in [sentence] if len(sentence) <= most else _cut(_WORD, sentence):
                for at in range(0, len(words), most):
                    yield words[at : at + most], between
                    between = " "


def _cut(at: re.Pattern[str], text: str) -> list[str]:
    return [piece.strip() for piece in at.split(text) if piece.strip()]
