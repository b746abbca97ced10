"""An answer of a chat ends when it repeats itself, and no other text does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.messages import Output, Outputs, Stopped, Text, Texts
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.repetition import RepetitionLimit, RepetitionWatch, first_occurrence, repeated_pattern
from rekindle.core.request.request import Request
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.embedded import CHAT_DEFAULTS, NAME
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.results.generation import Generation
from rekindle.server import app
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import ask
from tests.unit.scripted import Serve

SIZES = st.integers(1, 6).flatmap(lambda longest: st.tuples(st.just(longest), st.integers(1, longest)))
LIMITS = st.builds(
    lambda sizes, times, tokens: RepetitionLimit(sizes[0], times, tokens, sizes[1]),
    SIZES,
    st.integers(2, 4),
    st.integers(0, 16),
)
TOKENS = st.lists(st.integers(0, 2), max_size=40)


def is_repeated(tokens: Sequence[int], period: int, limit: RepetitionLimit) -> bool:
    """Define the limit: enough occurrences of a pattern, and enough tokens, at the end."""
    span = max(period * limit.times, limit.tokens)
    return len(tokens) >= span and all(
        tokens[-place] == tokens[-place - period] for place in range(1, span - period + 1)
    )


@given(TOKENS, LIMITS)
def test_the_shortest_pattern_is_found_and_no_other(tokens: list[int], limit: RepetitionLimit) -> None:
    periods = [period for period in range(limit.shortest, limit.longest + 1) if is_repeated(tokens, period, limit)]
    assert repeated_pattern(tokens, limit) == (periods[0] if periods else None)


@given(TOKENS, st.lists(st.integers(0, 2), min_size=1, max_size=6), LIMITS)
def test_a_pattern_ends_every_output_in_time(before: list[int], pattern: list[int], limit: RepetitionLimit) -> None:
    pattern = pattern * (-(-limit.shortest // len(pattern)))
    span = max(len(pattern) * limit.times, limit.tokens)
    output = [*before, *(pattern * span)[:span]]
    watch = RepetitionWatch(limit)
    ends = [place for place, token in enumerate(output) if watch.push(token)]
    assert len(pattern) > limit.longest or ends


@given(TOKENS, LIMITS)
def test_the_first_occurrence_and_its_repetition_are_the_whole(tokens: list[int], limit: RepetitionLimit) -> None:
    count, period = first_occurrence(tokens, limit), repeated_pattern(tokens, limit)
    if period is None:
        assert count == len(tokens)
    else:
        pattern = tokens[count - period : count]
        assert (tokens[:count] + pattern * len(tokens))[: len(tokens)] == tokens
        assert count == period or tokens[count - 1] != tokens[count - 1 - period]


@given(tokens=st.lists(st.integers(65, 67), min_size=1, max_size=60), size=st.integers(1, 5))
def test_the_end_is_the_same_in_every_chunking(byte_tokenizer: Tokenizer, tokens: list[int], size: int) -> None:
    limit = RepetitionLimit(longest=4, times=3, tokens=9)
    watch = RepetitionWatch(limit)
    count = next((place for place, token in enumerate(tokens, 1) if watch.push(token)), None)
    request = Request(0, (1,), SamplingParams(), frozenset(), 999, repetition=limit)
    detokenizer, texts, stops = Detokenizer(byte_tokenizer), list[Text](), list[Stopped]()
    for place in range(0, len(tokens), size):
        messages = detokenizer.handle(Outputs((Output(request, tuple(tokens[place : place + size]), None),)))
        assert isinstance(messages, list)
        for message in messages:
            texts += message.texts if isinstance(message, Texts) else ()
            stops += [message] if isinstance(message, Stopped) else []
    output = [token for text in texts for token in text.token_ids]
    assert output == tokens[:count]
    assert [text.end for text in texts if text.end] == ([] if count is None else ["repetition"])
    repeats_at = [text.repeats_at for text in texts if text.end]
    once = None if count is None else first_occurrence(tokens[:count], limit)
    assert repeats_at == ([] if once is None else [len(byte_tokenizer.decode(tokens[:once]))])
    assert [stop.tokens for stop in stops] == ([] if count is None else [count])


LOOP = "the sea " * 60
USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.anyio
async def test_a_loop_ends_an_answer_of_a_chat_and_no_other(serve: Serve) -> None:
    session = serve(LOOP)
    whole = await session.generate(USER, max_tokens=300)
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 300)
    chat = session.chat(max_tokens=300)
    answer = await chat.say("Hi")
    assert answer.finish_reason == "repetition"
    assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
    assert repeated_pattern(answer.token_ids, RepetitionLimit()) is not None
    assert repeated_pattern(answer.token_ids[:-1], RepetitionLimit()) is None
    assert chat.messages[-1]["content"] == "the sea "
    assert (await chat.say("Hi")).usage.prompt_tokens < answer.usage.prompt_tokens + 64
    assert Generation.from_dict(answer.to_dict()) == answer
    assert (await answer.branch(at=2, token=answer.token_ids[2])).finish_reason == "repetition"
    streamed = session.chat(max_tokens=300)
    pieces = [piece async for piece in streamed.stream("Hi")]
    assert streamed.messages == chat.messages[:2]
    assert tuple(token for piece in pieces for token in piece.token_ids) == answer.token_ids
    assert (await session.chat(max_tokens=300, ignore_eos=True).say("Hi")).finish_reason == "length"
    assert (await session.chat(max_tokens=300, regex="(the sea )+").say("Hi")).finish_reason == "length"
    assert (await session.chat(max_tokens=300, min_tokens=200).say("Hi")).usage.completion_tokens == 200


@pytest.mark.anyio
async def test_a_call_sets_or_lifts_the_limit(serve: Serve) -> None:
    session = serve(LOOP)
    options: dict[str, Any] = {"max_tokens": 300}
    answer = await session.generate(USER, stop_on_repetition=True, **options)
    assert answer.finish_reason == "repetition"
    assert answer.text[: answer.repeats_at] == "the sea "
    assert Generation.from_dict(answer.to_dict()) == answer
    early = await session.generate(USER, stop_on_repetition={"longest": 8, "times": 2, "tokens": 0}, **options)
    assert early.text == "the sea the sea "
    longer = RepetitionLimit(longest=100, times=2, tokens=0, shortest=9)
    assert (await session.generate(USER, stop_on_repetition=longer, **options)).text == "the sea " * 4
    forced = await session.generate(USER, stop_on_repetition=True, regex="(the sea )+", **options)
    assert (forced.finish_reason, forced.parsed) == ("repetition", None)
    three: Any = [USER] * 3
    together = await session.generate(three, stop_on_repetition=True, **options)
    assert [each.token_ids for each in together] == [answer.token_ids] * 3
    assert (await session.generate(USER, **options)).repeats_at is None
    assert (await session.chat(stop_on_repetition=False, **options).say("Hi")).finish_reason == "length"


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_vllms_field_ends_loops(serve: Serve, path: str) -> None:
    prompt = (
        {"messages": USER} if "chat" in path else {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"}
    )
    body = {**prompt, "max_tokens": 300, "repetition_detection": {"max_pattern_size": 8, "min_count": 3}}
    application = app(serve(LOOP))
    (choice,) = (await ask(application, path, body)).json["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    assert "the sea the sea the sea" in str(choice)
    (choice,) = (await ask(application, path, {**body, "repetition_detection": {"max_pattern_size": 0}})).json[
        "choices"
    ]
    assert choice["finish_reason"] == "length"
    wrong = await ask(application, path, {**body, "repetition_detection": {"max_pattern_size": 8, "min_count": 1}})
    assert (wrong.status, wrong.error["param"]) == (400, "repetition_detection")


@pytest.mark.anyio
async def test_chats_take_the_options_recommended_for_them_and_generate_does_not(byte_tokenizer: Tokenizer) -> None:
    plain = fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)
    advised = replace(plain, checkpoint=replace(plain.checkpoint, chat_defaults=CHAT_DEFAULTS))
    with fake_session(advised) as session:
        assert (await session.generate(USER, max_tokens=4)).seed is None
        assert (await session.chat(max_tokens=4).say("Hi")).seed is not None
        assert (await session.chat(max_tokens=4).say("Hi", temperature=0)).seed is None
        assert (await session.chat(max_tokens=4, temperature=0).fork().say("Hi")).seed is None
        params = session.chat()._requests.params({})
        assert (params.temperature, params.max_tokens) == (CHAT_DEFAULTS["temperature"], CHAT_DEFAULTS["max_tokens"])
        assert session.chat()._requests.params({"max_tokens": None}).max_tokens is None
    neutral = replace(advised, settings=replace(advised.settings, sampling_defaults="neutral"))
    assert neutral.chat_defaults == {}


def test_the_default_model_has_such_options(smollm2_path: object) -> None:
    checkpoint = open_checkpoint(NAME)
    sampling = {"temperature": 0.2, "top_p": 0.9, "min_p": 0.7}
    limits = {"frequency_penalty": 0.5, "repetition_penalty": 1.03, "max_tokens": 1024}
    assert checkpoint.chat_defaults == {**sampling, **limits}
    assert SamplingParams.from_options({}, checkpoint.chat_defaults).temperature == 0.2
