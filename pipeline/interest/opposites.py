"""What keeps two statements apart though their vectors are alike: words that exclude each other, denials, and who does what.

Vectors of sentences hardly tell "into the water" from "out of the water", or who chases whom. The words are general English:
what excludes each other is listed here, what is opposite in meaning comes from WordNet.
"""

from __future__ import annotations

import re
from functools import lru_cache

from isotherm.pipeline.interest import antonyms, rule_words
from isotherm.pipeline.text import words

# Of each group one thing holds at a time: where one statement has one of them and the other another, they are not one.
_EXCLUSIVE = """
    in/out into/out inside/outside on/off onto/off up/down near/far close/far front/behind/back left/right top/bottom
    before/after above/below over/under toward/away first/last north/south east/west with/without indoors/outdoors
    man/woman men/women boy/girl boys/girls male/female husband/wife brother/sister son/daughter mother/father mom/dad
    black/white/red/blue/green/yellow/orange/purple/pink/brown/gray/grey
    big/small large/small huge/small huge/tiny large/tiny big/little large/little long/short tall/short high/low wide/narrow thick/thin
    heavy/light young/old new/old early/late day/night morning/evening morning/night morning/afternoon hot/cold warm/cold
    wet/dry clean/dirty empty/full open/closed opening/closing open/close rich/poor hard/soft hard/easy fast/slow
    quickly/slowly loud/quiet loudly/quietly silent/talking silent/loud happy/sad good/bad better/worse best/worst dark/light
    bright/dark sunny/cloudy sunny/rainy sweet/sour sharp/blunt alive/dead awake/asleep alone/together
    all/none always/never more/less most/least many/few every/none buy/sell buying/selling give/take giving/taking
    lie/run/sit/stand/walk/jump/swim/fly/sleep/crawl/climb lying/running/sitting/standing/walking/jumping/swimming/flying/sleeping/crawling/climbing
    hit/miss hitting/missing catch/throw catching/throwing push/pull pushing/pulling win/lose winning/losing
    start/stop starting/stopping begin/end beginning/ending put/remove putting/removing add/remove adding/removing
    fill/empty filling/emptying follow/lead following/leading
    come/go coming/going arrive/leave arriving/leaving enter/leave entering/leaving rise/fall rising/falling
    love/hate loves/hates like/hate likes/hates accept/refuse accepting/refusing allow/forbid build/destroy
    building/destroying lock/unlock save/spend saving/spending laugh/cry laughing/crying speak/listen speaking/listening
    raise/lower raising/lowering increase/decrease increasing/decreasing remember/forget remembering/forgetting
    meat/vegetables coffee/tea beer/wine breakfast/lunch/dinner spring/summer/autumn/winter
    zero/one/two/three/four/five/six/seven/eight/nine/ten/eleven/twelve
"""
_PREFIX = re.compile(r"(?:un|dis|in|im|non)(?P<rest>\w{4,})")
_DENIALS = rule_words.NEGATORS | {"nobody", "nothing", "nowhere", "without"}
_WORD = re.compile(r"\w+(?:'\w+)?")
_TURNING = ("by", "which", "who", "whose")


def _groups() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for group in _EXCLUSIVE.split():
        members = frozenset(group.split("/"))
        for word in members:
            found[word] = found.get(word, frozenset()) | members - {word}
    return found


_OTHERS = _groups()


def _stem(word: str) -> str:
    """The stem of a word as texts are split, the word itself when that leaves nothing of it."""
    return " ".join(words(word)) or word


def _antonyms() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for one, other in antonyms.pairs():
        left, right = _stem(one), _stem(other)
        if left != right:
            found.setdefault(left, set()).add(right)
            found.setdefault(right, set()).add(left)
    return {word: frozenset(others) for word, others in found.items()}


# By stem: "filling" is the opposite of "emptied".
_ANTONYMS = _antonyms()


@lru_cache(maxsize=4096)
def said(text: str) -> tuple[str, ...]:
    """The words of a text as they are written, folded."""
    return tuple(_WORD.findall(text.replace("\u2019", "'").casefold()))


def opposed(left: str, right: str) -> bool:
    """Whether each has a word that the other's excludes: "into the pool", "out of the pool"; "folding", "unfolding"."""
    mine, yours = frozenset(said(left)), frozenset(said(right))
    only_mine, only_yours = mine - yours, yours - mine
    if any(_OTHERS.get(word, frozenset()) & only_yours for word in only_mine):
        return True
    if any(_negated(word, only_yours) for word in only_mine) or any(_negated(w, only_mine) for w in only_yours):
        return True
    left_stems, right_stems = frozenset(words(left)), frozenset(words(right))
    yours = right_stems - left_stems
    return any(_ANTONYMS.get(word, frozenset()) & yours for word in left_stems - right_stems)


def _negated(word: str, others: frozenset[str]) -> bool:
    found = _PREFIX.fullmatch(word)
    return bool(found and found.group("rest") in others)


@lru_cache(maxsize=4096)
def denials(text: str) -> int:
    """How often a text denies something."""
    return sum(word in _DENIALS or word.endswith("n't") for word in said(text))


def swapped(left: str, right: str) -> bool:
    """Whether two statements of the same words begin with another of them, so that somebody else does it.

    A passive turns the order around and says the same: "is eaten by"; so does a clause for an adjective: "a dog, which is
    white".
    """
    if any((word in said(left)) != (word in said(right)) for word in _TURNING):
        return False
    mine, yours = words(left), words(right)
    shared = set(mine) & set(yours)
    firsts = [next((word for word in side if word in shared), "") for side in (mine, yours)]
    return firsts[0] != firsts[1]
