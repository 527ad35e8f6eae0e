"""The word splitter that every index and every query shares; stored terms are only comparable within one version.

Text is folded (NFKC, case, accents of Latin script) and split by Unicode rules. English stems stand for the words of
Latin script. Scripts written without spaces, and Korean, give overlapping pairs. An identifier (`GOALS.md`, `v1.2`,
`SR-052`, `foo_bar`, `user@example.com`, the host of a URL) stays whole and gives its parts too.
"""

import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise

import regex
import Stemmer

SPLITTER_VERSION: int = 1
TERM_LIMIT = 20_000
_STEM_MAX_CHARS = 64
_IDENTIFIER_MAX_PARTS = 12
_FOLD_ROUNDS = 4
# Texts repeat their words: what became of the last ones is remembered, some ten megabytes at most.
_REMEMBERED = 32_768
_REMEMBERED_CHARS = 32

_FUNCTION_WORDS = """
    a about after again all also am an and any are as at be because been before being both but by can cannot could did
    do does doing done during each either for from further had has have having he her here hers herself him himself his
    how i if in into is it its itself just may me might more most must my myself neither no nor not of off on once only
    or other our ours ourselves out over own shall she should so some such than that the their theirs them themselves
    then there these they this those through to too under until up upon us very was we were what when where which while
    who whom whose why will with would you your yours yourself yourselves
"""
_STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
_CONTRACTED = frozenset({"s", "t", "m", "d", "ll", "re", "ve"})

# Letters of Latin script that have no decomposition, typographic variants of joiners, and invisible characters.
_REPLACED = {
    "\u00f8": "o",
    "\u0142": "l",
    "\u0111": "d",
    "\u00f0": "d",
    "\u00fe": "th",
    "\u0131": "i",
    "\u00e6": "ae",
    "\u0153": "oe",
    "\u0127": "h",
    "\u2019": "'",
    "\u02bc": "'",
    "\u2010": "-",
    "\u2011": "-",
    "\u00ad": "",
    "\u200c": "",
    "\u200d": "",
    "\u2060": "",
    "\ufeff": "",
}
_REPLACE = re.compile("[" + "".join(_REPLACED) + "]")
_LATIN_MARKS = regex.compile(r"(?<=\p{Latin})\p{M}+")

_PAIRED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}\u30fc\u3005\u3007\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = rf"[[\p{{L}}\p{{N}}]--[{_PAIRED}]][[\p{{L}}\p{{N}}\p{{M}}]--[{_PAIRED}]]*+"
_SYMBOLIC = r"[a-z](?:\+\+|\#)(?![\p{L}\p{N}_])"  # c++, c#
_TOKEN = regex.compile(
    rf"(?V1){_SYMBOLIC}|{_WORD}(?:(?:_++|[.\-@+'])(?:{_WORD}))*+|[[{_PAIRED}]&&[\p{{L}}\p{{N}}]][{_PAIRED}\p{{M}}]*+"
)
_PAIRED_START = regex.compile(rf"(?V1)[{_PAIRED}]")
_PAIRED_UNIT = regex.compile(r"(?s).\p{M}*+")
# The same rules for ASCII, where the standard library is several times faster.
_ASCII_TOKEN = re.compile(r"[a-z](?:\+\+|#)(?![a-z0-9_])|[a-z0-9]+(?:(?:_+|[.\-@+'])[a-z0-9]+)*")
_JOINER = re.compile(r"_+|[.\-@+']")

_local = threading.local()


def fold(text: str) -> str:
    """Return the text with compatibility forms, case and accents of Latin script removed; folding twice changes nothing."""
    if text.isascii():
        return text.lower()
    for _ in range(_FOLD_ROUNDS):
        folded = _fold_once(text)
        if folded == text:
            break
        text = folded
    return text


def words(text: str) -> list[str]:
    """Split a text into index words, in order, repeated as often as they occur.

    English function words are left out, unless there is nothing else. Never raises, whatever the text holds.
    Cost: linear in the length of the text.
    """
    tokens = _tokens(text)
    return _words_of(tokens, keep_stops=False) or _words_of(tokens, keep_stops=True)


def says_something(text: str) -> bool:
    """Whether a text has words besides English function words and single letters."""
    return bool(_words_of(_tokens(text), keep_stops=False))


def term_counts(text: str, limit: int = TERM_LIMIT) -> dict[int, int]:
    """Count the terms of a text: term → occurrences.

    Args: limit: how many different terms are kept; the first ones in the text are.
    """
    counts: dict[str, int] = {}
    for word in words(text):
        known = counts.get(word)
        if known is not None:
            counts[word] = known + 1
        elif len(counts) < limit:
            counts[word] = 1
    return {_term_of(word): count for word, count in counts.items()}


def terms(text: str, limit: int = TERM_LIMIT) -> list[int]:
    """Return the different terms of a text, ascending; with more than `limit`, the first ones in the text are kept."""
    return sorted(term_counts(text, limit))


def term_of(word: str) -> int:
    """Return the number an index stores for a word: the first 8 bytes of its BLAKE2b, signed, big-endian."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


_remembered_term = lru_cache(_REMEMBERED)(term_of)


def _term_of(word: str) -> int:
    return _remembered_term(word) if len(word) <= _REMEMBERED_CHARS else term_of(word)


def _fold_once(text: str) -> str:
    lowered = unicodedata.normalize("NFKC", text).casefold()
    replaced = _REPLACE.sub(lambda match: _REPLACED[match.group()], lowered)
    decomposed = unicodedata.normalize("NFD", replaced)
    return unicodedata.normalize("NFKC", _LATIN_MARKS.sub("", decomposed))


def _tokens(text: str) -> list[str]:
    folded = fold(text)
    found: list[str] = (_ASCII_TOKEN if folded.isascii() else _TOKEN).findall(folded)
    return found


def _words_of(tokens: list[str], *, keep_stops: bool) -> list[str]:
    known: dict[str, Sequence[str]] = {}
    found: list[str] = []
    for token in tokens:
        split = known.get(token)
        if split is None:
            short = len(token) <= _REMEMBERED_CHARS
            split = known[token] = (_remembered_split if short else _split_token)(token, keep_stops=keep_stops)
        found += split
    return found


def _split_token(token: str, *, keep_stops: bool) -> tuple[str, ...]:
    return tuple(_split(token, _stemmer(), keep_stops=keep_stops))


_remembered_split = lru_cache(_REMEMBERED)(_split_token)


def _split(token: str, stem: Callable[[str], str], *, keep_stops: bool) -> Iterator[str]:
    if not token.isascii() and _PAIRED_START.match(token):
        yield from _pairs(token)
        return
    if token.isalnum() or token[-1] in "+#":
        yield from _plain(token, stem, keep_stops=keep_stops)
        return
    parts = _JOINER.split(token)
    if "'" in token:
        token, parts = _without_contraction(token, parts)
    if 1 < len(parts) <= _IDENTIFIER_MAX_PARTS and "'" not in token:
        yield token
    for part in parts:
        yield from _plain(part, stem, keep_stops=keep_stops)


def _plain(word: str, stem: Callable[[str], str], *, keep_stops: bool) -> Iterator[str]:
    if not word.isascii():
        yield word
    elif word in _STOP_WORDS:
        if keep_stops and len(word) > 1:
            yield word
    elif not word.isalpha():
        yield word
    elif len(word) > 1:
        yield stem(word) if len(word) <= _STEM_MAX_CHARS else word


def _without_contraction(token: str, parts: list[str]) -> tuple[str, list[str]]:
    """Drop the end of user's, we'll and don't; the rest of "n't" is a function word."""
    if parts[-1] not in _CONTRACTED or not token.endswith("'" + parts[-1]):
        return token, parts
    shorter = token[: -len(parts[-1]) - 1]
    kept = parts[:-1]
    if parts[-1] == "t" and kept[-1].endswith("n"):
        kept = [*kept[:-1], "not"]
    return shorter, kept


def _pairs(run: str) -> Iterator[str]:
    units: list[str] = _PAIRED_UNIT.findall(run)
    if len(units) == 1:
        yield units[0]
        return
    for first, second in pairwise(units):
        yield first + second


def _stemmer() -> Callable[[str], str]:
    """Return this thread's English stemmer; one must not be shared between threads."""
    stem: Callable[[str], str] | None = getattr(_local, "stem", None)
    if stem is None:
        stem = _local.stem = Stemmer.Stemmer("english").stemWord
    return stem
