"""Stop strings end an answer in its content alone, however its text comes in tokens."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from rekindle.core.text.stops import StopMatcher
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.reading.content_stops import ContentStops, content_stops
from rekindle.server import app
from tests.unit.asgi import ask
from tests.unit.scripted import HERMES, Serve
from tests.unit.scripted import tokenizer as scripted_tokenizer
from tests.unit.stop_definition import first_stop

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
OPENED = HERMES.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
QUIET = HERMES.replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}{# <|channel|> #}"
)
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": "aabb"}}</tool_call>'
BEGIN = "<|im_start|>assistant\n"

Parts = list[tuple[bool, str]]
"""The text of an answer, each part with whether it is content."""
WORDS = st.text("ab<", max_size=6)
PARTS = st.builds(
    lambda reasoning, contents: [
        *([] if reasoning is None else [(False, f"<think>{reasoning}</think>")]),
        *(part for content in contents for part in ((True, content), (False, CALL))),
    ][: -1 if contents else None],
    st.none() | WORDS,
    st.lists(WORDS, max_size=3),
)


@cache
def chat_tokenizer() -> Tokenizer:
    return scripted_tokenizer()


def matcher_of(stops: Sequence[str], keep: bool, prompt: str = BEGIN) -> ContentStops:
    tokenizer = chat_tokenizer()
    matcher = content_stops(StopMatcher(stops, keep), tokenizer, tokenizer.encode_chat(prompt), True, False)
    assert isinstance(matcher, ContentStops)
    return matcher


def by_definition(parts: Parts, stops: Sequence[str], keep: bool) -> tuple[str, str | None]:
    output = ""
    for is_content, text in parts:
        end, stop = first_stop([(text, is_content)], stops)
        output += text if stop is None else text[: end - len(stop)] + (stop if keep else "")
        if stop is not None:
            return output, stop
    return output, None


@given(
    PARTS,
    st.lists(st.text("ab<", min_size=1, max_size=3), min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=30),
)
@example([(False, "<think>a</think>"), (True, "<a")], ["<a"], False, [])
@example([(False, "<think>a</think>"), (True, "b"), (False, CALL), (True, "aa")], ["aa", "b<"], True, [20])
@settings(max_examples=200)
def test_the_end_and_the_text_are_those_of_the_definition(
    parts: Parts, stops: list[str], keep: bool, cuts: list[int]
) -> None:
    text = "".join(part for _, part in parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    matcher, output, stop = matcher_of(stops, keep), "", None
    for begin, end in pairwise(places):
        more, stop = matcher.push(0, text[begin:end], True, False)
        output += more
        if stop is not None:
            break
    else:
        more, stop = matcher.finish()
        output += more
    assert (output, stop) == by_definition(parts, stops, keep)


def test_text_is_held_back_only_while_its_field_or_a_stop_is_open() -> None:
    matcher = matcher_of(["STOP"], False)
    outputs = [
        matcher.push(0, each, True, False)[0]
        for each in ("<thi", "nk>a ", "STOP", "</think>", "b S", "T", "x<tool", "_x")
    ]
    assert outputs == ["", "<think>a ", "STOP", "</think>", "b ", "", "STx", "<tool_x"]


def test_too_few_tokens_are_no_stop_in_the_content_either() -> None:
    matcher = matcher_of(["STOP"], False)
    assert matcher.push(0, "a STOP b ", False, False) == ("a STOP b ", None)
    assert matcher.push(0, "STOP", True, False) == ("", "STOP")


@pytest.mark.parametrize("shows_special", [False, True])
def test_delimiters_that_are_tokens_are_no_content(shows_special: bool) -> None:
    marks = ("<|start|>", "<|end|>", "<|return|>", "<|channel|>", "<|message|>", "<|call|>")
    backend = scripted_tokenizer().backend
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer = Tokenizer(backend, chat_template=HARMONY, eos_token="<|return|>")
    prompt = tokenizer.encode_chat("<|start|>assistant")
    text = "<|channel|>analysis<|message|>a final STOP<|end|><|start|>assistant<|channel|>final<|message|>b final c"
    matcher = content_stops(StopMatcher(["STOP", "final"], False), tokenizer, prompt, False, shows_special)
    assert isinstance(matcher, ContentStops)
    output, stop = "", None
    for token in tokenizer.encode_chat(text):
        hidden = not shows_special and token in tokenizer.special_ids
        more, stop = matcher.push(token, tokenizer.decode([token], skip_special_tokens=False), True, hidden)
        output += more
        if stop is not None:
            break
    before = text.removesuffix("final c")
    for mark in () if shows_special else marks:
        before = before.replace(mark, "")
    assert (output, stop) == (before, "final")


TEXT = "they say STOP here</think>hello STOP world"
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [USER], "stop": ["STOP"]}),
    "responses": ("/v1/responses", {"input": "hi", "stop": ["STOP"]}),
    "messages": ("/v1/messages", {"max_tokens": 99, "messages": [USER], "stop_sequences": ["STOP"]}),
    "ollama": ("/api/chat", {"messages": [USER], "options": {"stop": ["STOP"]}, "stream": False}),
}


@pytest.mark.parametrize(
    ("template", "answer", "reasoning"),
    [
        (HERMES, f"<think>{TEXT}", "they say STOP here"),
        (OPENED, f"<think>\n{TEXT}", "they say STOP here"),
        (QUIET, "<think>\n\n</think>\n\nhello STOP world", None),
        (HERMES, "hello STOP world", None),
    ],
    ids=["by the model", "opened in the prompt", "turned off", "without"],
)
async def test_an_answer_ends_at_a_stop_of_its_content_in_all_apis(
    serve: Serve, template: str, answer: str, reasoning: str | None
) -> None:
    session = serve(lambda prompt: answer, template)
    whole = await session.generate([USER], stop="STOP")
    assert (whole.content, whole.reasoning, whole.finish_reason, whole.stopped_by) == (
        "hello",
        reasoning,
        "stop",
        "STOP",
    )
    streamed = [part async for part in session.stream([USER], stop="STOP").parts()]
    assert "".join(part.text for part in streamed if part.kind == "content").strip() == "hello"
    for name, (path, body) in REQUESTS.items():
        reply = await ask(app(session), path, body)
        assert reply.status == 200, name
        assert "hello" in reply.body.decode(), name
        assert "world" not in reply.body.decode(), name


async def test_a_stop_in_a_call_or_in_reasoning_that_never_ends_is_none(serve: Serve) -> None:
    called = await serve(CALL).generate([USER], tools=[TOOL], stop="bb")
    assert [call.arguments for call in called.tool_calls] == [{"x": "aabb"}]
    assert called.stopped_by != "bb"
    thinking = await serve("<think>a STOP b").generate([USER], stop="STOP")
    assert (thinking.reasoning, thinking.content) == ("a STOP b", "")


async def test_a_prompt_of_text_is_no_turn(serve: Serve) -> None:
    session = serve("<think>a STOP b</think>c")
    rendered = session.render([USER])
    answer = await session.generate(rendered, add_special_tokens=False, stop="STOP")
    assert (answer.text, answer.stopped_by) == ("<think>a ", "STOP")
