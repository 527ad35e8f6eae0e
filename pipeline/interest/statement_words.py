"""The words by which statements about a person are found. English; the patterns expect one clause each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from isotherm.pipeline.interest.candidates import Kind
from isotherm.pipeline.interest.rule_words import ENUMERATORS

_HABITS = """
    shoot bake paddle play run ride cook brew climb hike swim ski sail surf row cycle paint draw knit sew sing dance
    collect grow garden teach study speak eat drink drive code program build train practice practise watch follow
    volunteer raise keep breed hunt travel commute rent lead own write photograph blog stream juggle meditate foster
    kayak skate fence box lift forage carve weld solder camp fish bird sculpt crochet quilt boulder journal
    woodwork fix restore ferment
"""
_DOING = """
    baking cooking learning training building writing playing studying doing making planning teaching brewing painting
    restoring renovating knitting researching developing moving
"""
_USES = "use|run|deploy on|build with|develop in|program in|work with|host on|write in"
_DIETS = (
    "vegetarian|vegan|pescatarian|kosher|halal|sober|teetotal|lactose intolerant|gluten[- ]free|diabetic|colorblind"
)
_RELATIONS = """
    name birthday goal budget ceiling limit deadline wife husband partner boyfriend girlfriend sister brother mother father
    son daughter kid kids cat dog hobby hobbies job role team company manager boss major thesis dream wish diet
    native language timezone editor setup stack phone laptop car bike boat camera
"""
_OFTEN = r"(?:(?:also|still|really|mostly|usually|often|sometimes|always|just|now|only|actually|mainly|never) )*"
_ME = r"\bI(?: would|'d|\u2019d| do)?"
_AM = r"\b(?:I'm|I\u2019m|I am|I've been|I\u2019ve been)"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _any(words: str) -> str:
    return "|".join(sorted(words.split(), key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A way to say something about oneself.

    Args: regex: its group `topic` is what it is about; prefix: put before the topic; confidence, importance: of what it
        finds; lead: most words that may stand before it; bare: whether a topic may be of function words only.
    """

    name: str
    regex: re.Pattern[str]
    kind: Kind
    confidence: float
    importance: float
    subjective: bool = False
    prefix: str = ""
    lead: int = 3


def _pattern(
    name: str, regex: str, kind: Kind, weights: tuple[float, float], *, subjective: bool = False, prefix: str = "", lead: int = 3
) -> Pattern:  # fmt: skip
    return Pattern(name, re.compile(regex, re.IGNORECASE), kind, *weights, subjective, prefix, lead)


# The first that fits is the one that counts.
PATTERNS = (
    _pattern("free_time", r"(?:what I do when|in my (?:free|spare) time|my hobb(?:y|ies)|for fun|on (?:the )?weekends)[^:]*?(?:: ?| (?:is|are) | I )(?P<topic>.+)", Kind.INTEREST, (0.95, 0.8), subjective=True, lead=4),
    _pattern("allergy", rf"{_AM} (?P<topic>{_OFTEN}(?:severely )?(?:allergic|intolerant) to .+)", Kind.FACT, (0.95, 0.9)),
    _pattern("no_longer", rf"{_AM} (?P<topic>no longer .+|not (?:a |an )?(?:(?:{_DIETS})\b.*|.+ any ?more))$", Kind.FACT, (0.8, 0.7), lead=4),
    _pattern("diet", rf"{_AM} {_OFTEN}(?:a |an )?(?P<topic>(?:{_DIETS})\b.*)", Kind.FACT, (0.95, 0.9)),
    _pattern("aversion", rf"{_ME} {_OFTEN}(?:hate|dislike|detest|loathe|avoid|can't stand|can\u2019t stand|don't like|don\u2019t like|do not like) (?P<topic>.+)", Kind.PREFERENCE, (0.9, 0.7), subjective=True, prefix="dislikes "),
    _pattern("hurts", r"(?:^|, (?:and |but )?)(?P<topic>[\w' -]+?) (?:makes?|drives?|gives?) me (?:squint|sick|crazy|mad|nuts|tired|sad|nervous|angry|headaches|a headache)", Kind.PREFERENCE, (0.8, 0.6), subjective=True, prefix="dislikes ", lead=8),
    _pattern("past", r"\bI (?P<topic>used to .+)", Kind.PREFERENCE, (0.8, 0.6), subjective=True),
    _pattern("preference", rf"{_ME} {_OFTEN}(?:prefer|rather have|favor|favour) (?P<topic>.+)", Kind.PREFERENCE, (0.95, 0.7), subjective=True, lead=6),
    _pattern("liking", rf"\bI(?: do)? {_OFTEN}(?:like|love|enjoy|adore) (?P<topic>.+)", Kind.INTEREST, (0.85, 0.7), subjective=True),
    _pattern("favorite", r"\bmy (?P<topic>favou?rite [^,;]+? (?:is|are|has (?:always )?been) .+)", Kind.PREFERENCE, (0.9, 0.7), subjective=True, lead=6),
    _pattern("into", rf"{_AM} {_OFTEN}(?:(?:so |very |quite )?(?:into|fond of|obsessed with|passionate about|interested in|fascinated by|crazy about|keen on)|a (?:big |huge )?fan of) (?P<topic>.+)", Kind.INTEREST, (0.95, 0.8), subjective=True, lead=6),
    _pattern("learning", rf"\bI (?:{_OFTEN}want|{_OFTEN}hope|{_OFTEN}plan|{_OFTEN}need|am trying|would like|would love|'d like|'d love|decided) to (?P<topic>(?:learn|study|practice|practise|master|improve) .+)", Kind.INTEREST, (0.85, 0.8), subjective=True, lead=6),
    _pattern("home", r"\b(?:I|we)(?: have|'ve|\u2019ve|'m|\u2019m| am|'re|\u2019re| are| just| recently)* (?P<topic>(?:live in|living in|based in|moved to|moving to|relocated to|relocating to|come from|grew up in) .+)", Kind.FACT, (0.85, 0.8), lead=6),
    _pattern("work", r"\bI(?:'ll| will|'m going to)? (?P<topic>(?:work|worked|be working|am working|start|started) (?:at|for|as) .+)", Kind.FACT, (0.85, 0.8), lead=6),
    _pattern("role", rf"(?:{_AM}|\bI'll be|\bI will be|\bI\u2019ll be) {_OFTEN}(?P<topic>(?:an? )(?!(?:bit|little|lot|few|while|big|minute|moment)\b)(?!(?:[\w-]+ ){{0,2}}fan\b).+)", Kind.FACT, (0.8, 0.8)),
    _pattern("name", r"\b(?:I'm|I am|I\u2019m) (?P<topic>(?-i:[A-Z]\w+), .+)", Kind.FACT, (0.8, 0.8), lead=5),
    _pattern("change", r"\b(?:I|we)(?:'ve|\u2019ve| have| just| recently| finally)* (?P<topic>(?:switched|upgraded|migrated|changed|gone|converted) (?:from |to )?.+)", Kind.PREFERENCE, (0.75, 0.6), lead=6),
    _pattern("used", rf"\b(?:I|we) {_OFTEN}(?:{_USES}) (?P<topic>.+)", Kind.TOOL, (0.8, 0.6), lead=6),
    _pattern("not_habit", rf"\bI (?P<topic>(?:don't|don\u2019t|do not|no longer|never) (?:{_any(_HABITS)})\b.*)", Kind.FACT, (0.85, 0.7), lead=8),
    _pattern("habit", rf"\bI {_OFTEN}(?P<topic>(?:{_any(_HABITS)}) (?!(?:the|it|that|this|these|those|them|him|her|you|half|some|up|out|on|off|at|in|for|from|to|with|now|away|back|down|into|over)\b).+)", Kind.INTEREST, (0.8, 0.7), subjective=True, lead=4),
    _pattern("progress", rf"{_AM} {_OFTEN}(?P<topic>(?:{_any(_DOING)}|working on|training for|saving for|reading about) .+)", Kind.INTEREST, (0.65, 0.6), subjective=True, lead=4),
    _pattern("looking", rf"{_AM} {_OFTEN}looking for (?:some )?(?:recommendations|inspiration|ideas|tips|suggestions|resources) (?:for|on|about) (?P<topic>(?!how\b).+)", Kind.INTEREST, (0.6, 0.5), subjective=True, lead=4),
    _pattern("relation", rf"\b[Mm]y (?P<topic>(?:\w+ )?(?:{_any(_RELATIONS)})(?:,? \w+,?)? (?:is|are|was|has|likes|hates|loves|lives|works)\b(?! (?:(?:so|very|really|all|just|not|still) )*(?:excited|happy|sad|glad|proud|thrilled|tired|sorry|upset|ok|okay|fine|good|great|amazing|awesome|doing|going|getting|the best)\b).+)", Kind.FACT, (0.75, 0.6), lead=4),
    _pattern("called", r"^(?:the |my |our )?(?P<topic>(?:project|app|product|company|team|band|club|cat|dog|boat|shop) is (?:called|named) .+)", Kind.FACT, (0.7, 0.6), lead=0),
    _pattern("goal", r"^(?:the |our )?(?P<topic>goal is .+)", Kind.PLAN, (0.7, 0.6), lead=0),
    _pattern("having", r"\b(?:I|we) have (?P<topic>(?:an? )(?!(?:\w+ )?(?:pile|lot|bunch|few|bit|question|problem|meeting|idea|feeling|look|mess|hunch|point|plan|moment|minute|second|request|favor|understanding|sense|grasp)\b).+)", Kind.FACT, (0.65, 0.5)),
    _pattern("having_name", r"\bI have (?P<topic>(?-i:[A-Z][a-z]+)\b.*)", Kind.PLAN, (0.6, 0.5), lead=6),
    _pattern("plan", r"\bI (?:want|plan|hope|intend|decided) to (?P<topic>(?!(?:try|see|know|say|ask|check|look|run|go|make sure|be sure|use|want|get|keep)\b).+)", Kind.PLAN, (0.6, 0.5)),
    _pattern("wish", r"\bplease (?:set|switch|change|turn) (?:the |your |my |our )?(?:own )?(?P<topic>[\w ]+? to [\w ]+)", Kind.PREFERENCE, (0.75, 0.5), subjective=True, lead=5),
    _pattern("labeled", r"^(?P<topic>(?:style|stack|tools|tooling|preferences|diet|likes|dislikes|hobbies|interests|editor|languages?|coding style|conventions): .+)", Kind.PREFERENCE, (0.8, 0.6), subjective=True, lead=0),
    _pattern("announced", r"^(?P<topic>(?-i:[a-z])[\w-]*(?: [\w-]+){0,2}): (?:is there|where|do you know|any|can (?:you|I))\b.*", Kind.INTEREST, (0.5, 0.5), subjective=True, lead=0),
    _pattern("best", r"^(?P<topic>.+?) (?:is|are|remains?)(?: still| really| just| simply)* (?:the best|my favou?rite|the highlight|so much fun|great fun|pure joy)\b", Kind.INTEREST, (0.8, 0.8), subjective=True, lead=0),
    _pattern("lovely", r"^(?P<topic>(?:the|this) .+?) (?:is|are)(?: so| really| just)* (?:lovely|wonderful|fantastic|amazing|delightful|beautiful)$", Kind.INTEREST, (0.55, 0.4), subjective=True, lead=0),
    _pattern("request", r"^(?P<topic>[\w' -]{3,40}), please\b", Kind.PREFERENCE, (0.65, 0.5), subjective=True, lead=0),
    _pattern("only", r"^(?P<topic>[\w' -]{3,40} only)$", Kind.PREFERENCE, (0.55, 0.4), subjective=True, lead=0),
    _pattern("choice", r"^(?P<topic>[\w' -]{3,40}), if (?:there's a choice|there is a choice|possible|you can|I can choose)", Kind.PREFERENCE, (0.75, 0.6), subjective=True, lead=0),
)  # fmt: skip

# A thing and its version, said as an answer: "Postgres 15 on the shared server".
_NOT_A_THING = _any(
    " ".join(ENUMERATORS)
    + """
    day days week weeks room floor number day page chapter version step part point question monday tuesday wednesday thursday
    friday saturday sunday january february march april may june july august september october november december stage
    around about over under only just between from until since by at in on batch batches line lines row rows
    note notes item items option fig chart test case
    """
)
VERSIONED = re.compile(
    rf"^(?P<topic>(?!(?:{_NOT_A_THING})\b)(?-i:[A-Z])[\w+#.-]{{2,}} v?\d{{1,4}}(?:\.\d+)*)(?=$|[,;.)]| (?:on|in|at|for|with|under|from|and|now)\b)",
    re.IGNORECASE,
)

# A pastime at the start, said with joy: "Paddling in the fjords after work". Other gerunds tell of what happens, not of what
# somebody does gladly: "Sharing our stories isn't easy", "Wishing you the best".
PASTIMES = frozenset(
    form for verb in [*_HABITS.split(), "read"] for form in (f"{verb}ing", f"{verb[:-1]}ing", f"{verb}{verb[-1]}ing")
) - _set("speaking keeping leading owning following raising renting eating lifting")
GERUND = re.compile(
    r"^(?P<topic>(?:(?!(?:my|your|our|his|her|their|the|a|an|by|for|from|of|in|on|at|with|without|about|after|before|"
    r"while|when|just|like|love|no|not|keep|stop|start)\b)[A-Za-z]+ )?(?P<gerund>[A-Za-z]{3,}ing)\b.*)",
    re.IGNORECASE,
)
# Where the name of a pastime ends and something is said about it.
ABOUT_IT = re.compile(
    r"(?:'s|\u2019s| (?:is|isn't|are|was|wasn't|were|has|have|had|will|would|can|could|let|lets|helps?|helped|makes?|made|"
    r"brings?|brought|gives?|gave|means?|meant|keeps?|kept|takes?|took))\b.*$",
    re.IGNORECASE,
)
# What stands for something said elsewhere: a topic that needs it says nothing by itself.
ELSEWHERE = _set("it that this these those them him you your something anything someone anyone everything same")
THEIRS = _set("their his its your")
# Words that are no subject by themselves.
VAGUE = _set(
    "few lot best ok okay well great good fine better bit more some one thing things stuff way time part rest do plan make learn"
)
JOY = re.compile(
    r"\b(?:love|loved|loving|best|happy|happier|favou?rites?|faves?|fun|joy|imagine|whole reason|wonderful|can't wait|missed)\b",
    re.IGNORECASE,
)

WEEKDAYS = "Mondays|Tuesdays|Wednesdays|Thursdays|Fridays|Saturdays|Sundays"
RECURRING = re.compile(
    rf"\bon (?P<days>(?:{WEEKDAYS})(?:(?:,| and| or) (?:{WEEKDAYS}))*)(?P<time> at \d{{1,2}}(?::\d{{2}})?(?: ?[ap]m)?)?"
    rf"|\bevery (?P<day>(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)(?P<hour> at \d{{1,2}}(?::\d{{2}})?(?: ?[ap]m)?)?"
)
GATHERING = re.compile(
    r"\b(?:meet|meeting|meetings|one-to-ones?|1:1s?|standups?|stand-ups?|class|classes|course|lessons?|training|practice|"
    r"rehearsals?|sync|calls?|therapy|sessions?|club|choir|laundry|shift|gym)\b",
    re.IGNORECASE,
)

# Where a topic ends: what follows says when, why or how, not what.
TOPIC_END = re.compile(
    r"\s*(?:[,;:](?!\d)|[(\u2014\u2013]|--| - |\b(?:because|since|but|although|though|which|who|so that|so I|after|before|when|"
    r"while|until|unless|if|especially|starting|above all|have been|as well|by the way|every(?:where| time)?|anymore$|any more$)\b)"
)
TOPIC_START = re.compile(
    r"^(?:(?:to|the|a|an|my|our|some|that|being able to|also|really|mostly|(?:the )?idea of|"
    r"(?:learning|exploring|hearing|knowing|reading)(?: more)? about|exploring(?: more of)?|planning(?: to)?)\s+)+",
    re.IGNORECASE,
)
TOPIC_TAIL = re.compile(
    r"(?:\s+(?:a|an|the|to|of|in|on|at|for|with|by|from|into|and|or|my|our|your|some|that|than|as|about|is|are|me|it|now|too|ever|truly))+$",
    re.IGNORECASE,
)
PRONOUNS = _set(
    "it that this them these those him her you one ones all both mine yours so there here what how more to do something someone anything"
)
