"""JSON as chat models write it: inside prose and code fences, with trailing commas, or cut off in the middle.

What is read is either exactly what was written or nothing: no value is guessed.
"""

import json
from collections.abc import Iterator
from itertools import islice

import regex

Json = dict[str, object] | list[object]

_MAX_DEPTH = 64
_MAX_FENCES = 8

_FENCED = regex.compile(r"```[ \t]*[\w+-]*[ \t]*\r?\n(.*?)```", regex.DOTALL)
# Where JSON can start, unlike "[note]" or "{name}" in prose.
_START = regex.compile(r"\{(?=\s*+(?:[\"}]|\Z))|\[(?=\s*+(?:[\"{\[\]\d-]|(?:true|false|null)\b|[tfn][a-z]{0,3}\Z|\Z))")
_MARK = regex.compile(r'"(?:[^"\\]|\\.)*+"|["{}\[\],]', regex.DOTALL)
_TRAILING_COMMA = regex.compile(r'("(?:[^"\\]|\\.)*+")|,(?=\s*+[}\]])', regex.DOTALL)
_CLOSER = {"{": "}", "[": "]"}


def json_values(text: str) -> Iterator[Json]:
    """Yield the objects and lists a text holds, likeliest first: the whole text, code fences, then values in prose.

    Reasoning before `</think>` is not looked at. What stands inside an object or list is not yielded by itself.
    Cost: linear in the text.
    """
    text = _without_reasoning(text)
    whole = _read(text)
    if whole is not None:
        yield whole
        return
    for match in islice(_FENCED.finditer(text), _MAX_FENCES):
        value = _read(match.group(1))
        if value is not None:
            yield value
    yield from _in_prose(text)


def read_json(text: str) -> Json:
    """Return the likeliest object or list of a text.

    Raises: ValueError when there is none; the message does not repeat the text.
    """
    for value in json_values(text):
        return value
    raise ValueError("no JSON object or list")


def read_cut_off(text: str) -> Json:
    """Return a value that was cut off, with the whole items of its list; the item that was cut is left out.

    The list is the value itself or a field of it. Fields that came whole before the cut are kept. A text that was not
    cut off is read as by `read_json`.

    Raises: ValueError when no list had begun; the message does not repeat the text.
    """
    text = _without_reasoning(text)
    for start, end in _spans(text):
        value = _read(_closed(text, start)) if end is None else None
        if value is not None:
            return value
        if end is None:
            raise ValueError("no JSON list had begun")
    return read_json(text)


def _without_reasoning(text: str) -> str:
    return text.rpartition("</think>")[2]


def _in_prose(text: str) -> Iterator[Json]:
    for start, end in _spans(text):
        value = None if end is None else _read(text[start:end])
        if value is not None:
            yield value


def _spans(text: str) -> Iterator[tuple[int, int | None]]:
    """Yield where values start and end; the end is None for one that is still open when the text ends, the last."""
    after: int | None = 0
    while after is not None:
        found = _START.search(text, after)
        if found is None:
            return
        after = _end(text, found.start())
        yield found.start(), after


def _end(text: str, start: int) -> int | None:
    """Return where the value that starts here ends, or cannot go on; None when the text ends before it."""
    stack: list[str] = []
    for match in _MARK.finditer(text, start):
        mark = match.group()
        if mark == '"':
            return None
        if not _step(stack, mark) or not stack:
            return match.end()
    return None


def _closed(text: str, start: int) -> str:
    """Return an open value up to its last whole item, closed; empty when no list had begun."""
    stack: list[str] = []
    cut, closers = start, ""
    for match in _MARK.finditer(text, start):
        mark = match.group()
        if mark == '"':  # the text ends inside this string
            break
        _step(stack, mark)
        if _between_items(stack, mark):
            cut = match.start() if mark == "," else match.end()
            closers = "".join(reversed(stack))
    return text[start:cut] + closers


def _step(stack: list[str], mark: str) -> bool:
    """Follow one mark; false when no value can hold it here."""
    if mark in _CLOSER:
        stack.append(_CLOSER[mark])
    elif mark in "}]":
        return bool(stack) and stack.pop() == mark
    return len(stack) <= _MAX_DEPTH


def _between_items(stack: list[str], mark: str) -> bool:
    """Whether what was read so far can end here: inside a list at the top, or in a field of the object at the top."""
    in_list = stack in (["]"], ["}", "]"])
    after_list = stack == ["}"] and mark == "]"
    return after_list or (in_list and mark in ",[]}")


def _read(text: str) -> Json | None:
    for candidate in (text, _TRAILING_COMMA.sub(lambda match: match.group(1) or "", text)):
        try:
            value = json.loads(candidate, strict=False, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict | list) else None
    return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
