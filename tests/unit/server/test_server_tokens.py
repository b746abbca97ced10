"""Answers report single tokens in vLLM's form: ids, log-probabilities of the prompt, and an echo."""

import re
from dataclasses import replace
from typing import Any

import pytest

from rekindle.assembly.loading.identity import Identity
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.server import app
from rekindle.session.session import Session
from rekindle.testing import VOCAB_SIZE, fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import ask

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Weather?"}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def scores_of(token: TokenLogprob | None) -> dict[str, Any] | None:
    """Return the scores of a prompt token in vLLM's form."""
    if token is None:
        return None
    tokens = {each.token_id: each for each in (token, *token.top)}
    return {
        str(number): {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.text}
        for number, each in tokens.items()
    }


async def test_a_chat_has_the_ids_and_the_scores_of_its_prompt(texts: Session) -> None:
    answer = await texts.generate([USER], max_tokens=4, prompt_logprobs=1)
    body = {"messages": [USER], "max_tokens": 4, "prompt_logprobs": 1, "return_token_ids": True}
    reply = (await ask(app(texts), CHAT, body)).json
    assert answer.prompt_logprobs is not None
    assert reply["prompt_logprobs"] == [scores_of(each) for each in answer.prompt_logprobs]
    assert len(reply["prompt_logprobs"]) == len(reply["prompt_token_ids"]) > 4
    assert reply["prompt_token_ids"] == list(answer.prompt_token_ids)
    assert reply["choices"][0]["token_ids"] == list(answer.token_ids)
    plain = (await ask(app(texts), CHAT, {"messages": [USER], "max_tokens": 4})).json
    assert (plain["prompt_logprobs"], plain["prompt_token_ids"], plain["choices"][0]["token_ids"]) == (None, None, None)


async def test_the_choices_of_a_completion_have_ids_and_scores_each(texts: Session) -> None:
    body = {"prompt": ["abc", "de"], "max_tokens": 3, "prompt_logprobs": 0, "return_token_ids": True}
    choices = (await ask(app(texts), TEXT, body)).json["choices"]
    answers = await texts.generate(["abc", "de"], max_tokens=3, prompt_logprobs=0)
    for choice, answer in zip(choices, answers, strict=True):
        assert choice["prompt_logprobs"] == [scores_of(each) for each in answer.prompt_logprobs or ()]
        assert choice["prompt_token_ids"] == list(answer.prompt_token_ids)
        assert choice["token_ids"] == list(answer.token_ids)


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": [USER]}), (TEXT, {"prompt": "abc"})])
async def test_a_stream_has_the_ids_of_the_prompt_once_and_each_token_with_its_chunk(
    texts: Session, path: str, prompt: dict[str, Any]
) -> None:
    body = {**prompt, "max_tokens": 5, "n": 2, "seed": 1, "temperature": 1, "return_token_ids": True}
    whole = (await ask(app(texts), path, body)).json
    events = (await ask(app(texts), path, {**body, "stream": True})).events
    for place, choice in enumerate(whole["choices"]):
        own = [event for event in events if event["choices"][0]["index"] == place]
        ids = [token for event in own for token in event["choices"][0].get("token_ids", ())]
        assert ids == choice["token_ids"]
        holders = [event if path == CHAT else event["choices"][0] for event in own]
        assert [each["prompt_token_ids"] for each in holders if "prompt_token_ids" in each] == [
            whole["prompt_token_ids"] if path == CHAT else choice["prompt_token_ids"]
        ]
        assert "prompt_token_ids" in holders[0]


async def test_a_streamed_echo_has_the_log_probabilities_of_the_whole_one(texts: Session) -> None:
    for count in (3, 0):
        body = {"prompt": "abc", "max_tokens": count, "logprobs": 1, "echo": True}
        (whole,) = (await ask(app(texts), TEXT, body)).json["choices"]
        events = (await ask(app(texts), TEXT, {**body, "stream": True})).events
        chunks = [event["choices"][0] for event in events]
        assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
        for name, values in whole["logprobs"].items():
            assert [value for chunk in chunks for value in (chunk["logprobs"] or {name: []})[name]] == values


async def test_an_echo_of_a_cut_prompt_has_the_tokens_that_the_model_read(texts: Session) -> None:
    body = {"prompt": "abcdef", "max_tokens": 0, "logprobs": 0, "echo": True, "truncate_prompt_tokens": 3}
    for streams in (False, True):
        reply = await ask(app(texts), TEXT, {**body, "stream": streams})
        choices = [each["choices"][0] for each in reply.events] if streams else reply.json["choices"]
        text = "".join(choice["text"] for choice in choices)
        scores = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        assert text == "".join(token for each in scores for token in each["tokens"]) == "def"
        assert [place for each in scores for place in each["text_offset"]] == [0, 1, 2]


async def test_a_chat_echoes_the_message_that_it_goes_on_with(texts: Session) -> None:
    messages = [USER, {"role": "assistant", "content": "It is"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 4, "continue_final_message": True, "echo": True}
    answer = (await ask(app(texts), CHAT, {**body, "echo": False})).json["choices"][0]["message"]["content"]
    (choice,) = (await ask(app(texts), CHAT, body)).json["choices"]
    assert choice["message"]["content"] == "It is" + answer
    events = (await ask(app(texts), CHAT, {**body, "stream": True})).events
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "It is" + answer
    parts = [USER, {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    assert (await ask(app(texts), CHAT, {**body, "messages": parts})).json["choices"] == [choice]
    of_user = (await ask(app(texts), CHAT, {"messages": [USER], "max_tokens": 4, "echo": True})).json
    assert "Weather?" not in of_user["choices"][0]["message"]["content"]


async def test_minus_one_means_all_tokens_of_the_vocabulary(texts: Session, byte_tokenizer: Tokenizer) -> None:
    few = await ask(app(texts), TEXT, {"prompt": "a", "max_tokens": 1, "logprobs": -1})
    assert (few.status, few.error["param"]) == (400, "logprobs")
    assert f"logprobs must be at most 20, got {VOCAB_SIZE}; raise max_logprobs" in few.error["message"]
    limits = replace(fake_limits(), max_logprobs=VOCAB_SIZE)
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        body = {"messages": [USER], "max_tokens": 1, "logprobs": True, "top_logprobs": -1, "prompt_logprobs": -1}
        assert (await ask(app(session), CHAT, body)).status == 200
        answer = await session.generate("ab", max_tokens=0, prompt_logprobs=-1)
        assert answer == await session.generate("ab", max_tokens=0, prompt_logprobs=VOCAB_SIZE)


async def test_answers_have_the_fingerprint_of_the_session_until_its_weights_change(texts: Session) -> None:
    bodies = {CHAT: {"messages": [USER], "max_tokens": 1}, TEXT: {"prompt": "a", "max_tokens": 1}}
    for path, body in bodies.items():
        assert (await ask(app(texts), path, body)).json["system_fingerprint"] == texts.fingerprint
        events = (await ask(app(texts), path, {**body, "stream": True})).events
        assert {event["system_fingerprint"] for event in events} == {texts.fingerprint}
    before = texts.fingerprint
    await texts.update_weights({})
    assert re.fullmatch(r"fp_\w{10}_1", texts.fingerprint)
    assert not texts.fingerprint.startswith(before), "its digest has the content of the weights"


def test_another_form_of_the_same_model_has_another_fingerprint() -> None:
    loaded = fake_loaded_engine(fake_limits())
    with fake_session(loaded) as one, fake_session(fake_loaded_engine(fake_limits())) as same:
        assert one.fingerprint == same.fingerprint
    identity = Identity({**loaded.identity.texts(), "numbers": "bfloat16"})
    with fake_session(replace(loaded, identity=identity)) as other:
        assert other.fingerprint != one.fingerprint


async def test_usage_in_each_chunk_counts_the_tokens_up_to_it(texts: Session) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": [USER], "max_tokens": 3, "logprobs": True, "stream": True, "stream_options": options}
    *events, _ = (await ask(app(texts), CHAT, body)).events
    count = 0
    for event in events:
        (choice,) = event["choices"]
        count += len((choice["logprobs"] or {"content": []})["content"])
        assert event["usage"]["completion_tokens"] == count
        assert event["usage"]["prompt_tokens"] > 0
    assert (events[0]["choices"][0]["delta"]["role"], count) == ("assistant", 3)
    options["include_usage"] = False
    plain = (await ask(app(texts), CHAT, body)).events
    assert not any("usage" in event for event in plain)
