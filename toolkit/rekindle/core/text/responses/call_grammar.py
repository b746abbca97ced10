"""The grammar that holds an answer to calls of tools, in the form of llguidance's Lark."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.responses import families
from rekindle.core.text.responses.calls import allows
from rekindle.core.text.responses.families import Written

JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How the arguments are written: as in the JSON that chat templates write."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The text that stands around the calls of an answer.

    Attributes:
        before: what each call begins with, up to its name.
        between: what is between its name and its arguments.
        after: what it ends with.
        begin, end: what is around all calls.
        separator: what is between two calls; None where an answer has one call alone.
        tags: whether arguments are tags with values, and no JSON.
        edge: what is between a tag and its value.
    """

    before: str
    between: str
    after: str
    begin: str = ""
    end: str = ""
    separator: str | None = ""
    tags: bool = False
    edge: str = "\n"


_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '
_FORMS: Final[Sequence[tuple[Written, CallForm]]] = (
    (families.HERMES, CallForm(f"<tool_call>\n{_NAME}", _ARGUMENTS, "}\n</tool_call>", separator="\n")),
    (
        families.PARAMETERS,
        CallForm("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", separator="\n", tags=True),
    ),
    (
        families.SEED_PARAMETERS,
        CallForm(
            "<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>", separator="\n", tags=True, edge=""
        ),
    ),
    (families.NEMOTRON, CallForm(_NAME, _ARGUMENTS, "}", "<TOOLCALL>[", "]</TOOLCALL>", ", ")),
    (
        families.COMMAND,
        CallForm(
            '{"tool_call_id": "0", "tool_name": "',
            '", "parameters": ',
            "}",
            "<|START_ACTION|>[\n    ",
            "\n]<|END_ACTION|>",
            ",\n    ",
        ),
    ),
    (
        families.HUNYUAN,
        CallForm("<tool_call>", "\n```json\n", "\n```</tool_call>", "<tool_calls>\n", "\n</tool_calls>", "\n"),
    ),
    (families.MISTRAL_LIST, CallForm(_NAME, _ARGUMENTS, "}", "[TOOL_CALLS] [", "]", ", ")),
    (families.MISTRAL_NAMED, CallForm("[TOOL_CALLS]", "[ARGS]", "")),
    (
        families.DEEPSEEK_FENCED,
        CallForm(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "\n```json\n",
            "\n```<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "\n",
        ),
    ),
    (
        families.DEEPSEEK,
        CallForm(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        ),
    ),
    (families.LLAMA3, CallForm(_NAME, '", "parameters": ', "}", separator=None)),
    (families.GRANITE, CallForm(_NAME, _ARGUMENTS, "}", "<|tool_call|>[", "]", ", ")),
    (
        families.HARMONY["tool_calls"],
        CallForm("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>", separator=None),
    ),
)


def form_of(calls: Written | None) -> CallForm | None:
    """Return what stands around calls that are read in one of our ways; None for another."""
    return next((form for written, form in _FORMS if written == calls), None)


def call_grammar(
    form: CallForm,
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    special: Mapping[str, int],
    thinks: tuple[str, str] | None = None,
    thinking: bool = False,
) -> str:
    """Return the grammar of answers that are calls, after reasoning where the model reasons.

    Args:
        form: what stands around calls.
        tools: their JSON schemas.
        choice: "required" for one or more calls of any, or the name of the one that is to be called once.
        special: the tokens that may be marks by their text. A grammar has to name special ones by their ids, and
            answers are read by them.
        thinks: what reasoning begins and ends with; None for a model that does not reason.
        thinking: whether the prompt has begun the reasoning.

    Raises:
        InvalidRequest: there is no tool of this name, or a tool has none.
    """
    functions = dict(map(_function, tools))
    if choice != "required" and choice not in functions:
        raise InvalidRequest(
            f'tool_choice must be "auto", "required", "none" or the name of a tool, which are '
            f"{', '.join(functions)}; got {choice!r:.80}"
        )
    chosen = functions if choice == "required" else {choice: functions[choice]}
    write = _Writer(special)
    rules = [
        f"start: {'thought ' if thinks else ''}{write.text(form.begin)} {_calls(form, choice, write)} "
        f"{write.text(form.end)}"
    ]
    if thinks:
        rules += _thought(*thinks, thinking, write)
    rules.append(f"call: {' | '.join(f'call_{place}' for place in range(len(chosen)))}")
    for place, (name, schema) in enumerate(chosen.items()):
        arguments = f"arguments_{place}"
        parts = (write.text(form.before + name + form.between), arguments, write.text(form.after))
        rules.append(f"call_{place}: {' '.join(filter(None, parts))}")
        rules += _tags(arguments, schema, form.edge) if form.tags else [f"{arguments}: {_json(schema)}"]
    return "\n".join(rules) + "\n"


def _calls(form: CallForm, choice: str, write: "_Writer") -> str:
    if choice != "required" or form.separator is None:
        return "call"
    return f"call ({' '.join(filter(None, (write.text(form.separator), 'call')))})*"


def _thought(begin: str, end: str, begun: bool, write: "_Writer") -> Iterator[str]:
    """Yield the rules of reasoning, which the model may leave out unless the prompt has begun it."""
    closing = max((mark for mark in write.special if mark and end.startswith(mark)), key=len, default=None)
    if closing is None:
        yield f"thoughts[suffix={json.dumps(end)}]: /(.|\\n)*/"
    else:
        yield f"THOUGHTS: {_without(closing)}"
        yield f"thoughts: THOUGHTS? {write.text(end)}"
    yield "thought: thoughts /\\s*/" if begun else f"thought: ({write.text(begin)} thoughts /\\s*/)?"


def _tags(name: str, schema: Mapping[str, Any], edge: str) -> Iterator[str]:
    """Yield the rules of arguments that are tags, in the order of the schema.

    A text is written without quotes, and without tags of arguments, which would be read as such.
    """
    end = json.dumps(f"{edge}</parameter>\n")
    tags = []
    for place, (key, kind) in enumerate(schema.get("properties", {}).items()):
        value = f"{name}_{place}"
        tag = f"{json.dumps(f'<parameter={key}>' + edge)} {value}"
        tags.append(tag if key in schema.get("required", ()) else f"({tag})?")
        texts = [each for each in kind.get("enum", ()) if isinstance(each, str)] if isinstance(kind, Mapping) else []
        if texts:
            yield f"{value}: ({' | '.join(json.dumps(text, ensure_ascii=False) for text in texts)}) {end}"
        elif allows("string", kind, schema):
            yield f"{value.upper()}: ({_without('<parameter=', '</parameter>')})? {end}"
            yield f"{value}: {value.upper()}"
        else:
            yield f"{value}: {_json(kind)} {end}"
    yield f"{name}: {' '.join(tags) or json.dumps('')}"


def _without(*texts: str) -> str:
    """Return the terminal of a text that has none of some others in it, and is not empty."""
    others = "|".join(re.escape(text).replace("/", "\\/") for text in texts)
    return f"/(.|\\n)+/ & ~/(.|\\n)*({others})(.|\\n)*/"


def _json(schema: Any) -> str:
    """Return the rule of the JSON of a schema. No part of a schema is passed over."""
    written = dict(schema) if isinstance(schema, Mapping) else {}
    options = {**JSON_STYLE, "lenient": False, "coerce_one_of": False}
    return f"%json {json.dumps({**written, 'x-guidance': options}, ensure_ascii=False)}"


def _function(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the parameters of a tool."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"tool_choice needs tools with names, got {tool!r:.80}")
    parameters = function.get("parameters") or {"type": "object"}
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(f"the parameters of {name} must be a JSON schema, got {parameters!r:.80}")
    return name, {"additionalProperties": False, **parameters}


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes texts into a grammar."""

    special: Mapping[str, int]

    def text(self, text: str) -> str:
        """Return a text as a grammar has it: special tokens by their ids, and what is between them."""
        known = sorted((mark for mark in self.special if mark and mark in text), key=len, reverse=True)
        if not known:
            return json.dumps(text, ensure_ascii=False) if text else ""
        pieces = re.split("(" + "|".join(map(re.escape, known)) + ")", text)
        written = (
            f"<[{self.special[each]}]>" if each in self.special else json.dumps(each, ensure_ascii=False)
            for each in pieces
            if each
        )
        return " ".join(written)
