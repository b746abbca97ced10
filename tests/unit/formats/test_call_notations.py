"""Required calls in Python and in the notation of Gemma 4 are read, and follow their schemas."""

from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.formats.rendering.chat import render
from rekindle.formats.response import ToolCall
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.reading.reader import TemplateReading
from rekindle.formats.responses.tool_choice import tool_choice_grammar
from tests.unit.chat_forms import FORMS, tokenizer_of
from tests.unit.grammar_walks import walk

THOUGHT = "<|turn>model\n<think></think><|channel>thought\n<channel|>"
"""The end of a prompt without reasoning after it."""
NOTATIONS = ("llama 3.2, pythonic", "lfm2", "gemma 4")
EACH = pytest.mark.parametrize("name", NOTATIONS)
TEXT = {"type": "string"}
KINDS: dict[str, Any] = {
    "text": TEXT,
    "flag": {"type": "boolean"},
    "count": {"type": "integer", "minimum": -3, "maximum": 12},
    "size": {"enum": ["small", 'it\'s "large"', '<|"|>']},
    "short": {"type": "string", "minLength": 1, "maxLength": 3},
    "code": {"type": "string", "pattern": "^[A-C]{2}$"},
    "day": {"type": "string", "format": "date"},
    "maybe": {"anyOf": [TEXT, {"type": "null"}], "title": "Maybe", "default": None},
    "several": {"type": ["integer", "boolean", "null"]},
    "few": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "pair": {"type": "array", "prefixItems": [TEXT, {"type": "boolean"}], "items": False, "minItems": 2},
    "scores": {"type": "object", "additionalProperties": {"anyOf": [TEXT, {"type": "boolean"}]}},
    "place": {
        "type": "object",
        "properties": {"to the": TEXT, "name": TEXT, "open": {"type": "boolean"}},
        "required": ["open", "to the"],
    },
    "tree": {"$ref": "#/$defs/Node"},
    "choice": {"oneOf": [{"type": "boolean"}, {"const": "a{b: c"}]},
    "anything": {},
}
NODE = {
    "type": "object",
    "properties": {"leaf": TEXT, "nodes": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 2}},
    "required": ["leaf"],
    "additionalProperties": False,
}


def tool(name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, "$defs": {"Node": NODE}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool(f"take_{kind}", {"z": {"type": "integer"}, kind: schema}, [kind]) for kind, schema in KINDS.items()]
TOOLS.append(tool("nothing", {}, []))
SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
AROUND = {"lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"), "gemma 4": ("<|tool_call>call:", "<tool_call|>")}
USER = {"role": "user", "content": "Hi"}


def vocabulary_of(name: str) -> tuple[LLTokenizer, int]:
    text = tokenizer_of(name)
    (end,) = text.encode_chat(FORMS[name].end)
    return LLTokenizer(text.backend.to_str(), n_vocab=text.vocab_size, eos_token=[end]), end


def read(name: str, tokens: list[int], tools: Sequence[dict[str, Any]] = TOOLS) -> tuple[ToolCall, ...]:
    text, form = tokenizer_of(name), FORMS[name]
    prompt = text.encode_chat(render([USER], form.template, eos_token=form.end, tools=TOOLS))
    reading, decoder = TemplateReading(format_of(text), text, prompt, tools=tools), IncrementalDecoder(text)
    for token in tokens:
        reading.push(decoder.push(token), [token])
    response, _ = reading.finish()
    assert not response.content
    return response.tool_calls


@EACH
@pytest.mark.parametrize("choice", [*SCHEMAS, "required"])
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 12), marks=pytest.mark.wide)], ids=str)
def test_what_the_grammar_allows_is_read_as_calls(name: str, choice: str, seeds: range) -> None:
    text, (vocabulary, end) = tokenizer_of(name), vocabulary_of(name)
    grammar = tool_choice_grammar(choice, TOOLS, THOUGHT, text)
    most = 0
    for seed in seeds:
        tokens = walk(grammar, vocabulary, text, seed, end, rare="eE", closing=('<|"|>', "<tool_call|>"))
        calls = read(name, [*tokens, end])
        most = max(most, len(calls))
        for call in calls:
            assert call.error is None, text.decode(tokens, skip_special_tokens=False)
            assert choice in ("required", call.name)
            jsonschema.validate(call.arguments, SCHEMAS[call.name], format_checker=jsonschema.FormatChecker())
    assert (most > 1) == (choice == "required")


def allows(name: str, choice: str, answer: str) -> bool:
    text, (vocabulary, _) = tokenizer_of(name), vocabulary_of(name)
    grammar = tool_choice_grammar(choice, TOOLS, "", text)
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
    return bool(matcher.consume_tokens(text.encode_chat(answer)) and matcher.is_accepting())


@EACH
@pytest.mark.parametrize("function", ["get-weather", "a.b-c-d.e", "tool-1"])
def test_names_may_have_hyphens(name: str, function: str) -> None:
    text, (vocabulary, end) = tokenizer_of(name), vocabulary_of(name)
    entry = tool(function, {"x": {"type": "integer"}}, [])
    grammar = tool_choice_grammar(function, [entry], THOUGHT, text)
    for seed in range(4):
        (call,) = read(name, [*walk(grammar, vocabulary, text, seed, end, rare="eE"), end], [entry])
        assert (call.name, call.error) == (function, None)


@EACH
def test_calls_as_the_template_writes_them_are_allowed(name: str) -> None:
    """Check values for which the template has the same notation as the model."""
    form = FORMS[name]
    for arguments in (
        {"text": "a, b\nc: {d} it's"},
        {"flag": True},
        {"count": -3, "z": 2} if name != "gemma 4" else {"count": -3},
        {"size": "small"},
        {"maybe": None},
        {"several": False},
        {"few": [True]},
    ):
        kind = next(iter(arguments))
        ordered = {key: arguments[key] for key in ("z", kind) if key in arguments}
        function = {"name": f"take_{kind}", "arguments": ordered}
        message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        prompt = render([USER], form.template, eos_token=form.end, tools=TOOLS)
        variables = {"add_generation_prompt": False}
        whole = render([USER, message], form.template, eos_token=form.end, tools=TOOLS, variables=variables)
        answer = whole[len(prompt) :].rstrip("\n").removesuffix(form.end)
        for choice in (f"take_{kind}", "required"):
            assert allows(name, choice, answer), answer


@pytest.mark.parametrize(
    ("name", "choice", "answer"),
    [
        ("lfm2", "take_text", """[take_text(text='it is "so"')]"""),
        ("lfm2", "take_place", """[take_place(place={"to the": 'a', "open": True})]"""),
        ("llama 3.2, pythonic", "take_maybe", "[take_maybe(z=1, maybe=None)]"),
        ("gemma 4", "take_place", 'take_place{place:{name:<|"|>a"b<|"|>,open:true,"to the":<|"|>c<|"|>}}'),
        ("gemma 4", "take_scores", 'take_scores{scores:{a:<|"|>x<|"|>,b:false}}'),
        ("gemma 4", "take_few", "take_few{few:[true,false]}"),
        ("gemma 4", "take_count", "take_count{count:3,z:4}"),
    ],
)
def test_values_may_be_in_the_notation_of_the_model(name: str, choice: str, answer: str) -> None:
    answer = answer.join(AROUND.get(name, ("", "")))
    assert allows(name, choice, answer)
    (call,) = read(name, tokenizer_of(name).encode_chat(answer))
    jsonschema.validate(call.arguments, SCHEMAS[choice])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("lfm2", "[take_count(count=13)]"),
        ("lfm2", "[take_count(z=1)]"),
        ("lfm2", '[take_short(short="long")]'),
        ("gemma 4", 'take_short{short:<|"|>long<|"|>}'),
        ("gemma 4", 'take_size{size:<|"|>tiny<|"|>}'),
        ("gemma 4", "take_few{few:[]}"),
    ],
)
def test_what_a_schema_forbids_is_not_allowed(name: str, answer: str) -> None:
    assert not allows(name, "required", answer.join(AROUND[name]))


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("lfm2", tool("get weather", {}, [])),
        ("llama 3.2, pythonic", tool("get-for", {}, [])),
        ("lfm2", tool("weather", {"from": TEXT}, [])),
        ("gemma 4", tool("get weather", {}, [])),
    ],
)
def test_a_name_that_a_notation_cannot_write_is_refused(name: str, entry: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"in a notation without the name '(get.weather|get-for|from)'"):
        tool_choice_grammar("required", [entry], "", tokenizer_of(name))
