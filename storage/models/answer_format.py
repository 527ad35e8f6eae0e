"""How the form of an answer is asked for, and how an answer is read and criticized."""

import contextlib
import json
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from isotherm.pipeline.clean import storable
from isotherm.pipeline.lenient_json import json_values, read_cut_off
from isotherm.pipeline.ports import AnswerT, Question

Dialect = Literal["json_schema", "json_object"]

_STRUCTURAL = frozenset({
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "items", "properties", "required",
    "type",
})  # fmt: skip
_NAMED_SCHEMAS = frozenset({"$defs", "properties"})
_MAX_PROBLEMS = 20


class InvalidAnswerError(ValueError):
    """An answer that cannot be used.

    Args: problems: for the model that gave it; fields: top-level fields that are wrong, for messages and logs.
    """

    def __init__(self, problems: str, fields: list[str]) -> None:
        super().__init__("invalid answer")
        self.problems = problems
        self.fields = fields


def response_format(question: Question[Any], dialect: Dialect) -> dict[str, Any]:
    """Return the field of the request that asks for the answer's form."""
    if dialect == "json_object":
        return {"type": "json_object"}
    schema = strict_schema(question.answer)  # type: ignore[arg-type]  # any class is hashable
    return {"type": "json_schema", "json_schema": {"name": question.name, "strict": True, "schema": schema}}


def system_text(question: Question[Any], dialect: Dialect) -> str:
    """Return what to do, with the answer's form in words for servers that are not sent a schema of their own."""
    if dialect == "json_schema":
        return question.system
    schema = json.dumps(question.answer.model_json_schema(), ensure_ascii=False)
    return f"{question.system}\n\nAnswer with one JSON object that fits this JSON schema, and nothing else:\n{schema}"


@lru_cache(maxsize=64)  # to make a schema takes longer than all the rest of a question
def strict_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """Return the schema in the subset that strict servers accept: structure only, every field required, none besides.

    Bounds and patterns are left out; they are checked when the answer is parsed. The same one is given to all: it is not
    to be changed.
    """
    return _strict(answer.model_json_schema())


def parse_answer(question: Question[AnswerT], text: str, *, cut_off: bool) -> AnswerT:
    """Read the first value of an answer that has the asked form.

    A list alone stands for the answer's only field. An answer that was cut off is read up to its last whole item where
    the question allows that.

    Raises: InvalidAnswerError.
    """
    first: InvalidAnswerError | None = None
    for value in json_values(text):
        try:
            return _validated(question.answer, value)
        except InvalidAnswerError as error:
            first = first or error
    if cut_off and question.keep_whole_items:
        with contextlib.suppress(ValueError):
            value = read_cut_off(text)
            if _holds_items(value):  # an answer that was cut before its first item says nothing, not that there is none
                return _validated(question.answer, value)
    if cut_off:
        raise InvalidAnswerError("It was cut off; answer more briefly.", ["answer"])
    raise first or InvalidAnswerError("It holds no JSON object.", ["answer"])


def _holds_items(value: object) -> bool:
    lists = value.values() if isinstance(value, dict) else [value]
    return any(isinstance(each, list) and each for each in lists)


def repair_text(error: InvalidAnswerError) -> str:
    """Return what a model is told about its invalid answer."""
    return (
        f"Your answer cannot be used:\n{error.problems}\nAnswer again, with one whole JSON object that fits the schema "
        "and nothing else."
    )


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if "oneOf" in schema:
        schema = {**schema, "anyOf": schema["oneOf"]}
    kept = {key: _strict_value(key, value) for key, value in schema.items() if key in _STRUCTURAL}
    if "properties" in kept:
        kept |= {"required": list(kept["properties"]), "additionalProperties": False}
    return kept


def _strict_value(key: str, value: Any) -> Any:  # noqa: ANN401 - any value of a schema
    if key in _NAMED_SCHEMAS:
        return {name: _strict(part) for name, part in value.items()}
    if key == "anyOf":
        return [_strict(part) for part in value]
    return _strict(value) if isinstance(value, dict) else value


def _validated(answer: type[AnswerT], value: object) -> AnswerT:
    if isinstance(value, list) and len(answer.model_fields) == 1:
        field = next(iter(answer.model_fields))
        value = {answer.model_fields[field].alias or field: value}
    try:
        return answer.model_validate(storable(value))
    except ValidationError as error:
        raise _criticized(answer, error) from None


def _criticized(answer: type[BaseModel], error: ValidationError) -> InvalidAnswerError:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"- {'.'.join(map(str, each['loc'])) or 'answer'}: {each['msg']}" for each in found[:_MAX_PROBLEMS]]
    if len(found) > _MAX_PROBLEMS:
        lines.append(f"- and {len(found) - _MAX_PROBLEMS} more")
    # Deeper parts of a location can be keys that the model made up.
    known = answer.model_fields.keys() | {field.alias for field in answer.model_fields.values()}
    fields = {str(each["loc"][0]) if each["loc"] and each["loc"][0] in known else "answer" for each in found}
    return InvalidAnswerError("\n".join(lines), sorted(fields))
