"""Convert one LoCoMo conversation to the JSON Lines that `isotherm ingest` reads, or list its labeled questions.

    python bench/locomo_to_jsonl.py conv-26.json > conv-26.jsonl
    python bench/locomo_to_jsonl.py conv-26.json --questions > questions.jsonl

The data set (Maharana et al., ACL 2024, CC BY-NC 4.0) is not part of this project: give the path of one record, an object
with `sample_id`, `conversation` and `qa`. One line per turn: the agent is the sample, the session is `session_K`, the first
speaker is the user and the second the assistant, the id is `dia_id`. A session has one time, read as UTC; its turns follow
a second apart, so that their order is kept. Questions and answers are never part of what is ingested.
With `--questions`: one line per question with its category and every turn id its evidence names, in order; a record of
`qa` alone is enough then.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

TIME = "%I:%M %p on %d %B, %Y"
SESSION = re.compile(r"session_(\d+)")
TURN_ID = re.compile(r"D\d+:\d+")


class FormatError(ValueError):
    """The file is not a LoCoMo record; the message says what is missing or wrong."""


def load(path: Path) -> dict[str, Any]:
    """Read one record. Raises: FormatError if the file cannot be read or is not a JSON object."""
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})") from None
    except ValueError:
        raise FormatError("is not JSON") from None
    if not isinstance(record, dict):
        raise FormatError("is not one record; split the list of conversations into one file each")
    return record


def messages(record: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Give the turns in order as lines to ingest. Raises: FormatError naming the first field that does not fit."""
    try:
        conversation = record["conversation"]
        roles = {conversation["speaker_a"]: "user", conversation["speaker_b"]: "assistant"}
        for session in sorted(filter(SESSION.fullmatch, conversation), key=_number):
            start = datetime.strptime(conversation[f"{session}_date_time"], TIME).replace(tzinfo=UTC)
            for offset, turn in enumerate(conversation[session]):
                yield {
                    "id": turn["dia_id"],
                    "agent": record["sample_id"],
                    "session": session,
                    "role": roles[turn["speaker"]],
                    "content": _content(turn),
                    "time": (start + timedelta(seconds=offset)).isoformat(),
                }
    except KeyError as error:
        raise FormatError(f"has no {error} where a LoCoMo record has one") from None
    except (TypeError, ValueError) as error:
        raise FormatError(f"does not have the shape of a LoCoMo record ({error})") from None


def questions(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give each question with its evidence and category (1 multi-hop, 2 temporal, 3 open, 4 single-hop, 5 no answer)."""
    try:
        for entry in record["qa"]:
            evidence = [turn for text in entry.get("evidence") or [] for turn in TURN_ID.findall(text)]
            yield {"question": entry["question"], "evidence": evidence, "category": entry["category"]}
    except KeyError as error:
        raise FormatError(f"has no {error} where a LoCoMo record has one") from None
    except (AttributeError, TypeError) as error:
        raise FormatError(f"does not have the shape of a LoCoMo record ({error})") from None


def main(arguments: list[str] | None = None) -> int:
    """Print the lines; a file of another format ends with exit code 2 and one sentence."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("record", type=Path, help="one LoCoMo conversation, as JSON")
    parser.add_argument("--questions", action="store_true", help="print the labeled questions instead of the turns")
    options = parser.parse_args(arguments)
    try:
        record = load(options.record)
        # All before the first line is printed: half a conversation in a file would look whole.
        lines = list(questions(record) if options.questions else messages(record))
    except FormatError as error:
        parser.error(f"{options.record} {error}")
    sys.stdout.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return 0


def _number(session: str) -> int:
    return int(session.removeprefix("session_"))


def _content(turn: dict[str, Any]) -> str:
    """A picture is known only by its caption, so the caption is part of what was said."""
    caption = turn.get("blip_caption")
    said = f"{turn['speaker']}: {turn['text']}"
    return f"{said} [shares a picture: {caption}]" if caption else said


if __name__ == "__main__":
    sys.exit(main())
