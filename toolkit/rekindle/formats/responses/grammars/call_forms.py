"""The text around tool calls in answers, by the field of the calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rekindle.formats.responses import families
from rekindle.formats.responses.forms import code, objects, tags
from rekindle.formats.responses.forms.objects import TemplateData
from rekindle.formats.responses.grammars.notations import GEMMA, PYTHON, Notation

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
        notation: for arguments in another notation than JSON, their notation.
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
    notation: Notation | None = None

    @property
    def is_json(self) -> bool:
        """True if a call is JSON without delimiters."""
        return not self.begin and self.before.startswith("{")


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
    (code.GEMMA4, CallForm("<|tool_call>call:", "{", "}<tool_call|>", notation=GEMMA)),
    (code.LFM2, CallForm("", "(", ")", "<|tool_call_start|>[", "]<|tool_call_end|>", ", ", notation=PYTHON)),
    (code.PYTHONIC, CallForm("", "(", ")", "[", "]", ", ", notation=PYTHON)),
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
    if form is None or form.tag or form.notation:
        form = form_of(objects.HERMES)
    assert form is not None, "the form of Hermes is known"
    return form
