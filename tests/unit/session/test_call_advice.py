"""The schema of a tool is advice: no keyword in it and no malformed part makes a required call fail."""

import json
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.constraints.schemas import relaxed, without_notes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.calls import allows, calls_of
from rekindle.formats.responses.families import call_field_for, template_for
from rekindle.formats.responses.grammars.call_forms import form_of
from rekindle.formats.responses.grammars.call_grammar import call_grammar
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.template import load
from tests.unit.grammar_walks import walk
from tests.unit.response_cases import CODER, HARMONY, MISTRAL, QWEN
from tests.unit.scripted import END, tokenizer

RICH: dict[str, Any] = {
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2},
    "propertyNames": {"type": "object", "propertyNames": {"enum": ["a"]}},
    "not": {"type": "integer", "not": {"const": 3}, "maximum": 9},
    "format": {"type": "string", "format": "path"},
    "lookahead": {"type": "string", "pattern": "^(?!a).*$", "maxLength": 3},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "if": {"type": "integer", "if": {"minimum": 1}, "then": {"maximum": 3}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "contains": {"type": "array", "contains": {"const": 1}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "$dynamicRef": {"$dynamicRef": "#node"},
    "minProperties": {"type": "object", "minProperties": 4},
    "another document": {"$ref": "https://example.org/schema"},
    "nowhere": {"$ref": "#/$defs/nowhere"},
    "unsatisfiable": {"type": "string", "minLength": 3, "maxLength": 1},
    "an unknown type": {"type": "str"},
    "no schema": 5,
    "anyOf without a list": {"anyOf": 5},
}
"""Schemas of an argument that no grammar enforces."""
MALFORMED: dict[str, Any] = {
    "properties": {"properties": ["a"]},
    "required": {"type": "object", "properties": {"a": {"type": "string"}}, "required": True},
    "depth": {"properties": {"a": json.loads('{"items":' * 300 + "{}" + "}" * 300)}},
    "references": {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {f"d{each}": {"type": "array", "items": {"$ref": f"#/$defs/d{each + 1}"}} for each in range(5000)},
    },
    "a circle": {"$ref": "#"},
}
TEMPLATES = [QWEN, pytest.param(CODER, marks=pytest.mark.wide), pytest.param(MISTRAL, marks=pytest.mark.wide), HARMONY]


@pytest.fixture(scope="module")
def text() -> Tokenizer:
    return tokenizer(every_byte=True)


@pytest.fixture(scope="module")
def vocabulary(text: Tokenizer) -> LLTokenizer:
    return LLTokenizer(text.backend.to_str(), eos_token=text.encode_chat(END))


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


PLAIN = tool(
    "plain", {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"]}
)


@pytest.mark.parametrize("marks", TEMPLATES, ids=lambda marks: marks[:12])
@pytest.mark.parametrize("name", [*RICH, *MALFORMED])
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 12), marks=pytest.mark.wide)], ids=str)
def test_a_required_call_is_served_whatever_a_tool_has_in_its_schema(
    name: str, marks: str, seeds: range, text: Tokenizer, vocabulary: LLTokenizer
) -> None:
    form, template = form_of(call_field_for(marks)), load(template_for(marks, None))
    assert form is not None
    schema = MALFORMED.get(name) or {"type": "object", "properties": {"x": RICH[name]}, "required": ["x"]}
    tools = [PLAIN, tool("rich", schema)]
    grammar = call_grammar(form, tools, "required", special={}, one_call=True)
    (end,) = text.encode_chat(END)
    names = set()
    for seed in seeds:
        tokens = walk(grammar, vocabulary, text, seed, end, endings=["\n</parameter>"])
        answer = text.decode(tokens, skip_special_tokens=False)
        parser = ResponseParser(template)
        parser.feed(answer)
        for call in parser.finish()[0]["tool_calls"]:
            (entry,) = calls_of(call, answer, "", tools)
            names.add(entry.name)
            if entry.name == "plain":
                jsonschema.validate(entry.arguments, PLAIN["function"]["parameters"])
    assert names == {"plain", "rich"}


def test_only_the_keywords_without_a_grammar_are_left_out() -> None:
    schema = {
        "properties": {name: RICH[name] for name in ("uniqueItems", "not", "lookahead", "oneOf")},
        "required": ["not"],
    }
    assert relaxed(schema, lambda pattern: "?!" not in pattern) == {
        "properties": {
            "uniqueItems": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
            "not": {"type": "integer", "maximum": 9},
            "lookahead": {"type": "string", "maxLength": 3},
            "oneOf": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        },
        "required": ["not"],
    }


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"type": "string", "format": "path", "title": "A"}, {"type": "string", "title": "A"}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"properties": {"format": {"format": "x"}}}, {"properties": {"format": {}}}),
        ({"const": {"format": "x"}, "enum": [{"format": "x"}]}, {"const": {"format": "x"}, "enum": [{"format": "x"}]}),
        ({"components": {"schemas": {"A": {"format": "x"}}}}, {"components": {"schemas": {"A": {}}}}),
        ({"type": "array", "uniqueItems": False, "minContains": 2}, {"type": "array"}),
        ({"type": "string", "uniqueItems": True}, {"type": "string"}),
        ({"type": "array", "uniqueItems": True}, {"type": "array", "uniqueItems": True}),
        ({"then": {}, "else": {}, "$dynamicAnchor": "a"}, {}),
        ({"$schema": "https://example.org/mine"}, {}),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            {"$schema": "http://json-schema.org/draft-07/schema#"},
        ),
        ({"not": False, "propertyNames": {}, "unevaluatedProperties": True}, {}),
        ({"not": 0}, {"not": 0}),
    ],
)
def test_keywords_without_effect_are_left_out(schema: Any, plain: Any) -> None:
    assert without_notes(schema) == plain


def test_a_custom_tool_with_a_grammar_that_cannot_be_parsed_is_named() -> None:
    form = form_of(call_field_for(QWEN))
    assert form is not None
    dial = tool("dial", {"type": "object", "properties": {"input": {"type": "string"}}})
    with pytest.raises(InvalidRequest, match=r"a call of 'dial' cannot be required: .*nope") as raised:
        call_grammar(form, [dial], "dial", special={}, inputs={"dial": "start: nope"})
    assert raised.value.parameter == "tools"


def test_the_type_of_an_argument_is_found_in_time() -> None:
    chain = {f"d{each}": {"anyOf": [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(60)}
    root = {"$defs": {**chain, "d60": {"type": "integer"}, "a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}
    assert not allows("string", {"$ref": "#/$defs/d0"}, root)
    assert allows("null", {"$ref": "#/$defs/a"}, root)
    for schema in ({"anyOf": 5}, {"enum": 5}, {"type": 5}, {"$ref": 5}, {"allOf": [5, None]}, 5, None):
        assert allows("null", schema, root) is False


def test_the_grammar_still_parses_for_the_model(vocabulary: LLTokenizer) -> None:
    form = form_of(call_field_for(CODER))
    assert form is not None
    grammar = call_grammar(form, [tool("rich", {"properties": RICH})], "rich", special={})
    assert not LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0).is_error()
