import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.ports import Redactor
from isotherm.pipeline.redact import NoRedactor, SecretRedactor

redact = SecretRedactor().redact

KEY_BLOCK = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabcdefghijklmnopqrst\nabcdefghijklmnop\n-----END RSA PRIVATE KEY-----"
# Joined here, so that scanners of this repository do not take them for leaked ones.
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GITHUB = "ghp_" + "a1B2c3D4e5" * 4
OPENAI = "sk-" + "proj-abcdefghijklmnop1234567890"
SLACK = "xoxb-" + "123456789012-abcdefGHIJKL"
STRIPE = "sk_" + "live_abcdefghijklmnop1234"
JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


@pytest.mark.parametrize(
    "secret", [AWS, GITHUB, OPENAI, SLACK, STRIPE, "AIza" + "Sy_a" * 8 + "abc", "hf_" + "aB3" * 12]
)
@pytest.mark.parametrize("around", ["{}", "my key is {}, keep it", '"{}"', "key={}\n"])
def test_issued_keys_are_replaced(secret: str, around: str) -> None:
    assert redact(around.format(secret)) == around.format("[redacted:api-key]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"a {KEY_BLOCK} b", "a [redacted:private-key] b"),
        (f"token {JWT}.", "token [redacted:jwt]"),
        ("postgres://bob:hunter2@db/x", "postgres://bob:[redacted:url-password]@db/x"),
        ("redis://:p@ss@h:1/0", "redis://:[redacted:url-password]@h:1/0"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer [redacted:authorization]"),
        ("curl -H 'authorization: abcdefgh12345678'", "curl -H 'authorization: [redacted:authorization]'"),
        ("DB_PASSWORD=hunter FOO=1", "DB_PASSWORD=[redacted:password] FOO=1"),
        ('{"password": "correct horse", "a": 1}', '{"password": "[redacted:password]", "a": 1}'),
        ("the password is hunter2.", "the password is [redacted:password]."),
        ("API key: abc123def", "API key: [redacted:password]"),
        ("SLACK_TOKEN=abcdef", "SLACK_TOKEN=[redacted:password]"),
        ("card 4111 1111 1111 1111 12/25", "card [redacted:card] 12/25"),
        ("amex 3782-822463-10005, 5555555555554444", "amex [redacted:card], [redacted:card]"),
    ],
)
def test_secrets_are_replaced_and_what_surrounds_them_stays(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_a_private_key_that_was_cut_off_is_replaced_as_far_as_it_goes() -> None:
    cut = redact(f"a {KEY_BLOCK[:70]}")
    assert cut.startswith("a [redacted:private-key]")
    assert "MIIE" not in cut


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the password is correct",
        "password: required",
        "secret: the ingredient is salt",
        "she is the bearer of news about everything",
        "sk-learn-something-very-long-indeed",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "id 018f3a7e-4b2c-7d1e-9f00-0123456789ab",
        "https://example.com:8080/path@x?a:b@c",
        "1700000000000 is a time, 4111111111111112 fails the check",
        "call +49 170 1234567 or 555-0100",
        "max_tokens=2048",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


PIECES = st.sampled_from([
    AWS, GITHUB, JWT, KEY_BLOCK, "password = ", "password is ", "'", '"', "hunter2", "Bearer ", "authorization: ", "://",
    "a:", "@", " ", "4111 1111 1111 1111", "4111111111111111", "-", ".", "token", "api_key: ", "\n", "[redacted:card]",
])  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join))
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize(
    "piece",
    [
        "a_b ",
        "eyJaaaaaaaaaa-",
        "-----BEGIN PRIVATE KEY-----",
        "password = ",
        "bearer ",
        "sk-a",
        "a://b:",
        "4111 ",
        " ",
        "a.",
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    started = time.process_time()
    redact(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 2


def test_no_redactor_leaves_everything() -> None:
    nothing: Redactor = NoRedactor()
    assert nothing.redact(AWS) == AWS
