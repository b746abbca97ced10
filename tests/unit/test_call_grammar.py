"""Whatever the grammar of calls lets a model write is read as calls, with arguments that their schemas allow."""

from random import Random
from typing import Any, Literal

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.responses.call_grammar import call_grammar, form_of
from rekindle.core.text.responses.calls import calls_of
from rekindle.core.text.responses.families import call_field_for, reasoning_delimiters, template_for
from rekindle.core.text.responses.parser import ResponseParser
from rekindle.core.text.responses.template import load
from rekindle.core.text.responses.tool_choice import tool_choice_grammar
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.tools.tool import schemas_of
from tests.unit.response_cases import CODER, GRANITE, HARMONY, LLAMA, MISTRAL, NEWER_MISTRAL, QWEN, R1, V31
from tests.unit.scripted import END, tokenizer


def weather(city: Literal["Rome", "Paris"], days: int, note: str = "") -> str: ...  # type: ignore[empty-body]
def now() -> str: ...  # type: ignore[empty-body]


TOOLS = schemas_of([weather, now])
PARAMETERS: dict[str, Any] = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
TEMPLATES = [QWEN, CODER, LLAMA, MISTRAL, NEWER_MISTRAL, R1, V31, HARMONY, GRANITE]
SINGLE = (LLAMA, HARMONY)
"""Templates whose answers have one call at most."""


@pytest.fixture(scope="module")
def text() -> Tokenizer:
    return tokenizer(every_byte=True)


@pytest.fixture(scope="module")
def vocabulary(text: Tokenizer) -> LLTokenizer:
    return LLTokenizer(text.backend.to_str(), eos_token=text.encode_chat(END))


def written(grammar: str, vocabulary: LLTokenizer, text: Tokenizer, seed: int) -> str:
    """Return a random text of a grammar, which is as likely to end as to go on where it may end.

    After 60 tokens, what ends a part of it is chosen wherever it may be.
    """
    random, tokens = Random(seed), list[int]()
    (end,) = text.encode_chat(END)
    closing = [token for mark in '"},]\n<>/' for token in text.encode_chat(mark)]
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
    while not matcher.is_stopped() and not (matcher.is_accepting() and random.random() < 0.5):
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(text.vocab_size) if token != end and mask[token // 8] >> token % 8 & 1]
        closes = [token for token in closing if token in allowed]
        forced = matcher.compute_ff_tokens()
        tokens.append(forced[0] if forced else random.choice(closes if closes and len(tokens) > 60 else allowed))
        assert matcher.consume_token(tokens[-1])
        assert len(tokens) < 2000
    assert not matcher.is_error()
    return text.decode(tokens, skip_special_tokens=False)


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
        answer = written(grammar, vocabulary, text, seed)
        parser = ResponseParser(template)
        parser.feed(answer)
        message, _ = parser.finish()
        assert not message.get("content", "").strip(), answer
        most = max(most, len(message["tool_calls"]))
        for call in message["tool_calls"]:
            (read,) = calls_of(call, answer, "", TOOLS)
            assert choice in ("required", read.name)
            jsonschema.validate(read.arguments, PARAMETERS[read.name])
    assert most == 1 if choice == "weather" or marks in SINGLE else most > 1


@pytest.mark.parametrize("marks", [QWEN, R1, NEWER_MISTRAL, HARMONY])
@pytest.mark.parametrize("begun", [True, False])
def test_reasoning_may_come_before(marks: str, begun: bool, vocabulary: LLTokenizer) -> None:
    form, thinks = form_of(call_field_for(marks)), reasoning_delimiters(marks)
    assert form is not None
    assert thinks is not None
    grammar = call_grammar(form, TOOLS, "now", special={}, reasoning=thinks, in_reasoning=begun)
    call = f"{form.begin}{form.before}now{form.between}{{}}{form.after}{form.end}"
    for answer, fits in (
        (f"{'' if begun else thinks[0]}so\nit is{thinks[1]}{call}", True),
        (call, not begun),
        (f"I will.{call}", False),
    ):
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
        taken = matcher.consume_tokens(vocabulary.tokenize_str(answer))
        assert (taken and matcher.is_accepting()) == fits, answer


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
