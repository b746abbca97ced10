"""A budget ends thoughts in time, and the answer is the model's own after the forced tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.core.errors import InvalidRequest, ParametersIgnored
from rekindle.core.messages import Admit
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.thoughts import MARK, ThoughtLimit, ThoughtWatch
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.families import ANCHORS
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.thoughts import thought_limit
from rekindle.results.generation import Generation
from rekindle.server import app
from rekindle.testing import FAKE_MODEL, FAKE_STATE_MODEL, VOCAB_SIZE, ByHand, expected_of
from tests.unit.asgi import ask
from tests.unit.chat_forms import FORMS, tokenizer_of
from tests.unit.formats.test_chat_forms import encode_answer, read
from tests.unit.scripted import HERMES, Serve

USER = [{"role": "user", "content": "Hi"}]
OPEN, CLOSE, NEXT = 200, 201, 202
"""Tokens of a model with one-token delimiters."""
BYTES = {OPEN: MARK + b"<t>", CLOSE: MARK + b"</t>"}
THOUGHT, ANSWER = "We count: one, two", "Paris."


def mask(token: int | None) -> Any:
    bits = np.full(-(-VOCAB_SIZE // 32), 0 if token is not None else -1, np.int32)
    if token is not None:
        bits.view(np.uint32)[token // 32] = 1 << token % 32
    return bits


def limit_of(budget: int, *, is_open: bool, once: bool, length: int) -> ThoughtLimit:
    """Return a limit with so many tokens at the end of thoughts."""
    rest = tuple(range(NEXT, NEXT + length - 1))
    masks = {token: mask(token) for token in (None, CLOSE, *rest)}
    ends, bytes_of = ((CLOSE,),) * len(BYTES[CLOSE]), lambda token: BYTES.get(token, b"%d," % token)
    return ThoughtLimit(
        budget, BYTES[OPEN], BYTES[CLOSE], ends, (rest, rest), once, is_open, bytes_of=bytes_of, masks=masks
    )


def answer_to(tokenizer: Tokenizer, prompt: Sequence[int], script: Sequence[int], budget: int) -> list[int]:
    """Return the answer of a model that goes on with its script after forced tokens."""
    watch, tokens = ThoughtWatch(thought_limit(tokenizer, budget, prompt, False, tokenizer.vocab_size)), list[int]()
    rest = list(script)
    while rest:
        tokens.append(watch.forced[0] if watch.forced else rest.pop(0))
        watch.push(tokens[-1])
    return tokens


THINKING = [name for name, form in FORMS.items() if form.thinks and "reasoning_content %}" in form.template]


@pytest.mark.parametrize("budget", [0, 1, 7, 1000])
@pytest.mark.parametrize("name", THINKING)
def test_every_template_ends_its_thoughts_in_time(name: str, budget: int) -> None:
    message = {"role": "assistant", "reasoning_content": THOUGHT, "content": ANSWER}
    prompt, whole = encode_answer(name, message)
    tokenizer = tokenizer_of(name)
    full, _ = read(name, prompt, whole)
    assert full.reasoning == THOUGHT
    answer = answer_to(tokenizer, prompt, whole, budget)
    response, _ = read(name, prompt, answer)
    if budget == 1000:
        assert answer == whole
        return
    reasoning = response.reasoning or ""
    assert THOUGHT.startswith(reasoning)
    cut = next(place for place in range(len(whole)) if answer[place] != whole[place])
    limit = thought_limit(tokenizer, budget, prompt, False, tokenizer.vocab_size)
    assert answer[cut : cut + len(limit.ends[0])] == list(limit.ends[0])
    beginning = tokenizer.decode(answer[:cut], skip_special_tokens=False)
    opening = limit.opening.replace(MARK, b"").decode()
    between = beginning[beginning.index(opening) + len(opening) :]
    assert len(tokenizer.encode_chat(between)) == budget
    assert between.strip() == reasoning


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_that_the_prompt_opens_counts_from_the_answer(name: str) -> None:
    tokenizer = tokenizer_of(name)
    message = {"role": "assistant", "reasoning_content": THOUGHT, "content": ANSWER}
    prompt, whole = encode_answer(name, message)
    limit = thought_limit(tokenizer, 3, prompt, False, tokenizer.vocab_size)
    opening = tokenizer.encode_chat(limit.opening.replace(MARK, b"").decode())
    open_prompt = [*prompt, *opening, *tokenizer.encode_chat("\n")]
    assert not limit.is_open
    again = thought_limit(tokenizer, 3, open_prompt, False, tokenizer.vocab_size)
    assert (again.is_open, again.used) == (True, 0)
    continued = [*open_prompt, *tokenizer.encode_chat("We ")]
    assert thought_limit(tokenizer, 3, continued, False, tokenizer.vocab_size).used == 1 + len(
        tokenizer.encode_chat("We ")
    )
    closed = [*open_prompt, *again.ends[0], *tokenizer.encode_chat("\n")]
    assert not thought_limit(tokenizer, 3, closed, False, tokenizer.vocab_size).is_open


WAYS = st.fixed_dictionaries(
    {
        "overlap": st.booleans(),
        "decode_steps": st.sampled_from([1, 4]),
        "page_size": st.sampled_from([16, 64]),
        "num_pages": st.sampled_from([8, 64]),
        "max_running": st.sampled_from([1, 3]),
        "prefill_chunk": st.sampled_from([512, 16]),
        "deterministic": st.booleans(),
    }
)
CALLS = st.fixed_dictionaries(
    {
        "budget": st.integers(0, 9),
        "is_open": st.booleans(),
        "once": st.booleans(),
        "length": st.integers(1, 3),
        "logprobs": st.sampled_from([None, 0]),
        "max_tokens": st.sampled_from([1, 5, 30]),
        "begun": st.lists(st.sampled_from([OPEN, CLOSE, 1]), max_size=3),
        "prompt": st.lists(st.integers(0, 199), min_size=1, max_size=20),
    }
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(CALLS, min_size=1, max_size=5), ways=WAYS, has_states=st.booleans(), loss=st.integers(0, 40))
def test_the_answer_is_the_same_alone_and_in_any_batch(
    calls: list[dict[str, Any]], ways: dict[str, Any], has_states: bool, loss: int
) -> None:
    ways |= {"num_pages": 64} if ways["deterministic"] else {}
    engine = ByHand(model=FAKE_STATE_MODEL if has_states else FAKE_MODEL, **ways)
    requests = []
    for number, call in enumerate(calls):
        limit = limit_of(call["budget"], is_open=call["is_open"], once=call["once"], length=call["length"])
        params = SamplingParams(max_tokens=call["max_tokens"], seed=0, logprobs=call["logprobs"], thinking_budget=0)
        output_prefix = tuple(call["begun"][: call["max_tokens"] - 1])
        prompt = tuple(call["prompt"])
        requests.append(
            Request(number, prompt, params, frozenset({7}), 100, output_prefix=output_prefix, thoughts=limit)
        )
        engine.say(Admit(requests[-1]))
    for _ in range(loss):
        engine._settle_all()
    if loss and not ways["deterministic"]:
        engine.lose_device()
    engine.drain()
    for request in requests:
        assert tuple(engine.tokens[request.id]) == expected_of(request)


def used_in(limit: ThoughtLimit, tokens: Sequence[int]) -> int:
    """Count the tokens between one-token delimiters."""
    used, is_open = 0, limit.is_open
    for token in tokens:
        used += is_open and token != CLOSE
        is_open = token == OPEN or (is_open and token != CLOSE)
    return used


@given(st.lists(st.sampled_from([OPEN, CLOSE, 1, 2]), max_size=40), st.integers(0, 5), st.booleans())
def test_the_budget_is_never_exceeded_and_room_never_too_large(script: list[int], budget: int, is_open: bool) -> None:
    limit = limit_of(budget, is_open=is_open, once=False, length=2)
    watch, tokens, free = ThoughtWatch(limit), list[int](), 0.0
    for token in script:
        forced = watch.forced
        if free > 0:
            assert not forced, "the model was to choose freely here"
        free = free - 1 if free > 0 else watch.room - len(forced) - 1 if not forced else 0
        tokens.append(forced[0] if forced else token)
        watch.push(tokens[-1])
    assert used_in(limit, tokens) <= budget


@pytest.mark.anyio
async def test_a_session_cuts_thoughts_and_goes_on(serve: Serve) -> None:
    session = serve("<think>one two six</think>\nParis.")
    options: dict[str, Any] = {"max_tokens": 60}
    whole = await session.generate(USER, **options)
    assert whole.usage.reasoning_tokens == len("one two six")
    for budget in (0, 1, 5):
        answer = await session.generate(USER, thinking_budget=budget, **options)
        assert answer.usage.reasoning_tokens == budget
        assert answer.text.startswith("<think>" + "one two six"[:budget] + "</think>")
        cut = len("<think>") + budget + len("</think>")
        after = await session.generate(token_ids=[*answer.prompt_token_ids, *answer.token_ids[:cut]], **options)
        assert answer.token_ids[cut:] == after.token_ids[: 60 - cut]
        with_logprobs = await session.generate(USER, thinking_budget=budget, logprobs=0, **options)
        assert (with_logprobs.token_ids, len(with_logprobs.logprobs or ())) == (answer.token_ids, len(answer.token_ids))
        assert [each.token_ids for each in await session.generate(USER, thinking_budget=budget, n=2, **options)] == [
            answer.token_ids,
            answer.token_ids,
        ]
        parts = [part async for part in session.stream(USER, thinking_budget=budget, **options)]
        assert sum((part.token_ids for part in parts), ()) == answer.token_ids
        short = await session.generate(USER, thinking_budget=budget, max_tokens=cut - 3)
        assert short.token_ids == answer.token_ids[: cut - 3]
        assert short.finish_reason == "length"
        again = await answer.branch(at=8, token=answer.token_ids[8])
        assert again.token_ids == answer.token_ids
    plenty = await session.generate(USER, thinking_budget=11, **options)
    assert plenty.token_ids == whole.token_ids
    mapped = await session.map([USER], thinking_budget=1, **options)
    assert isinstance(mapped[0], Generation)
    assert mapped[0].usage.reasoning_tokens == 1
    reply = await session.chat(thinking_budget=2, **options).say("Hi")
    assert reply.response is not None
    assert reply.response.reasoning == "on"


@pytest.mark.anyio
async def test_a_required_call_follows_a_cut_thought(serve: Serve) -> None:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    session = serve(f"<think>one two six</think>{call}")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    for logprobs in (None, 0):
        answer = await session.generate(
            USER, tools=tools, tool_choice="look", thinking_budget=4, max_tokens=200, logprobs=logprobs
        )
        assert answer.response is not None
        assert answer.response.reasoning == "one"
        assert [each.name for each in answer.response.tool_calls] == ["look"]


@pytest.mark.anyio
async def test_what_a_budget_cannot_do_is_refused_or_named(serve: Serve) -> None:
    plain = HERMES.replace("{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}", "")
    with pytest.raises(InvalidRequest, match="thinking_budget=5 needs a model with thoughts") as refused:
        await serve("Paris.", plain).generate(USER, thinking_budget=5)
    assert refused.value.parameter == "thinking_budget"
    session = serve("<think>one</think>yes")
    with pytest.raises(InvalidRequest, match="ends thoughts by tokens that logit_bias, bad_words or allowed_token_ids"):
        await session.generate(USER, thinking_budget=5, bad_words=["<"])
    with pytest.warns(ParametersIgnored, match="thinking_budget=5 has no effect beside regex"):
        await session.generate(USER, thinking_budget=5, regex="yes|no")


def test_the_delimiters_of_a_checkpoints_own_template_are_taken() -> None:
    template = {
        "start_anchor": list(ANCHORS),
        "fields": {"thinking": {"open": "((", "close": "))"}, "content": {}},
    }
    source = tokenizer_of("qwen3, as tokens")
    tokenizer = Tokenizer(source.backend, source.chat_template, eos_token="<|im_end|>", response_template=template)
    assert format_of(tokenizer).source == template
    limit = thought_limit(tokenizer, 1, tokenizer.encode_chat("<|im_start|>assistant\n"), False, 1000)
    assert (limit.opening, limit.closing) == (b"((", b"))")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "field",
    [
        {"thinking_token_budget": 3},
        {"reasoning_budget_tokens": 3},
        {"thinking_budget_tokens": 3.0},
        {"reasoning_budget": 3},
        {"thinking": {"type": "enabled", "budget_tokens": 3}},
    ],
)
async def test_the_budgets_of_chats_of_other_servers_are_taken(serve: Serve, field: dict[str, Any]) -> None:
    application = app(serve("<think>one two six</think>\nParis."))
    body = {"messages": USER, "max_tokens": 60}
    answer = (await ask(application, "/v1/chat/completions", {**body, **field})).json
    assert answer["choices"][0]["message"]["reasoning_content"] == "one"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    (name, value), *_ = field.items()
    none = {"type": "disabled", "budget_tokens": 3} if name == "thinking" else -1 if "reasoning" in name else None
    free = (await ask(application, "/v1/chat/completions", {**body, name: none})).json
    assert free["choices"][0]["message"]["reasoning_content"] == "one two six"
    schema = {"response_format": {"type": "json_object"}}
    assert (await ask(application, "/v1/chat/completions", {**body, **field, **schema})).status == 200


@pytest.mark.anyio
async def test_anthropics_budget_is_taken_and_none_is_needed_without_thoughts(serve: Serve) -> None:
    body = {"messages": USER, "max_tokens": 60, "thinking": {"type": "enabled", "budget_tokens": 3}}
    answer = (await ask(app(serve("<think>one two six</think>\nParis.")), "/v1/messages", body)).json
    assert answer["content"][0]["thinking"] == "one"
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == 3
    plain = HERMES.replace("{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}", "")
    application = app(serve("Paris.", plain))
    assert (await ask(application, "/v1/messages", body)).json["content"][0]["text"] == "Paris."
    wrong = {**body, "thinking": {"type": "enabled", "budget_tokens": -3}}
    assert (await ask(application, "/v1/messages", wrong)).status == 400
    refused = await ask(application, "/v1/chat/completions", {"messages": USER, "thinking_token_budget": 3})
    assert (refused.status, refused.error["param"]) == (400, "thinking_token_budget")
