"""Whatever the grammar of calls lets a model write is read as calls, with arguments that their schemas allow."""

from typing import Any, Literal

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.calls import calls_of
from rekindle.formats.responses.families import call_field_for, reasoning_delimiters, template_for
from rekindle.formats.responses.grammars.call_forms import form_of
from rekindle.formats.responses.grammars.call_grammar import call_grammar
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.template import load
from rekindle.formats.responses.tool_choice import tool_choice_grammar
from rekindle.tools.tool import schemas_of
from tests.unit.grammar_walks import walk
from tests.unit.response_cases import CODER, GRANITE, HARMONY, LLAMA, MISTRAL, NEWER_MISTRAL, QWEN, R1, V31
from tests.unit.scripted import END, tokenizer


def weather(city: Literal["Rome", "Paris"], days: int, note: str = "") -> str: ...  # type: ignore[empty-body]
def now() -> str: ...  # type: ignore[empty-body]


TOOLS = schemas_of([weather, now])
PARAMETERS: dict[str, Any] = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
TEMPLATES = [QWEN, CODER, LLAMA, MISTRAL, NEWER_MISTRAL, R1, V31, HARMONY, GRANITE]
SINGLE = (LLAMA, HARMONY)
"""Templates with one call in an answer at most."""


@pytest.fixture(scope="module")
def text() -> Tokenizer:
    return tokenizer(every_byte=True)


@pytest.fixture(scope="module")
def vocabulary(text: Tokenizer) -> LLTokenizer:
    return LLTokenizer(text.backend.to_str(), eos_token=text.encode_chat(END))


def random_answer(grammar: str, vocabulary: LLTokenizer, text: Tokenizer, seed: int) -> str:
    (end,) = text.encode_chat(END)
    return text.decode(walk(grammar, vocabulary, text, seed, end), skip_special_tokens=False)


@pytest.mark.parametrize("choice", ["required", "weather"])
@pytest.mark.parametrize("marks", TEMPLATES)
def test_what_the_grammar_allows_is_read_as_calls(
    marks: str, choice: str, vocabulary: LLTokenizer, text: Tokenizer
) -> None:
    form, template = form_of(call_field_for(marks)), load(template_for(marks, None))
    assert form is not None
    grammar = call_grammar(form, TOOLS, choice, special={})
    assert not LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(grammar), vocabulary)[0]
    most = 0
    for seed in range(6):
        answer = random_answer(grammar, vocabulary, text, seed)
        parser = ResponseParser(template)
        parser.feed(answer)
        message, _ = parser.finish()
        assert not message.get("content", "").strip(), answer
        most = max(most, len(message["tool_calls"]))
        for call in message["tool_calls"]:
            (parsed,) = calls_of(call, answer, "", TOOLS)
            assert choice in ("required", parsed.name)
            jsonschema.validate(parsed.arguments, PARAMETERS[parsed.name])
    assert most == 1 if choice == "weather" or marks in SINGLE else most > 1


@pytest.mark.parametrize("marks", [QWEN, R1, NEWER_MISTRAL, HARMONY])
@pytest.mark.parametrize("in_reasoning", [True, False])
def test_reasoning_may_come_before(marks: str, in_reasoning: bool, vocabulary: LLTokenizer) -> None:
    form, thinks = form_of(call_field_for(marks)), reasoning_delimiters(marks)
    assert form is not None
    assert thinks is not None
    grammar = call_grammar(form, TOOLS, "now", special={}, reasoning=thinks, in_reasoning=in_reasoning)
    call = f"{form.begin}{form.before}now{form.between}{{}}{form.after}{form.end}"
    for answer, fits in (
        (f"{'' if in_reasoning else thinks[0]}so\nit is{thinks[1]}{call}", True),
        (call, not in_reasoning),
        (f"I will.{call}", False),
    ):
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
        consumed = matcher.consume_tokens(vocabulary.tokenize_str(answer))
        assert (consumed and matcher.is_accepting()) == fits, answer


@pytest.mark.parametrize("marks", [CODER, "<tool_call> <arg_key>", "<tool_call> </arg_key><arg_value>"])
def test_texts_in_tags_have_the_lengths_and_patterns_of_their_schemas(
    marks: str, vocabulary: LLTokenizer, text: Tokenizer
) -> None:
    form, template = form_of(call_field_for(marks)), load(template_for(marks, None))
    assert form is not None
    short = {"type": "string", "minLength": 2, "maxLength": 4}
    for kind in (short, {**short, "pattern": "^[A-C/]+$"}, {"type": "string", "maxLength": 5, "pattern": r"/\d$"}):
        schema = {"type": "object", "properties": {"code": kind}, "required": ["code"]}
        tools = [{"type": "function", "function": {"name": "go", "parameters": schema}}]
        for seed in range(6):
            parser = ResponseParser(template)
            parser.feed(random_answer(call_grammar(form, tools, "go", special={}), vocabulary, text, seed))
            (call,) = parser.finish()[0]["tool_calls"]
            (parsed,) = calls_of(call, "", "", tools)
            jsonschema.validate(parsed.arguments, schema)


def test_an_argument_in_a_tag_may_refer_to_the_definitions_of_its_tool(vocabulary: LLTokenizer) -> None:
    form, reference = form_of(call_field_for(CODER)), {"$ref": "#/$defs/Place"}
    assert form is not None
    place = {"type": "object", "properties": {"city": {"type": "string"}, "near": reference}, "required": ["city"]}
    schema = {"type": "object", "properties": {"place": reference}, "required": ["place"], "$defs": {"Place": place}}
    tools = [{"type": "function", "function": {"name": "go", "parameters": schema}}]
    grammar = call_grammar(form, tools, "go", special={})
    for value, fits in (('{"city": "a", "near": {"city": "b"}}', True), ('{"city": "a", "near": {}}', False)):
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
        answer = f"<tool_call>\n<function=go>\n<parameter=place>\n{value}\n</parameter>\n</function>\n</tool_call>"
        assert (matcher.consume_tokens(vocabulary.tokenize_str(answer)) and matcher.is_accepting()) == fits


def test_special_tokens_are_named_by_their_ids(vocabulary: LLTokenizer) -> None:
    form = form_of(call_field_for(MISTRAL))
    assert form is not None
    grammar = call_grammar(form, TOOLS, "now", special={"[TOOL_CALLS]": 7})
    assert grammar.startswith('start: <[7]> " [" call "]"')


def test_a_prompt_says_whether_reasoning_has_begun_or_is_passed_over() -> None:
    model = Tokenizer(tokenizer().backend, chat_template=QWEN)
    prompt = "<|im_start|>user\n</think><|im_end|>\n<|im_start|>assistant\n"
    assert "thought: (" in tool_choice_grammar("now", TOOLS, prompt, model)
    assert "thought: thoughts" in tool_choice_grammar("now", TOOLS, f"{prompt}<think>\n", model)
    assert "thought" not in tool_choice_grammar("now", TOOLS, f"{prompt}<think>\n\n</think>\n\n", model)


def test_what_cannot_be_chosen_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match=r'must be "auto", "required", "none" or the name of a tool \(weather'):
        tool_choice_grammar("nothing", TOOLS, "", Tokenizer(tokenizer().backend, chat_template=QWEN))
    with pytest.raises(InvalidRequest, match="needs a known form of calls"):
        tool_choice_grammar("required", TOOLS, "", Tokenizer(tokenizer().backend, chat_template="{{ tools }}"))
