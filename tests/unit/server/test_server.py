"""The server gives what its session gives, in the form of OpenAI's API, and says in it why it gives nothing."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import rekindle
from rekindle.core.messages import Submit
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.server import Limits, app
from rekindle.server.common.events import json_bytes
from rekindle.server.common.logprobs import TextLogprobs, chat_logprobs
from rekindle.server.models.served import short_name
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.unit.apis import calls_in
from tests.unit.asgi import Caller, ask
from tests.unit.scripted import ANSWER as ANSWER_MARK
from tests.unit.scripted import scripted_session
from tests.unit.sessions import assert_all_is_free, submitted
from tests.waiting import until

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Weather?"}
FUNCTION = {"name": "weather", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
ANSWER = f"<think>\nthe user asks\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SECRET = "xyzzy-plugh"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with scripted_session(monkeypatch, lambda prompt: ANSWER) as session:
        yield session


# What comes


async def test_a_body_asks_for_drafts(texts: Session) -> None:
    body = {"prompt": [3, 1, 4], "max_tokens": 40}
    alone = (await ask(app(texts), TEXT, body)).json["choices"]
    for draft, has_drafts in ((False, False), ("lookup", True)):
        for _ in range(2):
            assert (await ask(app(texts), TEXT, {**body, "draft": draft})).json["choices"] == alone
        assert (texts.stats.scheduler.drafts > 0) == has_drafts
    refused = await ask(app(texts), TEXT, {**body, "draft": "often"})
    assert (refused.status, refused.error["param"]) == (400, "draft")


async def test_a_chat_is_the_answer_of_the_session_taken_apart(scripted: Session) -> None:
    reply = await ask(app(scripted), CHAT, {"messages": [USER], "tools": [TOOL]})
    answer = await scripted.generate([USER], tools=[TOOL], max_tokens=None)
    (choice,) = reply.json["choices"]
    calls = choice["message"].pop("tool_calls")
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "Let me see.",
            "refusal": None,
            "reasoning_content": "the user asks",
        },
        "logprobs": None,
        "finish_reason": "tool_calls",
        "stop_reason": None,
        "token_ids": None,
    }
    assert [call["id"] for call in calls] == [call.id for call in answer.tool_calls]
    assert calls[0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    usage = reply.json["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": answer.usage.reasoning_tokens}
    assert answer.usage.reasoning_tokens == len(scripted.encode("\nthe user asks\n"))
    assert usage["prompt_tokens"] == answer.usage.prompt_tokens
    assert usage["total_tokens"] == answer.usage.total_tokens
    assert (reply.json["object"], reply.json["model"]) == ("chat.completion", "fake")


@pytest.mark.parametrize(
    ("wish", "keys"), [(None, {"reasoning_content"}), (True, {"reasoning_content", "reasoning"}), (False, set())]
)
async def test_reasoning_is_in_one_key_and_in_vllms_too_if_asked_for(
    scripted: Session, wish: bool | None, keys: set[str]
) -> None:
    body = {"messages": [USER], "include_reasoning": wish}
    whole = (await ask(app(scripted), CHAT, body)).json
    (choice,) = whole["choices"]
    assert {key: text for key, text in choice["message"].items() if "reasoning" in key} == dict.fromkeys(
        keys, "the user asks"
    )
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    events = (await ask(app(scripted), CHAT, {**body, "stream": True, "return_token_ids": True})).events
    choices = [event["choices"][0] for event in events]
    assert {key for each in choices for key in each["delta"] if "reasoning" in key} == keys
    assert all(joined(events, key) == "the user asks" for key in keys)
    assert joined(events, "content") == choice["message"]["content"]
    count = sum(len(each.get("token_ids") or ()) for each in choices)
    assert count == whole["usage"]["completion_tokens"], "hidden tokens count"


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_an_answer_names_the_stop_of_the_request_that_ended_it(scripted: Session, path: str) -> None:
    prompt = {"messages": [USER]} if path == CHAT else {"prompt": ANSWER_MARK, "max_tokens": 200}
    (token,) = scripted.encode("u")
    for options, reason in (({"stop": "see"}, "see"), ({"stop_token_ids": [token]}, token), ({}, None)):
        body = {**prompt, **options}
        (choice,) = (await ask(app(scripted), path, body)).json["choices"]
        assert choice["stop_reason"] == reason
        *others, last = (await ask(app(scripted), path, {**body, "stream": True})).events
        assert last["choices"][0]["stop_reason"] == reason
        assert not any("stop_reason" in each["choices"][0] for each in others)


async def test_a_long_prompt_is_cut_and_its_answer_taken_apart_as_before(scripted: Session) -> None:
    long = [{"role": "user", "content": "x" * 5000}, USER]
    body = {"messages": long, "tools": [TOOL], "return_token_ids": True}
    assert (await ask(app(scripted), CHAT, body)).error["code"] == "context_length_exceeded"
    cut = (await ask(app(scripted), CHAT, {**body, "truncate_prompt_tokens": 100})).json
    assert (len(cut["prompt_token_ids"]), cut["usage"]["prompt_tokens"]) == (100, 100)
    whole = scripted.encode(scripted.render(long, tools=[TOOL]))
    assert cut["prompt_token_ids"] == whole[-100:]
    message = cut["choices"][0]["message"]
    assert (message["reasoning_content"], len(message["tool_calls"])) == ("the user asks", 2)
    refused = await ask(app(scripted), CHAT, {**body, "truncation_side": "middle"})
    assert refused.error["param"] == "truncation_side"


async def test_texts_and_lists_of_token_ids_are_completed_together(byte_tokenizer: Tokenizer) -> None:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)) as session:
        body = {"max_tokens": 3, "n": 2, "seed": 1, "temperature": 1, "echo": True}
        mixed = (await ask(app(session), TEXT, {**body, "prompt": ["one", [1, 2]]})).json
        alone = [(await ask(app(session), TEXT, {**body, "prompt": prompt})).json for prompt in ("one", [1, 2])]
        texts = [choice["text"] for each in alone for choice in each["choices"]]
        assert [choice["text"] for choice in mixed["choices"]] == texts
        assert mixed["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)
    with fake_session() as bare:
        refused = await ask(app(bare), TEXT, {"prompt": ["one", [1, 2]]})
        assert (refused.status, refused.error["param"]) == (400, "prompt")


def joined(events: list[Any], key: str, choice: int = 0) -> str:
    """Return the text of one key of the deltas of a stream."""
    choices = [each for event in events for each in event["choices"] if each["index"] == choice]
    return "".join(each["delta"].get(key) or "" for each in choices)


async def test_a_stream_has_the_same_in_chunks_and_its_usage_last(scripted: Session) -> None:
    body = {"messages": [USER], "tools": [TOOL], "logprobs": True, "top_logprobs": 1}
    whole = (await ask(app(scripted), CHAT, body)).json
    reply = await ask(app(scripted), CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, last = reply.events
    message = whole["choices"][0]["message"]
    assert (joined(events, "content"), joined(events, "reasoning_content")) == ("Let me see.", "the user asks")
    deltas = [event["choices"][0]["delta"] for event in events]
    assert calls_in(deltas) == message["tool_calls"]
    assert sum("tool_calls" in delta for delta in deltas) > 2, "arguments come in pieces"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "tool_calls"
    scores = [token for event in events for token in (event["choices"][0]["logprobs"] or {"content": ()})["content"]]
    assert scores == whole["choices"][0]["logprobs"]["content"]
    assert last["choices"] == []
    for name in ("total_tokens", "completion_tokens_details"):
        assert last["usage"][name] == whole["usage"][name]
    assert len({event["id"] for event in reply.events}) == 1


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_an_answer_with_one_call_ends_after_it(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    with scripted_session(monkeypatch, lambda prompt: f"{CALL}{CALL}") as session:
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
        tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
        options: dict[str, Any] = {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False}
        answer = await session.generate([USER], max_tokens=None, **options)
        both = await session.generate([USER], max_tokens=None, **options | {"parallel_tool_calls": True})
        assert answer.text == both.text[: both.text.index("</tool_call>") + len("</tool_call>")]
        assert (len(answer.tool_calls), len(both.tool_calls), answer.finish_reason) == (1, 2, "stop")
        assert (await answer.branch(3, answer.token_ids[3])).text == answer.text
        body = {"messages": [USER], **options}
        whole = (await ask(app(session), CHAT, body)).json
        assert whole["choices"][0]["finish_reason"] == "tool_calls"
        assert whole["usage"]["completion_tokens"] == answer.usage.completion_tokens == len(answer.token_ids)
        assert answer.usage.completion_tokens < both.usage.completion_tokens - 10
        counting = {"stream": True, "stream_options": {"include_usage": True}}
        *events, last = (await ask(app(session), CHAT, body | counting)).events
        assert len(calls_in([event["choices"][0]["delta"] for event in events])) == 1
        assert last["usage"] == whole["usage"] | {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
        stats = session.stats.scheduler
        await until(lambda: session.stats.scheduler.free_pages == stats.pages, "its pages are free")


async def test_of_a_call_that_had_to_come_and_was_cut_nothing_is_content(monkeypatch: pytest.MonkeyPatch) -> None:
    function_choice = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
    with scripted_session(monkeypatch, lambda prompt: CALL) as session:
        for choice, content in (({}, CALL[:20]), (function_choice, ""), ({"tool_choice": "required"}, "")):
            body = {"messages": [USER], "tools": [TOOL], "max_tokens": 20, **choice}
            (whole,) = (await ask(app(session), CHAT, body)).json["choices"]
            assert (whole["message"]["content"], whole["finish_reason"]) == (content, "length")
            events = (await ask(app(session), CHAT, {**body, "stream": True})).events
            assert joined(events, "content") == content
            responses = {
                "input": "Weather?",
                "tools": [{"type": "function", **FUNCTION}],
                "max_output_tokens": 20,
            }
            if choice is not function_choice:  # which is spelt in another way there
                response = (await ask(app(session), "/v1/responses", {**responses, **choice})).json
                assert response["status"] == "incomplete"
                assert [part["text"] for item in response["output"] for part in item["content"]] == [content]


async def test_log_probabilities_name_each_token_once_by_its_text_or_by_its_id(texts: Session) -> None:
    body = {"prompt": [[3, 1]], "max_tokens": 2, "logprobs": 4}
    answer = (await texts.generate(token_ids=[[3, 1]], max_tokens=2, logprobs=4, temperature=1.0, seed=1))[0]
    expected = [f"token_id:{token}" for token in answer.token_ids]
    body |= {"seed": 1, "temperature": 1.0}
    (choice,) = (await ask(app(texts), TEXT, {**body, "return_tokens_as_token_ids": True})).json["choices"]
    assert choice["logprobs"]["tokens"] == expected
    streamed = await ask(app(texts), TEXT, {**body, "return_tokens_as_token_ids": True, "stream": True})
    scores = [event["choices"][0]["logprobs"] for event in streamed.events]
    assert [token for each in scores if each for token in each["tokens"]] == expected
    for score, top in zip(answer.logprobs or (), choice["logprobs"]["top_logprobs"], strict=True):
        ids = {score.token_id, *(other.token_id for other in score.top)}
        assert set(top) == {f"token_id:{token}" for token in ids}


def test_alternatives_of_one_text_are_told_apart_by_their_ids() -> None:
    top = tuple(TokenLogprob(token, text, -float(token), token) for token, text in ((1, "a"), (2, ""), (3, "")))
    logprobs = TextLogprobs().of([TokenLogprob(3, "", -3.0, 3, top)])
    assert logprobs["top_logprobs"] == [{"a": -1.0, "": -2.0, "token_id:3": -3.0}]
    logprobs = TextLogprobs(by_id=True).of([TokenLogprob(4, "b", -4.0, 4, top)])
    assert logprobs["tokens"] == ["token_id:4"]
    assert list(logprobs["top_logprobs"][0]) == ["token_id:4", "token_id:1", "token_id:2", "token_id:3"]
    chat = chat_logprobs([TokenLogprob(3, "", -3.0, 3, top)], by_id=True)["content"][0]
    assert (chat["token"], chat["top_logprobs"][0]["token"]) == ("token_id:3", "token_id:1")


async def test_the_same_seed_gives_the_tokens_of_the_session(texts: Session) -> None:
    ids = [[3, 1, 4], [1, 5, 9]]
    body = {"prompt": ids, "n": 3, "seed": 7, "temperature": 1.0, "max_tokens": 5, "logprobs": 0}
    reply = await ask(app(texts), TEXT, body)
    groups = await texts.generate(token_ids=ids, n=3, seed=7, temperature=1.0, max_tokens=5, logprobs=0)
    answers = [answer for group in groups for answer in group]
    assert [choice["text"] for choice in reply.json["choices"]] == [answer.text for answer in answers]
    tokens = [[token.text for token in answer.logprobs or ()] for answer in answers]
    assert [choice["logprobs"]["tokens"] for choice in reply.json["choices"]] == tokens
    assert len({tuple(each) for each in tokens}) == 6
    assert reply.json["usage"]["prompt_tokens"] == 6
    assert reply.json["usage"]["completion_tokens"] == 30


async def test_choices_of_a_stream_come_each_under_its_index(texts: Session) -> None:
    body = {"prompt": ["one", "two"], "max_tokens": 6, "n": 2, "seed": 3, "temperature": 1}
    whole = (await ask(app(texts), TEXT, body)).json["choices"]
    stream = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *events, last = (await ask(app(texts), TEXT, {**body, **stream, "echo": True})).events
    for choice in whole:
        parts = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == ("one", "two")[choice["index"] // 2] + choice["text"]
        assert parts[-1]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 24
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)


async def test_an_echo_has_the_log_probabilities_of_the_prompt(texts: Session) -> None:
    reply = await ask(app(texts), TEXT, {"prompt": "abc", "max_tokens": 1, "logprobs": 1, "echo": True})
    answer = await texts.generate("abc", max_tokens=1, logprobs=1, prompt_logprobs=1)
    (choice,) = reply.json["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "abc" + answer.text
    assert logprobs["tokens"][:3] == ["a", "b", "c"]
    assert answer.prompt_logprobs is not None
    assert logprobs["token_logprobs"][:3] == [None, *(each.logprob for each in answer.prompt_logprobs if each)]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"b": logprobs["token_logprobs"][1]}
    assert logprobs["text_offset"][:4] == [0, 1, 2, 3]


def test_line_ends_that_json_may_have_unescaped_are_escaped() -> None:
    text = "a\u2028b\u2029c\x85d"
    assert len(json_bytes(text).decode().splitlines()) == 1
    assert json.loads(json_bytes(text)) == text


async def test_a_completion_may_say_that_its_text_has_its_special_tokens(texts: Session) -> None:
    body = {"prompt": "abc", "max_tokens": 1, "add_special_tokens": False}
    assert (await ask(app(texts), TEXT, body)).json["usage"]["prompt_tokens"] == len(texts.encode("abc"))


async def test_a_prompt_alone_is_computed_without_a_token(texts: Session) -> None:
    reply = await ask(app(texts), TEXT, {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 0})
    assert reply.json["choices"][0]["text"] == "abc"
    assert reply.json["choices"][0]["finish_reason"] == "length"
    streamed = await ask(app(texts), TEXT, {"prompt": "abc", "max_tokens": 0, "echo": True, "stream": True})
    assert [event["choices"][0]["text"] for event in streamed.events] == ["abc"]


async def test_embeddings_are_those_of_the_session_in_either_form(texts: Session) -> None:
    inputs = ["one", "two"]
    expected = await texts.embed(inputs, normalize=True)
    floats = (await ask(app(texts), "/v1/embeddings", {"input": inputs})).json
    assert [each["embedding"] for each in floats["data"]] == expected.tolist()
    assert floats["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    packed = (await ask(app(texts), "/v1/embeddings", {"input": [[1, 2], [3]], "encoding_format": "base64"})).json
    vectors = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in packed["data"]]
    assert np.array_equal(vectors, await texts.embed(token_ids=[[1, 2], [3]]))
    mixed = (await ask(app(texts), "/v1/embeddings", {"input": ["one", [1, 2]]})).json
    with fake_session() as without:
        refused = await ask(app(without), "/v1/embeddings", {"input": ["one", [1, 2]]})
        assert (refused.status, refused.error["param"]) == (400, "input")
        assert (await ask(app(without), "/v1/embeddings", {"input": [[1, 2]]})).status == 200
    each = await texts.embed(["one"]), await texts.embed(token_ids=[[1, 2]])
    assert [one["embedding"] for one in mixed["data"]] == np.concatenate(each).tolist()


@pytest.mark.parametrize("prompt", ["a b c d", "a b c d " * 100])
async def test_a_text_of_too_many_tokens_does_not_become_a_list(
    scripted: Session, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    monkeypatch.setattr("rekindle.server.models.tokens.MOST_TOKENS", 3)
    server = app(scripted)
    assert (await ask(server, "/tokenize", {"prompt": "abc"})).status == 200
    refused = await ask(server, "/tokenize", {"prompt": prompt})
    assert (refused.status, refused.error["param"]) == (400, "prompt")
    assert "tokens; at most 3 become a list at once. Send it in parts" in refused.error["message"]
    mixed = await ask(server, "/v1/completions", {"prompt": [prompt, [1, 2]]})
    assert (mixed.status, mixed.error["param"]) == (400, "prompt")


async def test_texts_become_tokens_and_texts_again(scripted: Session) -> None:
    server = app(scripted)
    reply = (await ask(server, "/tokenize", {"prompt": "the", "return_token_strs": True})).json
    assert (reply["tokens"], reply["count"]) == (scripted.encode("the"), len(scripted.encode("the")))
    assert "".join(reply["token_strs"]) == "the"
    assert (await ask(server, "/detokenize", {"tokens": reply["tokens"]})).json["prompt"] == "the"
    plain = (await ask(server, "/tokenize", {"content": "the", "with_pieces": True})).json  # llama.cpp's form
    assert plain == {"tokens": [{"id": token, "piece": scripted.decode([token])} for token in reply["tokens"]]}
    assert (await ask(server, "/detokenize", {"tokens": reply["tokens"]})).json["content"] == "the"
    chat = (await ask(server, "/tokenize", {"messages": [USER], "tools": [TOOL]})).json
    assert chat["tokens"] == scripted.encode(scripted.render([USER], tools=[TOOL]))
    info = (await ask(server, "/tokenizer_info")).json
    assert info["eos_token"] == "<|im_end|>"
    assert "tool_call" in info["chat_template"]


async def test_the_model_is_listed_and_known_by_its_name(texts: Session) -> None:
    server = app(texts, name="a/b")
    assert [each["id"] for each in (await ask(server, "/v1/models")).json["data"]] == ["a/b"]
    assert (await ask(server, "/v1/models/a/b")).json["max_model_len"] == 4096
    assert (await ask(server, TEXT, {"model": "a/b", "prompt": "x", "max_tokens": 1})).status == 200
    wrong = await ask(server, TEXT, {"model": "c", "prompt": "x"})
    assert (wrong.status, wrong.error["code"], wrong.error["param"]) == (404, "model_not_found", "model")
    assert (await ask(server, "/v1/models/c")).status == 404


async def test_adapters_are_models_of_their_own_and_go_with_their_names(texts: Session) -> None:
    server, array = app(texts, name="a/b"), np.ones((1, 1), np.float32)
    tensors = {f"model.layers.0.self_attn.q_proj.lora_{side}": array for side in "AB"}
    await texts.add_adapter("sql", tensors=tensors, config={"r": 1, "lora_alpha": 8})
    cards = (await ask(server, "/v1/models")).json["data"]
    assert [(each["id"], each.get("parent")) for each in cards] == [("a/b", None), ("sql", "a/b")]
    assert (await ask(server, "/v1/models/sql")).json == cards[1]
    bodies = {TEXT: {"prompt": "x", "max_tokens": 1}, CHAT: {"messages": [USER], "max_tokens": 1}}
    bodies |= {"/v1/embeddings": {"input": "x"}, "/v1/responses": {"input": "x", "max_output_tokens": 1}}
    submits: list[Submit] = []
    with texts.watch(lambda record: submits.append(record.message) if isinstance(record.message, Submit) else None):
        for path, body in bodies.items():
            for model in ("sql", "a/b"):
                reply = await ask(server, path, body | {"model": model})
                assert (reply.status, reply.json["model"]) == (200, model), reply.body
            assert (await ask(server, path, body)).json["model"] == "a/b"
    assert [each.adapter and each.adapter.name for each in submits] == 4 * ["sql", None, None]
    assert "with adapter sql" in str(submits[0])
    await texts.remove_adapter("sql")
    absent = await ask(server, TEXT, bodies[TEXT] | {"model": "sql"})
    assert (absent.status, absent.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("owner/name", "owner/name"),
        ("/home/me/models/llama", "llama"),
        ("./llama", "llama"),
        ("owner/name/file.gguf", "file.gguf"),
    ],
)
def test_a_name_tells_nothing_of_where_a_model_lies(model: str, name: str) -> None:
    assert short_name(model) == name


def test_a_path_below_here_is_no_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_name("models/x.gguf") == "models/x.gguf"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x.gguf").touch()
    assert short_name("models/x.gguf") == "x.gguf"


# What does not come


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 7}, "top_p"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"include_stop_str_in_output": "no"}, "include_stop_str_in_output"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
async def test_what_the_session_refuses_is_named_as_the_body_has_it(
    scripted: Session, fields: dict[str, Any], param: str
) -> None:
    reply = await ask(app(scripted), CHAT, {"messages": [USER], **fields})
    assert (reply.status, reply.error["type"], reply.error["param"]) == (400, "invalid_request_error", param)


@pytest.mark.filterwarnings("error")
async def test_a_hint_that_the_template_does_not_read_fails_only_at_a_strict_server(scripted: Session) -> None:
    hints: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, {"messages": [USER], "reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        (CHAT, {"messages": [USER], "verbosity": "high"}, "verbosity"),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "low"}}, "reasoning_effort"),
        ("/v1/responses", {"input": "Hi", "text": {"verbosity": "low"}}, "text.verbosity"),
        ("/tokenize", {"messages": [USER], "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ]
    for path, body, param in hints:
        assert (await ask(app(scripted), path, body)).status == 200
        reply = await ask(app(scripted, strict=True), path, body)
        assert (reply.status, reply.error["param"]) == (400, param)


async def test_a_prompt_that_is_too_long_has_a_code(texts: Session) -> None:
    reply = await ask(app(texts), TEXT, {"prompt": "x" * 5000})
    error = reply.error
    assert (reply.status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert reply.error["message"].endswith("Please reduce the length of the prompt.")
    several = await ask(app(texts), TEXT, {"prompt": ["x", "x" * 5000]})
    assert "prompt[1]: the prompt has 5000 tokens" in several.error["message"]
    assert_all_is_free(texts)


async def test_paths_methods_and_types_that_are_not_served_say_so_in_the_same_form(texts: Session) -> None:
    server = app(texts, limits=Limits(body_bytes=100))
    nothing = await ask(server, "/v1/nothing")
    assert nothing.status == 404
    assert nothing.error["message"].startswith("GET /v1/nothing is not served; there are /v1/chat/completions, /v1/")
    wrong = await ask(server, TEXT)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert wrong.error["message"] == "GET /v1/completions is not served; use POST"
    assert (await ask(server, TEXT, b"a=b", headers={"content-type": "text/plain"})).status == 415
    assert (await ask(server, TEXT, {"prompt": "x" * 200})).status == 413
    broken = await ask(server, TEXT, b'{"prompt": ')
    assert broken.status == 400
    assert broken.error["message"] == "the body is not JSON: Expecting value at line 1, column 12"


async def test_a_body_may_have_as_many_bytes_as_the_bound_and_none_more(texts: Session) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'
    server = app(texts, limits=Limits(body_bytes=len(body)))
    assert (await ask(server, TEXT, body)).status == 200
    more = await ask(server, TEXT, body + b" ")
    assert (more.status, more.error["message"]) == (413, f"the body may have at most {len(body)} bytes")


async def test_a_full_queue_is_told_with_when_to_come_again(settler: FakeSettler, byte_tokenizer: Tokenizer) -> None:
    limits = fake_limits(max_running=1)
    loaded_engine = fake_loaded_engine(limits, settler=settler, tokenizer=byte_tokenizer)
    with fake_session(loaded_engine, max_waiting=2) as session:
        server = app(session)
        async with anyio.create_task_group() as tasks:
            first = [Caller(server, TEXT, {"prompt": [3, 1], "max_tokens": 2}) for _ in range(3)]
            for place, caller in enumerate(first, 1):
                tasks.start_soon(caller.run)
                await submitted(session, place)
                await until(lambda: session.stats.scheduler.running, "the first request had the slot")
            for path, body in ((TEXT, {"prompt": [3, 1]}), ("/v1/embeddings", {"input": [3, 1]})):
                reply = await ask(server, path, body)
                assert (reply.status, reply.headers["retry-after"]) == (429, "1")
                assert reply.error["code"] == "rate_limit_exceeded"
            urgent = Caller(server, TEXT, {"prompt": [3, 1], "max_tokens": 2, "priority": -1})
            tasks.start_soon(urgent.run)
            await submitted(session, 4)
            tasks.start_soon(session.embed, "a cell waits for room")
            settler.release()
        assert [caller.reply.status for caller in (*first, urgent)] == [200] * 4
        assert_all_is_free(session)


async def test_a_closed_session_is_unavailable(texts: Session) -> None:
    server = app(texts)
    assert (await ask(server, "/health")).status == 200
    await texts.close()
    for reply in (await ask(server, "/health"), await ask(server, TEXT, {"prompt": "x"})):
        assert (reply.status, reply.error["message"]) == (503, "the model is being shut down")


async def test_a_stuck_engine_is_unavailable_and_health_says_in_which_tick(settler: FakeSettler) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(), settler=settler)
    settings = replace(loaded_engine.settings, watchdog_timeout=0.05)
    async with fake_session(replace(loaded_engine, settings=settings)) as session:
        server = app(session)
        reply = await ask(server, TEXT, {"prompt": [3], "max_tokens": 5})
        assert (reply.status, reply.error["message"]) == (
            503,
            "the device that runs the model does not respond; retry later",
        )
        reply = await ask(server, "/health")
        assert (reply.status, reply.error["message"][:31]) == (503, "the engine is stuck in tick 1 f")
        assert reply.error["type"] == "service_unavailable_error"
        settler.release()
        await until(lambda: session.stuck is None, "the tick has settled")
        assert (await ask(server, "/health")).status == 200


async def test_requests_that_end_with_the_session_are_told_so(held_session: Session, settler: FakeSettler) -> None:
    client = [
        Caller(app(held_session), TEXT, {"prompt": [3], "max_tokens": 50, "stream": each}) for each in (False, True)
    ]
    async with anyio.create_task_group() as tasks:
        for caller in client:
            tasks.start_soon(caller.run)
        await submitted(held_session, 2)
        await held_session.close()
    assert [(caller.reply.status, caller.reply.error["type"]) for caller in client] == [
        (503, "service_unavailable_error")
    ] * 2


async def test_an_error_of_the_server_tells_nothing(
    texts: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"{SECRET} at /home/me")

    monkeypatch.setattr(Session, "submit_all", fails)
    reply = await ask(app(texts), TEXT, {"prompt": SECRET})
    assert (reply.status, reply.error["message"]) == (500, "the server failed at this request")
    assert SECRET not in caplog.text
    assert "RuntimeError" in caplog.text


async def test_errors_and_logs_have_no_prompt(scripted: Session, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    long = {"role": "user", "content": SECRET * 1000}
    for body in (
        {"messages": [long]},
        {"messages": [{"role": "user", "content": SECRET}], "top_p": 9},
        {"messages": [{"role": "user", "content": SECRET}], "chat_template_kwargs": {"tools": 1}},
    ):
        reply = await ask(app(scripted), CHAT, body)
        assert reply.status == 400
        assert SECRET not in reply.body.decode()
    assert SECRET not in caplog.text


# Who may ask


async def test_without_one_of_the_keys_nothing_but_health_is_served(texts: Session) -> None:
    server = app(texts, api_keys=["one", "two"])
    for headers in ({}, {"authorization": "Bearer on"}, {"authorization": "one"}, {"authorization": "Bearer ön"}):
        reply = await ask(server, "/v1/models", headers=headers)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
    for key in ("one", "two"):
        for headers in ({"authorization": f"Bearer {key}"}, {"authorization": f"bearer {key}"}, {"x-api-key": key}):
            assert (await ask(server, "/v1/models", headers=headers)).status == 200
    assert (await ask(server, "/health")).status == 200
    assert (await ask(server, "/metrics")).status == 401


async def test_pages_of_other_origins_may_ask_only_if_they_are_named(texts: Session) -> None:
    asks = {"origin": "https://a.example", "access-control-request-method": "POST"}
    closed = await ask(app(texts), TEXT, method="OPTIONS", headers=asks)
    assert "access-control-allow-origin" not in closed.headers
    server = app(texts, origins=["https://a.example"], api_keys=["key"])
    reply = await ask(server, TEXT, method="OPTIONS", headers=asks)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://a.example")
    other = await ask(server, TEXT, method="OPTIONS", headers={**asks, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers


def test_empty_keys_are_refused(texts: Session) -> None:
    keys: Any
    for keys, came in [([""], "an empty one"), ("key", "one string: put it in a list"), ([1], "an item of type int")]:
        with pytest.raises(rekindle.ConfigError, match=f"api_keys must be a list of non-empty strings, got {came}"):
            app(texts, api_keys=keys)


# Conversations


async def test_an_answer_goes_back_into_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return CALL

    with scripted_session(monkeypatch, script) as session:
        answer = (await ask(app(session), CHAT, {"messages": [USER], "tools": [TOOL]})).json["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "sunny"}
        reply = await ask(app(session), CHAT, {"messages": [USER, answer, result], "tools": [TOOL]})
        assert reply.status == 200
    assert json.dumps({"city": "Rome"}) in prompts[-1]
    assert "sunny" in prompts[-1]


async def test_a_model_without_a_tokenizer_is_asked_by_token_ids() -> None:
    with fake_session() as session:
        reply = await ask(app(session), TEXT, {"prompt": [3, 1, 4], "max_tokens": 3, "echo": True})
        assert (reply.status, reply.json["usage"]["completion_tokens"]) == (200, 3)
        assert (await ask(app(session), TEXT, {"prompt": "x"})).status == 400
        assert (await ask(app(session), "/tokenizer_info")).status == 404


def test_a_tokenizer_is_shown(texts: Session, byte_tokenizer: Tokenizer) -> None:
    assert texts.tokenizer is byte_tokenizer
    assert texts.name == "fake"
    assert texts.error is None
