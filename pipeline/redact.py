"""Takes secrets out of text before it leaves: to a model, a log or a file.

Known forms only (keys with a prefix of their issuer, private keys, tokens, passwords that are named as such, card
numbers). What has no form, such as a password in a sentence without that word, is not found.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

from isotherm.pipeline.ports import Redactor

_CARD_DIGITS = range(13, 20)
_MARKED = r"(?!\[redacted:)"
_HAS_DIGIT = r"(?=[A-Za-z_\-]*+\d)"

# Issuers' own prefixes. Each begins where no such run goes on, so a long run is tried once, not at each character.
_KEYS = "|".join(
    (
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
        r"gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_\w{22,255}",
        r"glpat-[\w\-]{20,255}",
        r"xox[abeoprs]-[\w\-]{10,255}|xapp-[\w\-]{10,255}",  # Slack
        rf"sk-{_HAS_DIGIT}[\w\-]{{20,255}}",  # OpenAI, Anthropic and others
        r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,255}|whsec_[A-Za-z0-9+/]{24,255}={0,2}",  # Stripe
        r"AIza[\w\-]{35}|ya29\.[\w\-]{20,1024}",  # Google
        r"hf_[A-Za-z0-9]{30,255}",
        r"npm_[A-Za-z0-9]{36}",
        r"pypi-AgE[\w\-]{50,1024}",
        r"SG\.[\w\-]{16,64}\.[\w\-]{16,64}",  # SendGrid
        r"do[opr]_v1_[a-f0-9]{64}",  # DigitalOcean
        r"dapi[a-f0-9]{32}",  # Databricks
        r"SK[a-f0-9]{32}",  # Twilio
        r"\d{8,10}:AA[\w\-]{33}",  # Telegram
    )
)
_NAMES = (
    r"pass(?:word|wd|phrase)|pwd|secret(?:[_\- ]?(?:access[_\- ]?)?key)?|client[_\- ]?secret|api[_\- ]?key"
    r"|(?:access|auth|refresh|bearer)[_\- ]?token|(?<=[_\-])token"
)
_NAMED = rf"(?<![A-Za-z])(?:{_NAMES})"
_QUOTE = r"(?P<quote>[\"'])?"
_QUOTED = r"[^\"'\r\n]{1,255}"
_UNQUOTED = r"[^\s\"'<>,;]{4,255}+"
_UNLIKE_A_WORD = r"(?=[^\s\"'<>,;]{0,254}?[\d!@#$%^&*+=])[^\s\"'<>,;.]{4,255}+"
_SCHEME = r"(?:bearer|basic|token)\s{1,4}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """`pattern` finds it; of a match, group `kept` stays in front; `holds` tells a secret from its look-alikes."""

    kind: str
    pattern: regex.Pattern[str]
    holds: Callable[[str], bool] | None = None

    def apply(self, text: str) -> str:
        return self.pattern.sub(self._replaced, text)

    def _replaced(self, match: regex.Match[str]) -> str:
        if self.holds is not None and not self.holds(match.group()):
            return match.group()
        kept = match.groupdict().get("kept") or ""
        return f"{kept}[redacted:{self.kind}]"


def _is_card(text: str) -> bool:
    """Luhn's check over the digits of a number that starts like a payment card."""
    digits = [int(char) for char in text if char.isdecimal()]
    if len(digits) not in _CARD_DIGITS or digits[0] not in (2, 3, 4, 5, 6):
        return False
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


_RULES = (
    _Rule(
        "private-key",
        regex.compile(
            r"-----BEGIN (?P<name>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"
            r"(?:(?:[^-]|-(?!----))*+-----END (?P=name)-----|(?:[\s\\rn]{1,8}[A-Za-z0-9+/=]{16,}+)*+)"
        ),
    ),
    _Rule("jwt", regex.compile(r"(?<![\w\-])eyJ[\w\-]{8,}+\.[\w\-]{8,}+(?:\.[\w\-]*+){0,3}")),
    _Rule("api-key", regex.compile(rf"(?<![A-Za-z0-9\-])(?<!\w_)(?:{_KEYS})(?![A-Za-z0-9])")),
    _Rule(
        "url-password",
        regex.compile(
            rf"(?<![\w+.\-])(?P<kept>[A-Za-z][\w+.\-]{{0,30}}://[^\s/:@?#]{{0,255}}+:){_MARKED}[^\s/]{{1,255}}(?=@)"
        ),
    ),
    _Rule(
        "authorization",
        regex.compile(
            rf"(?i)(?P<kept>(?<!\w)(?:authorization[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"']?(?:{_SCHEME}|(?!{_SCHEME}))"
            rf"|bearer\s{{1,4}}{_HAS_DIGIT}(?=[\w\-.~+/]{{16}}))){_MARKED}[\w\-.~+/]{{6,}}+=*+"
        ),
    ),
    _Rule(  # password=..., whatever its value
        "password",
        regex.compile(
            rf"(?i)(?P<kept>{_NAMED}[\"']?\s{{0,4}}(?:=>|:=|=)\s{{0,4}}{_QUOTE}){_MARKED}(?(quote){_QUOTED}|{_UNQUOTED})"
        ),
    ),
    _Rule(  # "password: ..." and "password is ...", when what follows is quoted or unlike a word
        "password",
        regex.compile(
            rf"(?i)(?P<kept>{_NAMED}(?:[\"']?\s{{0,4}}:\s{{0,4}}|\s{{1,4}}(?:is|was)\s{{1,4}}){_QUOTE}){_MARKED}"
            rf"(?(quote){_QUOTED}|{_UNLIKE_A_WORD})"
        ),
    ),
    _Rule(
        "card",
        regex.compile(
            r"(?<![\w.\-])(?:[2-6]\d{12,18}|[2-6]\d{3}([ \-])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|3\d{3}([ \-])\d{6}\2\d{5})(?![\w\-])"
        ),
        _is_card,
    ),
)


class NoRedactor:
    """Leaves text as it is."""

    def redact(self, text: str) -> str:
        """Return the text."""
        return text


class SecretRedactor:
    """Replaces secrets by `[redacted:kind]`.

    Kinds: private-key, jwt, api-key, url-password, authorization, password, card.
    """

    def redact(self, text: str) -> str:
        """Return the text with every secret of a known form replaced; redacting twice changes nothing.

        Cost: linear in the text.
        """
        for rule in _RULES:
            text = rule.apply(text)
        return text


def redact_values(redactor: Redactor, value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON-like data with every text in it redacted; keys of mappings are names, and stay."""
    if isinstance(value, str):
        return redactor.redact(value)
    if isinstance(value, Mapping):
        return {key: redact_values(redactor, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redact_values(redactor, each) for each in value]
    return value
