import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.transcript import BadLine, TranscriptLine, detect, parse_document, parse_lines

TIME = "2026-08-03T17:42:10Z"
GOOD = {"session": "s1", "role": "user", "content": "hello", "time": TIME}
SECRET = "the-secret-value"

names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60).filter(
    lambda text: bool(text.strip())
)
times = st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
records = st.fixed_dictionaries(
    {"session": names, "role": names, "content": texts, "time": times},
    optional={
        "agent": names,
        "tenant": names,
        "id": names,
        "importance": st.floats(0, 1),
        "metadata": st.dictionaries(names, st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts),
    },
)


def encode(record: dict[str, Any], **changes: object) -> bytes:
    return json.dumps({**record, **changes}, default=datetime.isoformat, ensure_ascii=False).encode()


def read(*lines: bytes, **options: int) -> list[TranscriptLine | BadLine]:
    return list(parse_lines(lines, **options))


def good(results: Iterable[TranscriptLine | BadLine]) -> list[TranscriptLine]:
    return [result for result in results if isinstance(result, TranscriptLine)]


def reason(line: bytes, **options: int) -> str:
    (result,) = read(line, **options)
    assert isinstance(result, BadLine)
    return result.reason


@given(st.lists(records, max_size=8))
def test_valid_lines_come_back_with_their_numbers_and_values(given_records: list[dict[str, Any]]) -> None:
    lines = good(read(*map(encode, given_records)))
    assert [line.number for line in lines] == list(range(1, len(given_records) + 1))
    for line, record in zip(lines, given_records, strict=True):
        expected = {"agent": "default", "tenant": None, "id": None, "metadata": {}, "importance": None, **record}
        assert {name: getattr(line, name) for name in expected} == expected


@given(st.lists(records, max_size=8), st.integers(1, 3))
def test_document_and_lines_give_the_same_messages(given_records: list[dict[str, Any]], size: int) -> None:
    header = {"session": "s", "agent": "a", "tenant": "t"}
    groups = [given_records[start : start + size] for start in range(0, len(given_records), size)]
    sessions = [{**header, "messages": group} for group in groups]
    lines = read(*(encode(record, **header) for record in given_records))
    assert list(parse_document(encode({"sessions": sessions}))) == lines
    assert list(parse_document(json.dumps(sessions, default=datetime.isoformat).encode())) == lines


@given(st.lists(st.binary(max_size=80) | records.map(encode), max_size=8))
def test_arbitrary_lines_never_raise_and_each_has_one_outcome(lines: list[bytes]) -> None:
    results = read(*lines)
    filled = [number for number, line in enumerate(lines, 1) if line.removeprefix(b"\xef\xbb\xbf").strip()]
    assert [result.number for result in results] == filled


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_one_of_the_formats_and_never_raise(data: bytes) -> None:
    assert detect(data) in {"lines", "document"}
    assert all(isinstance(result, TranscriptLine | BadLine) for result in parse_document(data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["sessions", "messages", "session", "role", "content", "time"]), inner)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_value_is_answered_line_by_line_and_as_a_document(value: object) -> None:
    data = json.dumps(value).encode()
    assert len(read(data)) == 1
    for result in parse_document(data):
        assert isinstance(result, TranscriptLine | BadLine)
        if isinstance(result, BadLine):
            result.raw.encode()


@given(st.lists(records, min_size=1, max_size=6), st.data())
def test_bad_line_repaired_later_leaves_the_others_as_they_were(
    given_records: list[dict[str, Any]], data: st.DataObject
) -> None:
    repaired = [
        encode(record) for record in [*given_records, {**GOOD, "content": "written once, nowhere else: \u2603"}]
    ]
    place = data.draw(st.integers(0, len(repaired) - 1))
    repaired.insert(place, repaired.pop())
    broken = [*repaired[:place], repaired[place][:-1], *repaired[place + 1 :]]
    first, second = read(*broken), read(*repaired)
    assert isinstance(first[place], BadLine)
    assert isinstance(second[place], TranscriptLine)
    assert first[:place] + first[place + 1 :] == second[:place] + second[place + 1 :]


def test_position_counts_exact_duplicates_within_one_session_only() -> None:
    line = encode(GOOD)
    others = [{"session": "s2"}, {"agent": "atlas"}, {"tenant": "default"}, {"role": "tool"}, {"content": "hello "}]
    results = good(read(line, *(encode(GOOD, **change) for change in others), line, b"{", line))
    assert [result.position for result in results] == [0, 0, 0, 0, 0, 0, 1, 2]


def test_same_instant_written_in_another_zone_is_a_duplicate() -> None:
    berlin = datetime(2026, 8, 3, 19, 42, 10, tzinfo=timezone(timedelta(hours=2))).isoformat()
    first, second = good(read(encode(GOOD), encode(GOOD, time=berlin)))
    assert first.time == second.time
    assert second.time.tzinfo is UTC
    assert second.position == 1


@pytest.mark.parametrize("field", ["session", "role", "content", "time"])
def test_required_field_that_is_missing_or_null_is_named(field: str) -> None:
    without = {name: value for name, value in GOOD.items() if name != field}
    assert reason(encode(without)) == f"{field} is missing"
    assert reason(encode(GOOD, **{field: None})) == f"{field} is missing"


@pytest.mark.parametrize("field", ["session", "role", "content", "agent", "tenant", "id"])
@pytest.mark.parametrize(("value", "problem"), [("", "is blank"), (" \t", "is blank"), (7, "must be a string")])
def test_blank_text_and_other_types_are_refused(field: str, value: object, problem: str) -> None:
    assert reason(encode(GOOD, **{field: value})) == f"{field} {problem}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-08-03T17:42:10+00:00", datetime(2026, 8, 3, 17, 42, 10, tzinfo=UTC)),
        ("2026-08-03 19:42:10.5+02:00", datetime(2026, 8, 3, 17, 42, 10, 500_000, tzinfo=UTC)),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (1_785_778_930.25, datetime(2026, 8, 3, 17, 42, 10, 250_000, tzinfo=UTC)),
    ],
)
def test_time_is_iso_text_with_an_offset_or_unix_seconds(value: object, expected: datetime) -> None:
    (line,) = good(read(encode(GOOD, time=value)))
    assert line.time == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("2026-08-03T17:42:10", "time needs an offset"),
        ("2026-08-03", "time needs an offset"),
        ("yesterday", "time is not ISO 8601"),
        (SECRET, "time is not ISO 8601"),
        (1_785_778_930_000, "time is out of range"),
        ("0001-01-01T00:00:00+05:00", "time is out of range"),
        (float("nan"), "time is not ISO 8601 or a finite number"),
        (float("inf"), "time is out of range"),
        (True, "time must be"),
        ([], "time must be"),
    ],
)
def test_time_that_is_no_instant_is_refused(value: object, problem: str) -> None:
    assert reason(encode(GOOD, time=value)).startswith(problem)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf"), True, "0.5"])
def test_importance_outside_its_range_is_refused(value: object) -> None:
    assert reason(encode(GOOD, importance=value)) == "importance must be a number from 0 to 1"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"\xff\xfe{}", "line is not valid UTF-8"),
        (b'{"session": ', "line is not valid JSON (line 1, column "),
        (b"plain words", "line is not valid JSON"),
        (b"[1]", "line must be a JSON object"),
        (b'"text"', "line must be a JSON object"),
        (b"[" * 200_000, "line is nested too deeply"),
        (b'{"role": "user", "role": "tool"}', "line names a key twice"),
        (encode(GOOD)[:-1] + b', "metadata": {"a": [{"b": 1, "b": 2}]}}', "metadata names a key twice"),
        (encode(GOOD)[:-1] + b', "time": 1}', "line names a key twice"),
        (encode(GOOD, metadata=[]), "metadata must be a JSON object"),
        (encode(GOOD)[:-1] + b', "metadata": {"n": ' + b"9" * 5_000 + b"}}", "metadata"),
        (encode(GOOD)[:-1] + b', "metadata": {"n": 1e999}}', "metadata"),
        (encode(GOOD)[:-1] + b', "importance": ' + b"9" * 5_000 + b"}", "importance must be"),
        (encode({**GOOD, "time": 0})[:-2] + b"9" * 5_000 + b"}", "time is out of range"),
        (encode(GOOD, session="a\nb"), "session"),
    ],
)
def test_malformed_line_is_reported_with_its_text(line: bytes, problem: str) -> None:
    bad, after = read(line, encode(GOOD))
    assert isinstance(bad, BadLine)
    assert bad.reason.startswith(problem)
    assert bad.raw == line.decode(errors="replace")
    assert (after.number, isinstance(after, TranscriptLine)) == (2, True)


@pytest.mark.parametrize("field", ["session", "role", "content", "time", "agent", "id", "importance", "metadata"])
def test_reason_never_repeats_a_value(field: str) -> None:
    for value in ([SECRET], {SECRET: SECRET}, SECRET + "\0", SECRET * 400):
        for result in read(encode(GOOD, **{field: value})):
            assert SECRET not in (result.reason if isinstance(result, BadLine) else "")


def test_long_line_is_reported_in_part_and_skipped() -> None:
    long = encode(GOOD, content="x" * 5_000)
    bad, after = read(long, encode(GOOD), limit=4_096)
    assert bad == BadLine(1, "line is longer than 4096 bytes", long[:1_000].decode())
    assert after.number == 2


def test_marks_line_ends_and_empty_lines_do_not_matter() -> None:
    line = encode(GOOD)
    results = good(read(b"\xef\xbb\xbf" + line + b"\r\n", b"\r\n", b"  \n", b"\xef\xbb\xbf" + line + b"\n", b""))
    assert [(result.number, result.position) for result in results] == [(1, 0), (4, 1)]


def test_unknown_fields_are_ignored() -> None:
    assert read(encode(GOOD, mood=float("nan"), session_id=[1])) == read(encode(GOOD))


def test_lines_are_read_one_at_a_time() -> None:
    def endless() -> Iterable[bytes]:
        while True:
            yield encode(GOOD)

    results = parse_lines(endless())
    assert [next(results).number for _ in range(3)] == [1, 2, 3]


def test_bad_message_of_a_document_leaves_the_others_alone() -> None:
    message = {"role": "user", "content": "hello", "time": TIME}
    sessions = [
        {"session": "s1", "messages": [message, {**message, "content": None}, "words", message]},
        {"messages": [message]},
        {"session": "s2", "messages": {}},
        None,
        {"session": "s3", "agent": "forge", "messages": [{**message, "session": "s9", "agent": "atlas"}]},
    ]
    results = list(parse_document(json.dumps(sessions).encode()))
    assert [result.number for result in results] == list(range(1, 9))
    assert [result.reason for result in results if isinstance(result, BadLine)] == [
        "content is missing",
        "message must be a JSON object",
        "session is missing",
        "messages must be a list",
        "session must be a JSON object",
    ]
    assert [(line.session, line.agent, line.position) for line in good(results)] == [
        ("s1", "default", 0),
        ("s1", "default", 1),
        ("s3", "forge", 0),
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "document is not valid JSON"),
        (b"\xff[]", "document is not valid UTF-8"),
        (b"[{}", "document is not valid JSON (line 1, column 4)"),
        (b"7", "sessions must be a list"),
        (b'{"messages": []}', "sessions must be a list"),
        (b'{"sessions": [], "sessions": []}', "document names a key twice"),
        (b"[" * 200_000, "document is nested too deeply"),
    ],
)
def test_document_without_sessions_is_one_bad_line(data: bytes, problem: str) -> None:
    (bad,) = parse_document(data)
    assert isinstance(bad, BadLine)
    assert (bad.number, bad.reason.startswith(problem)) == (0, True)
    assert len(bad.raw) <= 1_000


def test_empty_documents_hold_nothing() -> None:
    assert list(parse_document(b"[]")) == []
    assert list(parse_document(b'\xef\xbb\xbf{"sessions": []}')) == []


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"", "lines"),
        (encode(GOOD) + b"\n" + encode(GOOD), "lines"),
        (b"\xef\xbb\xbf\r\n" + encode(GOOD), "lines"),
        (encode(GOOD, content="x" * 500)[:100], "lines"),
        (encode(GOOD, content='he wrote "sessions": [ in it')[:-1], "lines"),
        (encode(GOOD, metadata={"sessions": []}), "lines"),
        (b"[INFO] not JSON\n" + encode(GOOD), "lines"),
        (b"[", "document"),
        (b"[]", "document"),
        (b'\xef\xbb\xbf [\r\n  {"session": "s1"', "document"),
        (b'{\n  "sessions": [', "document"),
        (b'{"sessions": [{"session": "s1", "messages": [{"ro', "document"),
        (b'{"version": 1, "sessions": [{"session": "s1"', "document"),
        (b'{"sessions":\n[', "document"),
        (b'{"sessions": []}', "document"),
    ],
)
def test_format_is_told_from_the_first_bytes(head: bytes, expected: str) -> None:
    assert detect(head) == expected
