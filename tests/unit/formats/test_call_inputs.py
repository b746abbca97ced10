"""Required calls of tools whose input follows a grammar are read with inputs of the grammar, in all forms of calls."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.formats.rendering.chat import render
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.grammars.common import TERMINALS
from rekindle.formats.responses.grammars.inputs import input_rules
from rekindle.formats.responses.reading.reader import TemplateReading
from rekindle.formats.responses.tool_choice import tool_choice_grammar
from tests.unit.chat_forms import FORMS, tokenizer_of
from tests.unit.grammar_walks import walk

PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "run", "parameters": PARAMETERS}}]
THOUGHT = (
    "<|turn>model\n<think></think><seed:think></seed:think>[THINK][/THINK]<|START_THINKING|><|END_THINKING|>"
    "<|channel>thought\n<channel|>"
)
"""The end of a prompt without reasoning after it."""
USER = {"role": "user", "content": "Hi"}
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF  // as in patches
end: "*** End"
?hunk: add | delete
add: "*** Add: " name LF line+ -> added
delete: "*** Delete: "i name LF
name: /.{1,9}/
line: ("+" | "-") /[^+\n]{0,5}/ LF
LF: /\n/
"""
SUM = 'start: term ("+" term)~0..3\nterm: NUMBER | "(" start ")" | "\\n"\nNUMBER: "0".."9"'
BYTES = LLTokenizer("byte")


def takes(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


@pytest.mark.parametrize("definition", [PATCH, SUM], ids=["patch", "sum"])
@pytest.mark.parametrize("name", FORMS)
def test_what_the_grammar_allows_is_read_with_an_input_of_its_own(name: str, definition: str) -> None:
    text, form = tokenizer_of(name), FORMS[name]
    (end,) = text.encode_chat(form.end)
    vocabulary = LLTokenizer(text.backend.to_str(), n_vocab=text.vocab_size, eos_token=[end])
    prompt = render([USER], form.template, eos_token=form.end, tools=TOOLS)
    grammar = tool_choice_grammar("run", TOOLS, THOUGHT, text, inputs={"run": definition})
    inputs = set()
    for seed in range(8):
        tokens = walk(grammar, vocabulary, text, seed, end, closing=tuple(form.tokens))
        reading = TemplateReading(format_of(text), text, text.encode_chat(prompt), tools=TOOLS)
        decoder = IncrementalDecoder(text)
        for token in [*tokens, end]:
            reading.push(decoder.push(token), [token])
        (call,) = reading.finish()[0].tool_calls
        assert call.error is None, text.decode(tokens, skip_special_tokens=False)
        inputs.add(call.arguments["input"])
        assert takes(definition, call.arguments["input"])
    assert len(inputs) > (name != "deepseek v3.2")  # whose calls are long before their input


@pytest.mark.parametrize(
    ("definition", "texts"),
    [
        (r'start: "a\n"i /[^x]+/ "x"', ['A\n"\\\x01\nx', "a\nbx", "ax", "a\nx"]),
        (r'start: /\s\S\w[\n"]./s', [' "a"\n', "\t\\b\n\x02", '  a"x']),
        (r'start: "\x01".."\x20" /\x{22}\u{5c}/', ['\x02"\\', ' "\\', 'a"\\']),
        (r'start: /(?i:a"b)\/[]"]/', ['A"B/"', 'a"b/]', 'a"b/x']),
        ('start: A\nA: /[a-z"]+/ & /.*".*/', ['a"b', "ab", '"']),
        ("start: item*\nitem: NUMBER\nNUMBER: /[0-9]/\n%ignore / /", ["1 2", "12", "1a"]),
    ],
)
def test_a_grammar_is_the_same_over_the_characters_of_a_string(definition: str, texts: list[str]) -> None:
    for in_json in (True, False):
        grammar = "\n".join(['start: "<" a', *input_rules(definition, "a", '">', in_json=in_json)])
        for text in texts:
            inside = json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text
            assert takes(grammar, f'<{inside}">') == takes(definition, text), (in_json, text)


@pytest.mark.parametrize("terminal", TERMINALS)
def test_imported_terminals_are_those_of_the_library(terminal: str) -> None:
    imported = f"start: X\n%import common.{terminal} -> X"
    texts = [
        "",
        "1",
        "-1",
        "a",
        "Z_1",
        "1.",
        ".5",
        "+1.5e-3",
        "2e9",
        "e",
        "\n",
        "\r\n\n",
        "\r",
        " \t",
        '"a\\"b"',
        "g",
        "\f",
    ]
    texts += ["_", "1a", "fF0"]
    rules = {in_json: input_rules(imported, "a", '">', in_json=in_json) for in_json in (True, False)}
    for text in texts:
        for in_json in (True, False):
            inside = json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text
            grammar = "\n".join(['start: "<" a', *rules[in_json]])
            assert takes(grammar, f'<{inside}">') == takes(imported, text), (in_json, text)


def test_a_sum_as_in_the_documentation_of_custom_tools_is_an_input() -> None:
    definition = 'start: expr\nexpr: term (SP "+" SP term)* -> add | term\nterm: INT\nSP: " "\n%import common (INT, WS)'
    grammar = "\n".join(['start: "<" a', *input_rules(definition, "a", '">', in_json=True)])
    assert takes(grammar, '<1 + 22 + 3">')
    assert not takes(grammar, '<1 +">')


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ('start: "a" | "(" start /[^)]+/ ")"', "recursion or %ignore"),
        ('start: %json {"type": "string"}', "cannot have '%json'"),
        ("start: X\n%import common.NOTHING -> X", "imports common.NOTHING; it can import DIGIT"),
        ("start: ~/a/", "cannot have '~'"),
        ("start: /a b/x", "with free spaces"),
    ],
)
def test_what_a_call_cannot_have_is_refused_by_name(definition: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        input_rules(definition, "a", '"', in_json=True)
