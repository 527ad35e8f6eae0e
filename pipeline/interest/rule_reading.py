"""How the rule judge reads a statement: words, codes, clauses, numbers and slots."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import regex

from isotherm.pipeline.interest import rule_words as known
from isotherm.pipeline.text import words

_WORD = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*+"
# A word with its joiners, a signed number, or a sign that is no punctuation: "C" is not "C++", "5" is not "-5" or "5 %".
_TOKEN = regex.compile(
    rf"(?V1)(?:(?<![\w.)\]])-(?=\d))?{_WORD}(?:['._/:@+\-]{_WORD})*+(?:\+\+|\#)?|[%&@\#*]|[^\s\p{{P}}\p{{C}}]"
)
_JOINER = regex.compile(r"['._/:@+\-]")
_CLAUSE_END = regex.compile(r"[.;,!?](?=\s|$)|\b(?:because|but|although|while|whereas)\b", regex.IGNORECASE)
_NUMBER = regex.compile(r"v?(-?\d+(?:[.,]\d+)*)")
_WITH_UNIT = regex.compile(r"(-?\d+(?:[.,]\d+)*)(\p{L}+)")
_CLOCK_TIME = regex.compile(r"\d{1,2}:\d{2}")
_PLAIN = str.maketrans({"\u2019": "'", "\u02bc": "'", "\u2212": "-", "\u2010": "-", "\u2011": "-"})
_ENDINGS = ("'s", "'m", "'d", "'re", "'ve", "'ll")
_PLURAL_MIN = 4


@dataclass(frozen=True, slots=True)
class Statement:
    """One interest as it was stated: what it is about, why it counts, and words for it."""

    topic: str
    reason: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A word, folded; `coded` when it has a digit, `acronym` when it was written in capitals."""

    text: str
    coded: bool = False
    acronym: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that is said: the topic with one part of the reason.

    Args: tokens: all of its words; content: stems of what it is about; negative: whether it says that it is not so;
        numbers: what a number counts or belongs to → the number.
    """

    tokens: frozenset[str]
    content: frozenset[str]
    negative: bool
    numbers: dict[tuple[str, str], str]

    @property
    def weekdays(self) -> frozenset[str]:
        """Days that are named, in the singular."""
        return frozenset(known.WEEKDAYS[token] for token in self.tokens & known.WEEKDAYS.keys())


@dataclass(frozen=True, slots=True)
class Reading:
    """A statement, read.

    Args: spelling: the whole text, folded; topic, reason: its words in order; clauses: at least one; changed: whether a
        word tells of a change; slots: slot and whose → its value and whether it was a change; stems: what all of it,
        tags included, is about; polarities: whether clauses deny; signals: what another statement must have too to
        contradict it otherwise; excludes: whether it names what somebody is that rules out something.
    """

    spelling: str
    topic: tuple[str, ...]
    reason: tuple[str, ...]
    codes: frozenset[str]
    topic_codes: tuple[str, ...]
    clauses: tuple[Clause, ...]
    changed: bool
    slots: dict[tuple[str, frozenset[str]], tuple[str, bool]]
    stems: frozenset[str]
    polarities: frozenset[bool]
    signals: frozenset[object]
    excludes: bool


@lru_cache(maxsize=4096)  # each statement is compared with many others
def read(statement: Statement) -> Reading:
    """Read a statement. Any text can be read; the cost is linear in it."""
    topic = _tokens(statement.topic)
    parts = [tokens for part in _CLAUSE_END.split(statement.reason) if (tokens := _tokens(part))]
    reason = [token for part in parts for token in part]
    every = [*topic, *reason]
    clauses = tuple(_clause([*topic, *part]) for part in parts) or (_clause(topic),)
    slots = {slot: value for part in ([*parts] or [topic]) for slot, value in _slots(part)}
    said = frozenset(token for clause in clauses for token in clause.tokens)
    return Reading(
        spelling=" ".join(_fold(f"{statement.topic}\n{statement.reason}").casefold().split()),
        topic=_sequence(topic),
        reason=_sequence(reason),
        codes=frozenset(token.text for token in every if token.coded),
        topic_codes=tuple(token.text for token in topic if token.coded),
        clauses=clauses,
        changed=any(token.text in known.CHANGES for token in every),
        slots=slots,
        stems=frozenset(stem for token in every for stem in stems_of(token.text))
        | frozenset(stem for tag in statement.tags for stem in words(tag)),
        polarities=frozenset(clause.negative for clause in clauses),
        signals=_signals(clauses, said) | frozenset(slots),
        excludes=not said.isdisjoint(known.EXCLUDED),
    )


def _signals(clauses: tuple[Clause, ...], said: frozenset[str]) -> frozenset[object]:
    kinds: set[object] = {number for clause in clauses for number in clause.numbers}
    kinds |= {"opposites"} if not said.isdisjoint(known.OPPOSITES) else set()
    kinds |= {"weekday"} if not said.isdisjoint(known.WEEKDAYS) else set()
    return frozenset(kinds)


def near(sequence: tuple[str, ...]) -> tuple[str, ...]:
    """Return words without articles, plurals and a leading "the user" or "I"."""
    found = [_singular(word) for word in sequence if word not in known.ARTICLES]
    while found and found[0] in known.SUBJECTS:
        found = found[1:]
    return tuple(found)


@lru_cache(maxsize=4096)
def stems_of(word: str) -> tuple[str, ...]:
    """Return the stems a word stands for; none for words that say nothing by themselves."""
    if word in known.LIGHT or word in known.CHANGES or word in known.NEGATORS:
        return ()
    return tuple(words(f"{word} 0")[:-1])  # function words are only left out beside another word


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate(_PLAIN)


def _tokens(text: str) -> list[Token]:
    return [token for shown in _TOKEN.findall(_fold(text)) for token in _token(shown)]


def _token(shown: str) -> Iterator[Token]:
    text = shown.casefold()
    if any(char.isdecimal() for char in text):
        yield from _coded(text)
        return
    if text.endswith("n't"):
        yield from (Token(text[:-3]), Token("not"))
        return
    for ending in _ENDINGS:
        text = text.removesuffix(ending)
    acronym = len(shown) > 1 and shown.isupper()
    for part in _JOINER.split(text):
        number = known.NUMBERS.get(part)
        yield Token(number or part, coded=number is not None, acronym=acronym)


def _coded(text: str) -> Iterator[Token]:
    """Yield "10" and "km" for "10km", "1.2" for "v1.2", and other codes whole."""
    version, with_unit = _NUMBER.fullmatch(text), _WITH_UNIT.fullmatch(text)
    if with_unit and with_unit.group(2) in known.UNITS - known.CLOCK:
        yield from (Token(with_unit.group(1), coded=True), Token(with_unit.group(2)))
    else:
        yield Token(version.group(1) if version else text, coded=True)


def _sequence(tokens: list[Token]) -> tuple[str, ...]:
    return tuple(token.text for token in tokens)


def _singular(word: str) -> str:
    regular = len(word) >= _PLURAL_MIN and word.endswith("s") and not word.endswith(("ss", "us", "is", "news"))
    return word[:-1] if regular and word.isalpha() else word


def _clause(tokens: list[Token]) -> Clause:
    negations = sum(token.text in known.NEGATORS for token in tokens) + _used_to(tokens)
    plain = [token for token in tokens if not token.coded]
    return Clause(
        tokens=frozenset(token.text for token in tokens),
        content=frozenset(stem for token in plain for stem in stems_of(token.text)),
        negative=negations % 2 == 1,
        numbers={key: number for place in range(len(tokens)) for key, number in _numbers(tokens, place)},
    )


def _used_to(tokens: list[Token]) -> int:
    """Count "used to" that tells of the past, not of a purpose or a habit."""
    texts = ["", *_sequence(tokens)]
    be = {"is", "are", "was", "be", "been", "get", "got", "getting"}
    return sum(
        texts[place : place + 2] == ["used", "to"] and texts[place - 1] not in be for place in range(1, len(texts))
    )


def _numbers(tokens: list[Token], place: int) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield what the number at a place belongs to: its clock, its unit, the word before it, the word after it."""
    token = tokens[place]
    with_unit = _WITH_UNIT.fullmatch(token.text)
    before = tokens[place - 1] if place else None
    if _CLOCK_TIME.fullmatch(token.text) or (with_unit and with_unit.group(2) in known.CLOCK):
        yield ("clock", ""), token.text
    elif token.coded and _NUMBER.fullmatch(token.text) and not (before and _enumerates(before)):
        if before and not before.coded:
            yield from ((("after", stem), token.text) for stem in stems_of(before.text) or _sign(before.text))
        following = tokens[place + 1] if place + 1 < len(tokens) else None
        if following and not following.coded:
            yield from ((("unit", stem), token.text) for stem in stems_of(following.text) or _sign(following.text))


def _enumerates(token: Token) -> bool:
    return token.acronym or _singular(token.text) in known.ENUMERATORS


def _sign(text: str) -> tuple[str, ...]:
    return () if text.isalnum() else (text,)


def _slots(tokens: list[Token]) -> Iterator[tuple[tuple[str, frozenset[str]], tuple[str, bool]]]:
    text = " ".join(_sequence(tokens))
    for slot, pattern, change in known.SLOTS:
        match = pattern.search(text)
        if match:
            whose = frozenset(stem for word in text[: match.start()].split() for stem in stems_of(word))
            noun = match.group().split()[1] if slot == "favorite" else ""
            yield (slot + noun, whose), (match.group(1).removeprefix("the "), change)
