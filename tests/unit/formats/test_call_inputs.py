"""Required calls of tools whose input follows a grammar are read with inputs of the grammar, in all forms of calls."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.formats.rendering.chat import render
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.grammars.inputs import TERMINALS, input_schema, regex_of_grammar
from rekindle.formats.responses.grammars.terms import json_of, regex_literal
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
SUM = 'start: term ("+" term)~0..3\nterm: NUMBER | "(" NUMBER ["." NUMBER] ")" | "-\\n-" | "b"i\nNUMBER: "0".."9"'
BYTES = LLTokenizer("byte")


def takes(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


@pytest.mark.parametrize("definition", [PATCH, SUM], ids=["patch", "sum"])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 8), marks=pytest.mark.wide)], ids=str)
def test_what_the_grammar_allows_is_read_with_an_input_of_its_own(name: str, definition: str, seeds: range) -> None:
    text, form = tokenizer_of(name), FORMS[name]
    (end,) = text.encode_chat(form.end)
    vocabulary = LLTokenizer(text.backend.to_str(), n_vocab=text.vocab_size, eos_token=[end])
    prompt = render([USER], form.template, eos_token=form.end, tools=TOOLS)
    grammar = tool_choice_grammar("run", TOOLS, THOUGHT, text, inputs={"run": definition})
    inputs = set()
    for seed in seeds:
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
        ('start: A ["(" A{2,3} ")"]\nA: /[a-z"]/ // a letter', ["a", 'b(a")', "a(b)", "a(bbb)", "a(bbbb)"]),
        ("start: /a b/x", ["ab", "a b"]),
    ],
)
def test_a_grammar_has_the_regular_expression_of_its_texts(definition: str, texts: list[str]) -> None:
    pattern = regex_of_grammar(definition)
    assert pattern is not None
    schema = json_of({"type": "string", "pattern": f"^(?:{pattern})$"})
    for text in texts:
        assert takes(f"start: {schema}", json.dumps(text, ensure_ascii=False)) == takes(definition, text), text
        assert takes(f"start: {regex_literal(pattern)}", text) == takes(definition, text), text


@pytest.mark.parametrize("terminal", TERMINALS)
def test_imported_terminals_are_those_of_the_library(terminal: str) -> None:
    imported = f"start: X\n%import common.{terminal} -> X"
    pattern = regex_of_grammar(imported)
    assert pattern is not None
    numbers = ["1", "-1", "1.", ".5", "+1.5e-3", "2e9", "e", "Z_1", "a", "g", "_", "1a0", "fF0"]
    others = ("", "\n", "\r\n\n", "\r", " \t", "\f", '"a\\"b"')
    for text in (*numbers, *others):
        assert takes(f"start: {regex_literal(pattern)}", text) == takes(imported, text), text


def test_a_sum_as_in_the_documentation_of_custom_tools_is_an_input() -> None:
    definition = 'start: expr\nexpr: term (SP "+" SP term)* -> add | term\nterm: INT\nSP: " "\n%import common (INT, WS)'
    pattern = regex_of_grammar(definition)
    assert pattern is not None
    grammar = f"start: {regex_literal(pattern)}"
    assert takes(grammar, "1 + 22 + 3")
    assert not takes(grammar, "1 +")


@pytest.mark.parametrize(
    "definition",
    [
        'start: "a" | "(" start /[^)]+/ ")"',
        'start: a\na: "x" b?\nb: "y" a?',
        "start: item*\nitem: /[0-9]/\n%ignore / /",
        '%ignore / /\nstart: "a" // begins',
        "start: /a/\nunused: /b/\n%ignore / /",
        "start: X\n%import common.NOTHING -> X",
        'start: %json {"type": "string"}',
        "start: A\nA: /a+/ & /aa/",
        "start: A\nA: ~/a/",
        "start: <|im_end|>",
        'start[lazy]: /.*"/',
        "start: a0\n" + "\n".join(f"a{each}: a{each + 1} a{each + 1}" for each in range(30)) + '\na30: "a"',
        "start: a0\n" + "\n".join(f"a{each}: a{each + 1}" for each in range(2000)) + '\na2000: "a"',
        f'a0: "{"b" * 9999}"\n' + "\n".join(f"a{each + 1}: a{each}" for each in range(99)) + "\nstart: a99",
    ],
)
def test_a_grammar_without_a_regular_expression_is_required_by_nobody(definition: str) -> None:
    assert regex_of_grammar(definition) is None


def test_errors_name_what_a_required_input_cannot_have() -> None:
    with pytest.raises(InvalidRequest, match="its grammar has recursion, %ignore, or another part"):
        input_schema('start: "a" start?', PARAMETERS)
