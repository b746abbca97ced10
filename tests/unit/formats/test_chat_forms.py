"""The output of a family's chat template is read back: calls, thoughts and content, wherever the answer is cut."""

import json
import string
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.rendering.chat import render
from rekindle.formats.response import Part, Response
from rekindle.formats.responses.families import CALL_FIELDS
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.reading.first_call import FirstCall
from rekindle.formats.responses.reading.reader import TemplateReading
from rekindle.formats.responses.tool_choice import tool_choice_grammar
from tests.unit.chat_forms import FORMS, MARKS, Form, tokenizer_of

USER = {"role": "user", "content": "Hi"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does it.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
            },
        },
    }
    for name in ("weather", "delete")
]
Calls = Sequence[tuple[str, dict[str, Any]]]
NAMES = pytest.mark.parametrize("name", FORMS)
NOTATIONS = (
    *("hermes, as text", "qwen3-coder", "mistral, lists", "deepseek v3.1", "gpt-oss", "glm 4.7", "deepseek v3.2"),
    *("llama 3.2, pythonic", "functionary", "gemma 4"),
)
"""A form for each notation of calls, which are tried in all places with every change."""
EACH_NOTATION = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in NOTATIONS else pytest.mark.wide) for name in FORMS]
)


def encode_answer(name: str, message: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation up to an answer, and the tokens of the answer with its end."""
    form, tokenizer = FORMS[name], tokenizer_of(name)
    prompt = render([USER], form.template, eos_token=form.end, tools=TOOLS)
    whole = render([USER, message], form.template, eos_token=form.end, tools=TOOLS, variables=CLOSED)
    assert whole.startswith(prompt)
    return tokenizer.encode_chat(prompt), tokenizer.encode_chat(whole[len(prompt) :].rstrip("\n"))


CLOSED = {"add_generation_prompt": False}


def message_of(form: Form, calls: Calls, reasoning: str | None, content: str) -> dict[str, Any]:
    """Return a message as a family's template reads it."""
    message: dict[str, Any] = {"role": "assistant", "content": content if form.content or not calls else ""}
    if reasoning is not None and form.thinks:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"type": "function", "id": "call00000", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def read(name: str, prompt: Sequence[int], tokens: Sequence[int], size: int = 1) -> tuple[Response, list[Part]]:
    """Read an answer in pieces of `size` tokens."""
    tokenizer = tokenizer_of(name)
    reading, decoder, parts = TemplateReading(format_of(tokenizer), tokenizer, prompt, tools=TOOLS), None, list[Part]()
    decoder = IncrementalDecoder(tokenizer)
    for at in range(0, len(tokens), size):
        some = tokens[at : at + size]
        parts += reading.push("".join(map(decoder.push, some)), some)
    response, last = reading.finish()
    return response, parts + last


def called(response: Response) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in response.tool_calls if call.error is None]


def written_arguments(parts: Sequence[Part]) -> dict[str, str]:
    """Return the arguments of the pieces, by the ids of their calls."""
    texts: dict[str, str] = {}
    for piece in (piece for part in parts for piece in part.pieces):
        assert piece.name in ("weather", "delete")
        texts[piece.id] = texts.get(piece.id, "") + piece.arguments
    return texts


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


WHOLE = {
    *("qwen3-coder", "seed-oss", "glm 4.6", "glm 4.7", "minimax m2", "deepseek v3.2"),
    *("apertus", "llama 3.2, pythonic", "lfm2", "gemma 4"),
}
"""Forms with arguments in another notation than JSON; they come at the end of their call."""
WEATHER, DELETE = ("weather", {"city": "Rome", "days": 3}), ("delete", {"city": "/tmp/a b", "days": -1})


@NAMES
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_thoughts_calls_and_content_are_read_back(name: str, size: int) -> None:
    form = FORMS[name]
    calls = [WEATHER, DELETE] if form.several else [WEATHER]
    prompt, tokens = encode_answer(name, message_of(form, calls, "Let me think.", "I look."))
    response, parts = read(name, prompt, tokens, size)
    assert called(response) == calls
    assert response.reasoning == ("Let me think." if form.thinks else None)
    assert response.content == ("I look." if form.content else "")
    assert [part.call for part in parts if part.call] == list(response.tool_calls)
    texts = written_arguments(parts)
    assert texts in ({}, {call.id: json.dumps(call.arguments) for call in response.tool_calls})
    assert bool(texts) == (name not in WHOLE)
    prompt, tokens = encode_answer(name, message_of(form, [], "Hm.", "It is 3 < 4."))
    response, parts = read(name, prompt, tokens, size)
    assert (response.content, response.tool_calls) == ("It is 3 < 4.", ())
    assert "".join(part.text for part in parts if part.kind == "content") == response.content


@EACH_NOTATION
def test_an_answer_that_is_cut_anywhere_calls_nothing_that_the_whole_does_not(name: str) -> None:
    form = FORMS[name]
    calls = [WEATHER, DELETE] if form.several else [DELETE]
    prompt, tokens = encode_answer(name, message_of(form, calls, "Let me think.", "I look."))
    counts = []
    for end in range(len(tokens)):
        response, parts = read(name, prompt, tokens[:end], 7)
        assert called(response) == calls[: len(called(response))], tokenizer_of(name).decode(tokens[:end])
        complete = {call.id for call in response.tool_calls if call.error is None}
        for identity, text in written_arguments(parts).items():
            assert (identity in complete) == is_json(text)
        counts.append(len(called(response)))
    assert counts == sorted(counts)


LISTS = {
    *("mistral, lists", "granite 3.3", "phi-4-mini", "phi-4-mini, functools", "command r7b", "command r+", "lfm2"),
    *("llama-nemotron", "apertus", "xlam", "llama 3.2, pythonic"),
}
"""Forms with lists of calls, which are complete at the end of the list."""


@NAMES
def test_an_answer_can_end_after_its_first_call(name: str) -> None:
    form, calls = FORMS[name], [WEATHER, DELETE] if FORMS[name].several else [WEATHER]
    prompt, tokens = encode_answer(name, message_of(form, calls, "Let me think.", "I look."))
    watcher = FirstCall(tokenizer_of(name), prompt, ["weather", "delete"], goes_on=False)
    lengths = [watcher.push(token) for token in tokens]
    last = next(filter(None, lengths), None)
    response, _ = read(name, prompt, tokens[:last])
    assert response.content == ("I look." if form.content else "")
    assert called(response) == calls if name in LISTS else [WEATHER]
    assert (last is None or last > len(tokens) - 3) == (name in LISTS or not form.several)


@EACH_NOTATION
def test_end_tokens_are_in_no_field_wherever_they_come(name: str) -> None:
    form, tokenizer = FORMS[name], tokenizer_of(name)
    prompt, tokens = encode_answer(name, message_of(form, [WEATHER], "Let me think.", "I look."))
    (end,) = tokenizer.encode_chat(form.end)
    for at in range(len(tokens)):
        response, _ = read(name, prompt, [*tokens[:at], end], 5)
        for field in (response.content, response.reasoning or "", *(call.text for call in response.tool_calls)):
            assert form.end not in field
        assert called(response) in ([], [WEATHER])


@EACH_NOTATION
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_marks_inside_of_an_argument_belong_to_it(name: str, data: st.DataObject) -> None:
    """Write marks into values, as tokens of the vocabulary."""
    form = FORMS[name]
    pieces = st.lists(st.sampled_from([*MARKS, *form.tokens, *string.ascii_letters[:4], " "]), max_size=6)
    value = "".join(data.draw(pieces))
    if "coder" in name or "seed" in name:  # where a value is raw, this cannot be told from its end
        value = value.strip("\n").replace("</parameter>", "")
    if "glm" in name:
        value = value.replace("<arg_key>", "").replace("</arg_value>", "")
    calls: Calls = [("weather", {"city": value, "days": 3})]
    prompt, tokens = encode_answer(name, message_of(form, calls, "Hm.", "I look."))
    response, _ = read(name, prompt, tokens, data.draw(st.integers(1, 20)))
    special = [mark for mark, special in form.tokens.items() if special and mark in value]
    if not special:  # a special token in a value is no text of the answer
        assert called(response) == calls
    assert len(response.tool_calls) <= 1


@NAMES
def test_what_a_choice_of_tools_allows_is_read(name: str) -> None:
    """Match the output of the template with the grammar, also for marks inside of values, and read the matched text."""
    from llguidance import LLMatcher, LLTokenizer

    form, tokenizer = FORMS[name], tokenizer_of(name)
    prompt, tokens = encode_answer(name, message_of(form, [WEATHER], None, ""))
    (end,) = tokenizer.encode_chat(form.end)
    rendered = tokenizer.decode(prompt, skip_special_tokens=False)
    grammar = tool_choice_grammar("weather", TOOLS, rendered, tokenizer)
    ll = LLTokenizer(tokenizer.backend.to_str(), n_vocab=tokenizer.vocab_size, eos_token=[end])
    for inside in (
        "Rome",
        "a </tool_call> b",
        "a ```\n</tool_call> b",
        "a </function> b",
        "a <|tool_call|> b",
        "</think>",
    ):
        _, tokens = encode_answer(name, message_of(form, [("weather", {"city": inside, "days": 3})], None, ""))
        matcher = LLMatcher(ll, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        allowed, consumed = None, 0
        while consumed < len(tokens) and tokens[consumed] != end and matcher.consume_token(tokens[consumed]):
            consumed += 1
            allowed = consumed if matcher.is_accepting() else allowed
        if allowed is not None:
            response, _ = read(name, prompt, tokens[:allowed])
            assert called(response) == [("weather", {"city": inside, "days": 3})]
        else:
            assert inside != "Rome" or name in OTHERWISE, tokenizer.decode(tokens[: consumed + 3])


OTHERWISE = {"mistral, lists"}
"""Forms with another notation in the grammar than in our short template."""


LENIENT = [
    ("hermes, as text", "<tool_call>\n[{0}, {0}]\n</tool_call>"),
    ("hermes, as text", "<tool_call>\n{0}\n{0}\n</tool_call>"),
    ("llama 3", "{0}; {0}<|eot_id|>"),
]


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(("name", "answer"), LENIENT)
def test_several_calls_in_the_place_of_one_are_read(name: str, answer: str, size: int) -> None:
    city = "Ro\nme"  # with a line end that JSON would escape
    call = json.dumps({"name": "weather", "arguments": {"city": city, "days": 3}}).replace("\\n", "\n")
    tokenizer, (prompt, _) = tokenizer_of(name), encode_answer(name, message_of(FORMS[name], [], None, "x"))
    response, parts = read(name, prompt, tokenizer.encode_chat(answer.replace("{0}", call)), size)
    assert called(response) == [("weather", {"city": city, "days": 3})] * 2
    assert response.content == ""
    assert written_arguments(parts) == {call.id: json.dumps(call.arguments) for call in response.tool_calls}


def test_a_form_is_known_by_what_the_template_writes_and_not_by_one_mark() -> None:
    for name in FORMS:
        assert format_of(tokenizer_of(name)).calls in CALL_FIELDS.values(), name
    marks = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>" + "{% endfor %}" * 2
    written_otherwise = marks.replace("<tool_call>", "<tool_call>{{ c.function.name }} with {{ c.function.arguments }}")
    for template, supported in ((marks, True), (written_otherwise + "{% if tools %}!{% endif %}", False)):
        unknown = format_of(Tokenizer(tokenizer_of("hermes, as text").backend, template))
        assert (unknown.calls is not None) == supported
        assert ("unknown form" in unknown.tools) == (not supported)


@pytest.mark.parametrize("size", [1, 4, 10_000])
@pytest.mark.parametrize("name", ["hermes, as text", "qwen3, as tokens"])
def test_a_call_with_a_broken_string_takes_no_other_call_with_it(name: str, size: int) -> None:
    tokenizer = tokenizer_of(name)
    prompt, _ = encode_answer(name, message_of(FORMS[name], [], None, "x"))
    good = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
    bad = '<tool_call>\n{"name": "weather, "arguments": {}}\n</tool_call>'
    for answer in (f"{bad}\n{good}", f"{bad}\n{good}\n{good}", f"{good}\n{bad}\n{good}\nDone."):
        response, _ = read(name, prompt, tokenizer.encode_chat(answer), size)
        assert called(response) == [WEATHER] * answer.count(good)
        assert [call.error is None for call in response.tool_calls].count(False) == 1
        assert response.content == ("Done." if answer.endswith("Done.") else "")
