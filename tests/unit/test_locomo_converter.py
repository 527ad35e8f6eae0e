import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "locomo_to_jsonl.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("locomo_to_jsonl", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


converter = load_script()


def record() -> dict[str, Any]:
    return {
        "sample_id": "conv-0",
        "conversation": {
            "speaker_a": "Ada",
            "speaker_b": "Ben",
            "session_10_date_time": "12:05 am on 2 June, 2023",
            "session_10": [{"speaker": "Ben", "dia_id": "D10:1", "text": "Späte Grüße!"}],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_2": [
                {"speaker": "Ada", "dia_id": "D2:1", "text": "Hi Ben!"},
                {"speaker": "Ben", "dia_id": "D2:2", "text": "Look!", "blip_caption": "a photo of a red boat"},
            ],
            "session_11_date_time": "1:00 pm on 9 June, 2023",
        },
        "qa": [
            {"question": "What color is the boat?", "answer": "red", "evidence": ["D2:2; D10:1", "D"], "category": 4},
            {"question": "Who is Cleo?", "adversarial_answer": "a cat", "evidence": [], "category": 5},
        ],
    }


def run(tmp_path: Path, content: object, *options: str) -> int:
    path = tmp_path / "record.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    code: int = converter.main([str(path), *options])
    return code


def test_turns_become_lines_in_order_of_session_and_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, record()) == 0
    first, second, third = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {
        "id": "D2:1",
        "agent": "conv-0",
        "session": "session_2",
        "role": "user",
        "content": "Ada: Hi Ben!",
        "time": "2023-05-08T13:56:00+00:00",
    }
    assert second["role"] == "assistant"
    assert second["content"] == "Ben: Look! [shares a picture: a photo of a red boat]"
    assert second["time"] == "2023-05-08T13:56:01+00:00"
    assert (third["session"], third["time"]) == ("session_10", "2023-06-02T00:05:00+00:00")


def test_questions_carry_every_turn_their_evidence_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only_questions = {"sample_id": "conv-0", "qa": record()["qa"]}
    assert run(tmp_path, only_questions, "--questions") == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {"question": "What color is the boat?", "evidence": ["D2:2", "D10:1"], "category": 4}
    assert second["evidence"] == []
    assert "answer" not in second


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ([record()], "is not one record"),
        ({"qa": []}, "has no 'conversation'"),
        (
            {**record(), "conversation": {"speaker_a": "Ada", "speaker_b": "Ben", "session_1": []}},
            "session_1_date_time",
        ),
        ({**record(), "conversation": ["Ada"]}, "does not have the shape"),
    ],
)
def test_other_formats_end_with_one_clear_sentence_and_no_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, reason: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(tmp_path, content)
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert reason in printed.err
    assert printed.out == ""


def test_speaker_outside_the_pair_is_refused() -> None:
    strange = record()
    strange["conversation"]["session_2"][0]["speaker"] = "Cleo"
    with pytest.raises(converter.FormatError, match="Cleo"):
        list(converter.messages(strange))


def test_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        converter.main([str(tmp_path / "nowhere.json")])
    assert "cannot be read" in capsys.readouterr().err
