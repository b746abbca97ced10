"""Grammar of answers with required tool calls, in llguidance's Lark syntax."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.responses import families
from rekindle.core.text.responses.calls import allows
from rekindle.core.text.responses.forms import objects, tags
from rekindle.core.text.responses.forms.objects import TemplateData

JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Style of JSON arguments, as in the JSON of chat templates."""


TYPED: Final = "TYPED"
_LINES: Final = ("<parameter=", ">\n", "\n</parameter>\n")


@dataclass(frozen=True, slots=True)
class CallForm:
    """The text around the tool calls of an answer.

    Attributes:
        before: text before the name of each call.
        between: text between a call's name and its arguments.
        after: text after a call's arguments.
        begin, end: text around the whole list of calls.
        separator: text between two calls, or None if an answer has a single call.
        tag: for arguments as tags instead of JSON, the texts before a name, between it and the value, and after the
            value. `TYPED` in the second one means "true" for a string, and "false" for JSON.
    """

    before: str
    between: str
    after: str
    begin: str = ""
    end: str = ""
    separator: str | None = ""
    tag: tuple[str, str, str] | None = None


_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '
_FORMS: Final[Sequence[tuple[TemplateData, CallForm]]] = (
    (objects.HERMES, CallForm(f"<tool_call>\n{_NAME}", _ARGUMENTS, "}\n</tool_call>", separator="\n")),
    (
        tags.PARAMETERS,
        CallForm("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", separator="\n", tag=_LINES),
    ),
    (
        tags.SEED_PARAMETERS,
        CallForm(
            "<seed:tool_call>\n<function=",
            ">\n",
            "</function>\n</seed:tool_call>",
            separator="\n",
            tag=("<parameter=", ">", "</parameter>\n"),
        ),
    ),
    (objects.NEMOTRON, CallForm(_NAME, _ARGUMENTS, "}", "<TOOLCALL>[", "]</TOOLCALL>", ", ")),
    (
        objects.COMMAND,
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
        objects.HUNYUAN,
        CallForm("<tool_call>", "\n```json\n", "\n```</tool_call>", "<tool_calls>\n", "\n</tool_calls>", "\n"),
    ),
    (objects.MISTRAL_LIST, CallForm(_NAME, _ARGUMENTS, "}", "[TOOL_CALLS] [", "]", ", ")),
    (objects.MISTRAL_NAMED, CallForm("[TOOL_CALLS]", "[ARGS]", "")),
    (
        objects.DEEPSEEK_FENCED,
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
        objects.DEEPSEEK,
        CallForm(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        ),
    ),
    (
        objects.KIMI,
        CallForm(
            "<|tool_call_begin|>functions.",
            ":0<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
        ),
    ),
    (
        objects.ACTION,
        CallForm('{"tool_name": "', '", "parameters": ', "}", "Action: ```json\n[\n    ", "\n]```", ",\n    "),
    ),
    (objects.FUNCTIONARY, CallForm("<function=", ">", "</function>")),
    (objects.APERTUS, CallForm('{"', '": ', "}", "<|tools_prefix|>[", "]<|tools_suffix|>", ", ")),
    (objects.XLAM, CallForm(_NAME, _ARGUMENTS, "}", "[", "]", ", ")),
    (objects.FUNCTOOLS, CallForm(_NAME, _ARGUMENTS, "}", "functools[", "]", ", ")),
    (
        tags.GLM,
        CallForm(
            "<tool_call>",
            "\n",
            "</tool_call>",
            separator="\n",
            tag=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        ),
    ),
    (
        tags.GLM_DENSE,
        CallForm(
            "<tool_call>",
            "",
            "</tool_call>",
            tag=("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
        ),
    ),
    (
        tags.MINIMAX,
        CallForm(
            '<invoke name="',
            '">\n',
            "</invoke>\n",
            "<minimax:tool_call>\n",
            "</minimax:tool_call>",
            tag=('<parameter name="', '">', "</parameter>\n"),
        ),
    ),
    (
        tags.DSML,
        CallForm(
            '<｜DSML｜invoke name="',
            '">\n',
            "</｜DSML｜invoke>\n",
            "\n\n<｜DSML｜function_calls>\n",
            "</｜DSML｜function_calls>",
            tag=('<｜DSML｜parameter name="', f'" string="{TYPED}">', "</｜DSML｜parameter>\n"),
        ),
    ),
    (objects.LLAMA3, CallForm(_NAME, '", "parameters": ', "}", separator=None)),
    (objects.GRANITE, CallForm(_NAME, _ARGUMENTS, "}", "<|tool_call|>[", "]", ", ")),
    (
        families.HARMONY["tool_calls"],
        CallForm("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>", separator=None),
    ),
)


def form_of(calls: TemplateData | None) -> CallForm | None:
    """Return the form of calls parsed by a known field definition, or None for an unknown definition."""
    return next((form for template_data, form in _FORMS if template_data == calls), None)


def call_form_in(chat_template: str) -> CallForm:
    """Return the form of calls for a chat template without tools: its own, or that of Hermes."""
    form = form_of(families.call_field_for(chat_template))
    if form is None or form.tag:
        form = form_of(objects.HERMES)
    assert form is not None, "the form of Hermes is known"
    return form


def call_grammar(
    form: CallForm,
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    special: Mapping[str, int],
    reasoning: tuple[str, str] | None = None,
    in_reasoning: bool = False,
) -> str:
    """Return the grammar of answers with tool calls, after reasoning if the model reasons.

    Args:
        form: the text around calls.
        tools: JSON schemas of the tools.
        choice: "required" for one or more calls of any tool, or the name of a tool to call exactly once.
        special: ids of the possible delimiter tokens by text. A grammar must name special tokens by id, and the parser
            expects delimiters as tokens.
        reasoning: the delimiters of reasoning, or None for a model without reasoning.
        in_reasoning: whether the prompt has already begun the reasoning.

    Raises:
        InvalidRequest: no tool has this name, or a tool has no name.
    """
    functions = dict(map(_function, tools))
    if choice != "required" and choice not in functions:
        raise InvalidRequest(
            f'tool_choice must be "auto", "required", "none" or the name of a tool '
            f"({', '.join(functions)}); got {choice!r:.80}"
        )
    candidates = functions if choice == "required" else {choice: functions[choice]}
    writer = _Writer(special)
    rules = [
        f"start: {'thought ' if reasoning else ''}{writer.text(form.begin)} {_calls(form, choice, writer)} "
        f"{writer.text(form.end)}"
    ]
    if reasoning:
        rules += _reasoning_rules(*reasoning, in_reasoning, writer)
    rules.append(f"call: {' | '.join(f'call_{place}' for place in range(len(candidates)))}")
    for place, (name, schema) in enumerate(candidates.items()):
        arguments = f"arguments_{place}"
        parts = (writer.text(form.before + name + form.between), arguments, writer.text(form.after))
        rules.append(f"call_{place}: {' '.join(filter(None, parts))}")
        rules += _tags(arguments, schema, form.tag, writer) if form.tag else [f"{arguments}: {_json(schema)}"]
    return "\n".join(rules) + "\n"


def _calls(form: CallForm, choice: str, writer: "_Writer") -> str:
    if choice != "required" or form.separator is None:
        return "call"
    return f"call ({' '.join(filter(None, (writer.text(form.separator), 'call')))})*"


def _reasoning_rules(begin: str, end: str, in_reasoning: bool, writer: "_Writer") -> Iterator[str]:
    """Yield the rules for reasoning. It is optional, unless the prompt has already begun it."""
    closing = max((mark for mark in writer.special if mark and end.startswith(mark)), key=len, default=None)
    if closing is None:
        yield f"thoughts[suffix={json.dumps(end)}]: /(.|\\n)*/"
    else:
        yield f"THOUGHTS: {_without(closing)}"
        yield f"thoughts: THOUGHTS? {writer.text(end)}"
    yield "thought: thoughts /\\s*/" if in_reasoning else f"thought: ({writer.text(begin)} thoughts /\\s*/)?"


def _tags(name: str, schema: Mapping[str, Any], tag: tuple[str, str, str], writer: "_Writer") -> Iterator[str]:
    """Yield the rules for arguments as tags, in the order of the schema.

    Strings are written without quotes. They cannot contain argument tags, which the parser would match.
    """
    begin, key_end, value_end = tag
    end, tags = writer.text(value_end), []
    for place, (key, kind) in enumerate(schema.get("properties", {}).items()):
        value = f"{name}_{place}"
        texts = [each for each in kind.get("enum", ()) if isinstance(each, str)] if isinstance(kind, Mapping) else []
        is_text = bool(texts) or allows("string", kind, schema)
        opening = f"{begin}{key}{key_end.replace(TYPED, str(is_text).lower())}"
        rule = f"{writer.text(opening)} {value}"
        tags.append(rule if key in schema.get("required", ()) else f"({rule})?")
        if texts:
            yield f"{value}: ({' | '.join(json.dumps(text, ensure_ascii=False) for text in texts)}) {end}"
        elif is_text:
            text = _without(begin, value_end.strip())
            if end.startswith("<"):  # a terminal cannot have a token
                yield f"{value.upper()}: {text}"
                yield f"{value}: {value.upper()}? {end}"
            else:
                yield f"{value.upper()}: ({text})? {end}"
                yield f"{value}: {value.upper()}"
        else:
            yield f"{value}: {_json(kind)} {end}"
    yield f"{name}: {' '.join(tags) or json.dumps('')}"


def _without(*texts: str) -> str:
    """Return a terminal for nonempty text without any of the given texts."""
    forbidden = "|".join(re.escape(text).replace("/", "\\/") for text in texts)
    return f"/(.|\\n)+/ & ~/(.|\\n)*({forbidden})(.|\\n)*/"


def _json(schema: Any) -> str:
    """Return the rule for JSON of a schema. llguidance must enforce every part of the schema."""
    rule_schema = dict(schema) if isinstance(schema, Mapping) else {}
    options = {**JSON_STYLE, "lenient": False, "coerce_one_of": False}
    return f"%json {json.dumps({**rule_schema, 'x-guidance': options}, ensure_ascii=False)}"


def _function(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the parameter schema of a tool."""
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
    """Converter of texts to grammar terms."""

    special: Mapping[str, int]

    def text(self, text: str) -> str:
        """Return the grammar terms of a text, with special tokens by id."""
        present = sorted((mark for mark in self.special if mark and mark in text), key=len, reverse=True)
        if not present:
            return json.dumps(text, ensure_ascii=False) if text else ""
        pieces = re.split("(" + "|".join(map(re.escape, present)) + ")", text)
        terms = (
            f"<[{self.special[each]}]>" if each in self.special else json.dumps(each, ensure_ascii=False)
            for each in pieces
            if each
        )
        return " ".join(terms)
