"""Bodies of requests for decisions: typed questions about a state, in the forms of System One and of OpenAI."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import likely
from rekindle.core.request.checks import preview
from rekindle.results.scores.questions import Choice, Question, Score, YesNo
from rekindle.server.common.fields import IGNORED, Fields

Questions = TypeVar("Questions", dict[str, Any], list[Any])

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "priority": (0,),
    "instructions": ("",),
    "images": ([],),
    "audio": ([],),
    "videos": ([],),
    "assets": ({},),
    "joint": (False,),
    "prompt_cache_options": ({"mode": "implicit"},),
}
"""The values of fields that are equivalent to an absent field."""
OF_QUESTION: Final = ("type", "name", "instructions")
"""The fields of all questions in OpenAI's form."""
KINDS: Final = ("choice", "noul", "score")
"""The kinds of questions of System One."""
MOST_QUESTIONS: Final = 400
"""Maximum number of questions of a body, as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """A request for decisions.

    Attributes:
        state: the subject of the questions.
        names: the name of each question, or None.
        questions: the questions.
        values: the value of each option of each question in the answer: a text or a boolean.
        options: the other keywords of `session.decide`.
    """

    state: str
    names: Sequence[str | None]
    questions: Sequence[Question]
    values: Sequence[Sequence[str | bool]]
    options: Mapping[str, Any]


def read_systemone(body: Fields, most: int) -> DecisionRequest:
    """Return the decisions requested by a System One body of at most `most` questions.

    Raises:
        ApiError: the body is invalid.
    """
    state = _state(body, "state")
    by_name = _questions(body, dict, most)
    context = body.take("instructions", str)
    state = "\n\n".join(text for text in (_content(state), context) if text)
    questions = [_read(body, f"questions.{name}", each, _systemone_question) for name, each in by_name.items()]
    options = {
        "cache_salt": body.take("cache_salt", str) or "",
        "chat_template_kwargs": body.take("chat_template_kwargs", dict),
    }
    body.finish(NEUTRAL)
    return DecisionRequest(state, list(by_name), questions, [each.names for each in questions], options)


def read_decision(body: Fields, most: int) -> DecisionRequest:
    """Return the decisions requested by a body of OpenAI's Decisions API, of at most `most` questions.

    Raises:
        ApiError: the body is invalid.
    """
    state = _state(body, "input")
    if not isinstance(state, str):
        state = _input_text(body, state)
    values = _questions(body, list, most)
    questions = [_read(body, f"questions[{place}]", each, _openai_question) for place, each in enumerate(values)]
    salt = body.take("cache_salt", str) or ""
    body.finish(NEUTRAL, IGNORED)
    names = [each.get("name") for each in values]
    option_values = [
        [choice["value"] for choice in each["choices"]] if each["type"] == "choice" else question.names
        for each, question in zip(values, questions, strict=True)
    ]
    return DecisionRequest(state, names, questions, option_values, {"cache_salt": salt})


def _state(body: Fields, name: str) -> Any:
    """Return the state in a required field."""
    state = body.any(name)
    if state is None:
        body.refuse_missing(name)
    return state


def _questions(body: Fields, kind: type[Questions], most: int) -> Questions:
    """Return the questions; refuse none and more than the limits allow."""
    questions, limit = body.require("questions", kind), min(most, MOST_QUESTIONS)
    if not 0 < len(questions) <= limit:
        body.refuse("questions", f"must have 1 to {limit} questions, got {len(questions)}")
    return questions


def _read(body: Fields, name: str, value: Any, reader: Callable[[Any], Question]) -> Question:
    """Return a question; an error names its place in the body."""
    try:
        return reader(value)
    except InvalidRequest as error:
        body.refuse(name, f"is not a question: {error}")
    except (KeyError, TypeError, AttributeError):
        body.refuse(name, f"must be an object with a type, instructions and its options, got {preview(value)}")


def _systemone_question(value: Mapping[str, Any]) -> Question:
    """Return a question of System One.

    Raises:
        InvalidRequest: the question is invalid.
        KeyError, TypeError, AttributeError: the value has another form.
    """
    _check_names(value, ("type", "instructions", "criteria"))
    instructions, criteria = _content(value.get("instructions")), value.get("criteria") or {}
    match value["type"]:
        case "choice":
            return Choice(instructions, {name: _content(text) or None for name, text in criteria.items()})
        case "noul":
            sides = {name: _content(text) or None for name, text in criteria.items()}
            unknown = sides.keys() - {"true", "false"}
            if unknown:
                raise InvalidRequest(f"criteria of a noul must be true and false, got {preview(sorted(unknown)[0])}")
            return YesNo(instructions, sides.get("true"), sides.get("false"))
        case "score":
            if not isinstance(criteria, list):
                raise InvalidRequest(f"criteria of a score must be the list of its levels, got {preview(criteria)}")
            return Score(instructions, [_content(level) for level in criteria])
        case other:
            raise InvalidRequest(f"type must be one of {', '.join(KINDS)}, got {preview(other)}")


def _openai_question(value: Mapping[str, Any]) -> Question:
    """Return a question of OpenAI's Decisions API; raises as `_systemone_question` does."""
    instructions, name = _parts(value["instructions"]), value.get("name")
    if not isinstance(name, str | None):
        raise InvalidRequest(f"name must be a text, got {preview(name)}")
    match value["type"]:
        case "predicate":
            _check_names(value, OF_QUESTION)
            return YesNo(instructions)
        case "choice":
            _check_names(value, (*OF_QUESTION, "choices"))
            for choice in value["choices"]:
                _check_names(choice, ("value", "description"))
            choices = [(_value(choice["value"]), choice.get("description")) for choice in value["choices"]]
            if len({name for name, _ in choices}) < len(choices):
                raise InvalidRequest("the values of its choices must differ, also in their texts")
            return Choice(instructions, dict(choices))
        case "score":
            _check_names(value, (*OF_QUESTION, "levels"))
            for level in value["levels"]:
                _check_names(level, ("label", "description"))
            levels = [(level["label"], level.get("description")) for level in value["levels"]]
            return Score(instructions, [": ".join(text for text in level if text) for level in levels])
        case other:
            raise InvalidRequest(f"type must be predicate, choice or score, got {preview(other)}")


def _check_names(value: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise InvalidRequest for an unknown field, which might change the answer; TypeError for no object."""
    if not isinstance(value, Mapping):
        raise TypeError("no object")
    if unknown := [name for name in value if name not in names]:
        hint = likely(unknown[0], names) or f"known are {', '.join(names)}"
        raise InvalidRequest(f"it has an unknown field {preview(unknown[0])}; {hint}")


def _value(value: str | bool) -> str:
    return json.dumps(value) if isinstance(value, bool) else value


def _content(value: Any) -> str:
    """Return a text as it is, nothing for None, and other values as JSON, as in the prompts of transformers."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _parts(value: Any) -> str:
    """Return a text or a list of parts as text.

    Raises:
        InvalidRequest: a part is an image, or of an unknown type.
        KeyError, TypeError: the value has another form.
    """
    if isinstance(value, str):
        return value
    texts = []
    for part in value:
        match part["type"]:
            case "input_text" | "output_text":
                texts.append(part["text"])
            case "input_json":
                texts.append(_content(part["data"]))
            case "refusal":
                texts.append(part["refusal"])
            case other:
                raise InvalidRequest(f"a part of type {preview(other)} is not supported; give texts or JSON")
    return "\n".join(texts)


def _input_text(body: Fields, items: Any) -> str:
    """Return the items of an input as text: a user's message alone as it is, others as JSON."""
    try:
        if not isinstance(items, list):
            raise InvalidRequest("it must be a text or a list of items")
        if wrong := [item for item in items if not isinstance(item, dict)]:
            raise InvalidRequest(f"each item must be an object, got {preview(wrong[0])}")
        plain = [{**item, "content": _parts(item["content"])} if "content" in item else item for item in items]
    except (InvalidRequest, KeyError, TypeError) as error:
        body.refuse("input", f"must be a text, or messages, calls and their outputs in text: {error}")
    if len(plain) == 1 and plain[0].get("role") == "user" and "content" in plain[0]:
        return str(plain[0]["content"])
    return json.dumps(plain, ensure_ascii=False)
