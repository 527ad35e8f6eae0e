"""The words the rule judge knows. English; statements in other languages are compared by their spelling only."""

import re
from itertools import chain


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARTICLES = _set("a an the")
SUBJECTS = _set("user i")

NEGATORS = _set(
    """
    not no never without neither nor none cannot stop stops stopped stopping quit quits quitting avoid avoids avoided
    avoiding dislike dislikes disliked hate hates hated cancel cancels canceled cancelled disable disables disabled
    remove removes removed abandon abandons abandoned refuse refuses refused ceased
    """
)
CHANGES = _set(
    """
    switch switched switches switching move moved moves moving change changed changes upgrade upgraded upgrades migrate
    migrated migrates downgraded replace replaced replaces rescheduled postponed became become becomes now again anymore
    longer instead formerly previously lately currently renamed
    """
)
# Verbs that say that something holds, not what: "likes coffee" and "drinks coffee" are about coffee.
LIGHT = _set(
    """
    like likes liked love loves loved enjoy enjoys enjoyed prefer prefers preferred want wants wanted use uses used using
    eat eats ate eating drink drinks drank drinking get gets got start starts started keep keeps kept go goes went going
    continue continues set sets user users really always still already today run runs running
    """
)
WEEKDAYS = {
    f"{name}{plural}": name
    for name in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    for plural in ("", "s")
}
NUMBERS = {
    word: str(value)
    for value, word in enumerate(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], start=2
    )
}
# A number after one of these names one of several things that exist beside each other.
ENUMERATORS = _set(
    """
    chapter episode issue ticket step part section page round week day season volume phase room item level lesson module
    task question figure table row line number no player team group bug article book film movie song track case story
    """
)
UNITS = _set(
    "km m cm mm kg g lb lbs min mins h hr hrs s ms gb mb tb kb k usd eur px mph kmh kcal cal l ml am pm fps hz ghz w kw"
)
CLOCK = _set("am pm")

_ANTONYMS = """
    dark/light enabled/disabled morning/evening morning/night morning/afternoon tabs/spaces
    remote/office remote/onsite online/offline hot/cold hot/iced sweet/sour spicy/mild early/late left/right open/closed
    public/private single/married married/divorced employed/unemployed indoor/outdoor indoors/outdoors hard/easy fast/slow
    quiet/loud cheap/expensive full/part short/long small/large big/small synchronous/asynchronous sync/async
    monolith/microservices sql/nosql weekday/weekend weekdays/weekends daily/weekly weekly/monthly daily/monthly
    manual/automatic imperial/metric celsius/fahrenheit formal/informal casual/formal window/aisle coffee/decaf
    brief/detailed concise/detailed verbose/concise true/false allowed/forbidden approved/rejected active/inactive
"""
ANTONYMS = tuple((pair.partition("/")[0], pair.partition("/")[2]) for pair in _ANTONYMS.split())
OPPOSITES = frozenset(chain.from_iterable(ANTONYMS))

_MEAT = _set("meat beef pork chicken steak bacon ham lamb turkey sausage sausages burger burgers")
_FISH = _set("fish salmon tuna sushi seafood shrimp")
_DAIRY = _set("cheese milk butter yogurt egg eggs cream")
_ALCOHOL = _set("alcohol beer beers wine whisky whiskey cocktail cocktails vodka gin rum")
# What somebody who is the first does not consume.
EXCLUDED = {
    "vegetarian": _MEAT | _FISH,
    "vegan": _MEAT | _FISH | _DAIRY,
    "pescatarian": _MEAT,
    "sober": _ALCOHOL,
    "teetotal": _ALCOHOL,
    "teetotaler": _ALCOHOL,
}
CONSUMES = _set(
    """
    eat eats ate eating drink drinks drank drinking love loves like likes enjoy enjoys order orders ordered cook cooks
    cooked cooking favorite favourite
    """
)

# What somebody has one of at a time: a slot, the words before its value, and whether they tell of a change.
SLOTS = (
    ("home", re.compile(r"\b(?:lives?|living|based|resides?) in ((?:the )?\w+)"), False),
    ("home", re.compile(r"\b(?:moved|moving|relocated) to ((?:the )?\w+)"), True),
    ("work", re.compile(r"\b(?:works?|working|employed) (?:at|for|by) ((?:the )?\w+)"), False),
    ("work", re.compile(r"\b(?:joined|hired by) ((?:the )?\w+)"), True),
    ("favorite", re.compile(r"\bfavou?rite \w+ (?:is|are)(?: now)? ((?:the )?\w+)"), False),
    ("name", re.compile(r"\bname is(?: now)? (\w+)"), False),
    ("deadline", re.compile(r"\b(?:deadline is|due)(?: now)?(?: on| by| in)? ((?:the )?\w+)"), False),
)
