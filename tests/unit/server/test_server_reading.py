"""A body is read into a call of the session, or refused with the name of the field for which it cannot be."""

import gzip
import json
import zlib
from typing import Any

import pytest

from rekindle.formats.response import MessageForm
from rekindle.server import Limits, app
from rekindle.server.common.call import Streaming
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields, parse_body
from rekindle.server.common.messages import message
from rekindle.server.http import reading
from rekindle.server.judging.encoding_body import read_detokenize, read_embedding, read_tokenize
from rekindle.server.openai.chat.body import read_chat
from rekindle.server.openai.completions.body import read_completion
from tests.unit.asgi import ask
from tests.unit.scripted import Serve

USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = MessageForm()


def chat(**fields: Any) -> Any:
    return read_chat(Fields({"messages": [USER], **fields}), FORM)


def completion(**fields: Any) -> Any:
    return read_completion(Fields({"prompt": "Hello", **fields}), 100)


def test_a_chat_without_more_is_generated_to_the_end_of_the_context() -> None:
    request = chat()
    assert request.call.prompt == [USER]
    assert {name: value for name, value in request.call.options.items() if value} == {}
    assert request.call.options["max_tokens"] is None
    assert (request.call.n, request.call.choices, request.call.streaming) == (None, 1, None)


def test_a_completion_without_more_has_sixteen_tokens() -> None:
    request = completion()
    assert (request.call.prompt, request.call.options) == ("Hello", {"max_tokens": 16})


def test_sampling_fields_become_the_keywords_of_the_session() -> None:
    options = {
        "temperature": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "stop": ["a"],
        "seed": 7,
        "cache_salt": "x",
        "min_tokens": 1,
    }
    options |= {"priority": -3, "draft": "lookup"}
    request = completion(**options, include_stop_str_in_output=True, max_tokens=4)
    assert request.call.options == {**options, "keep_stop": True, "max_tokens": 4}
    assert request.call.fields["keep_stop"] == "include_stop_str_in_output"
    assert chat(draft=False).call.options["draft"] is False


def test_the_newer_name_of_the_most_tokens_wins() -> None:
    request = chat(max_tokens=3, max_completion_tokens=5)
    assert request.call.options["max_tokens"] == 5
    assert request.call.fields["max_tokens"] == "max_completion_tokens"
    assert chat(max_tokens=3).call.fields["max_tokens"] == "max_tokens"


def test_prompts_times_draws_may_be_as_many_as_the_bound_and_none_more() -> None:
    for prompts, n in ((100, 1), (50, 2), (1, 100)):
        assert len(completion(prompt=["a"] * prompts, n=n).prompts) == 100
    with pytest.raises(ApiError, match="must have at most 100 texts, got 101"):
        completion(prompt=["a"] * 101)
    with pytest.raises(ApiError, match="times the number of prompts must be at most 100, got 101"):
        completion(n=101)


def test_at_temperature_zero_what_is_about_draws_is_left_out_and_draws_are_prompts() -> None:
    request = completion(prompt=["a", "b"], temperature=0, seed=1, top_p=0.9, n=2)
    assert request.call.options == {"temperature": 0, "max_tokens": 16}
    assert (request.call.prompt, request.call.n, request.call.choices) == (["a", "a", "b", "b"], None, 2)
    assert request.prompts == ["a", "a", "b", "b"]
    sampled = completion(prompt=["a", "b"], temperature=1, n=2)
    assert (sampled.call.prompt, sampled.call.n, sampled.prompts) == (["a", "b"], 2, ["a", "a", "b", "b"])


@pytest.mark.parametrize(
    ("value", "prompt", "ids"),
    [
        ("a", "a", None),
        (["a", "b"], ["a", "b"], None),
        ([1, 2], None, [1, 2]),
        ([[1, 2], [3]], None, [[1, 2], [3]]),
        ([[1, 2]], None, [1, 2]),
    ],
)
def test_a_completion_takes_texts_and_token_ids(value: Any, prompt: Any, ids: Any) -> None:
    call = completion(prompt=value).call
    assert (call.prompt, call.options.get("token_ids")) == (prompt, ids)


@pytest.mark.parametrize(
    ("fields", "keyword", "value"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            "json_schema",
            SCHEMA,
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a"]}, "choice", ["a"]),
        ({"structured_outputs": {"grammar": "start: A"}}, "grammar", "start: A"),
        ({"structured_outputs": {"json_object": True}}, "json_schema", {"type": "object"}),
        ({"guided_grammar": "start: A", "structured_outputs": {"grammar": "start: A"}}, "grammar", "start: A"),
        (
            {"guided_json": json.dumps(SCHEMA), "response_format": {"type": "json_schema", "schema": SCHEMA}},
            "json_schema",
            SCHEMA,
        ),
    ],
)
def test_a_form_of_the_output_is_a_constraint(fields: dict[str, Any], keyword: str | None, value: Any) -> None:
    ask = chat(**fields).call.options
    constraint = {name: ask[name] for name in ("json_schema", "regex", "choice", "grammar") if name in ask}
    assert constraint == ({} if keyword is None else {keyword: value})


def test_tools_are_given_with_their_choice() -> None:
    ask = chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}).call.options
    assert (ask["tools"], ask["tool_choice"]) == ([TOOL], "f")
    assert chat(tools=[TOOL]).call.options["tool_choice"] == "auto"
    assert "tools" not in chat(tools=[], tool_choice="none").call.options
    assert chat(tools=[TOOL], parallel_tool_calls=False).one_call


def test_streams_say_what_they_have() -> None:
    assert chat(stream=True).call.streaming == Streaming()
    request = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert request.call.streaming == Streaming(usage=True, continuous=True)
    none = chat(stream=True, stream_options={"include_usage": False, "continuous_usage_stats": True})
    assert none.call.streaming == Streaming()


def test_seeds_may_have_a_sign() -> None:
    assert completion(seed=-(2**63)).call.options["seed"] == 2**63
    assert completion(seed=-5).call.options["seed"] == 2**64 - 5
    assert completion(seed=-1).call.options["seed"] == -1


def test_what_the_chat_template_reads_is_handed_on() -> None:
    ask = chat(chat_template_kwargs={"a": 1}, reasoning_effort="low").call.options
    assert ask["chat_template_kwargs"] == {"a": 1, "reasoning_effort": "low"}
    ask = chat(continue_final_message=True, add_generation_prompt=False).call.options
    assert (ask["continue_final_message"], ask["chat_template_kwargs"]) == (True, None)


def test_messages_are_given_as_the_template_reads_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = {"role": "assistant", "tool_calls": [call], "refusal": None, "reasoning": "hm"}
    result = message(answer, MessageForm(reasoning_key="thinking"))
    assert result["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (result["content"], result["thinking"]) == (None, "hm")
    assert not {"refusal", "reasoning"} & result.keys()
    assert message(answer, MessageForm(arguments_as_text=True))["tool_calls"] == [call]
    assert message({"role": "developer", "content": "x"}, FORM) == {"role": "system", "content": "x"}
    broken = {**call, "function": {"name": "f", "arguments": "{"}}
    assert message({"role": "assistant", "tool_calls": [broken]}, FORM)["tool_calls"] == [broken]


def test_what_changes_no_answer_is_ignored_and_null_is_as_if_it_were_not_given() -> None:
    ignored = {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "best_of": 1}
    nulls = dict.fromkeys(("temperature", "stop", "tools", "response_format", "functions", "anything"))
    assert chat(**ignored, **nulls) == chat()
    assert completion(**ignored, suffix="", echo=False) == completion()


def test_a_strict_server_refuses_hints_that_another_ignores() -> None:
    assert chat(verbosity="low") == chat(verbosity="medium") == chat()
    for name in ("verbosty", "service_teer"):
        with pytest.raises(ApiError, match="it is unknown"):
            chat(**{name: "low"})
    messages = [USER]
    read_chat(Fields({"messages": messages, "verbosity": "medium"}, strict=True), FORM)
    with pytest.raises(ApiError, match='supports only "medium"'):
        read_chat(Fields({"messages": messages, "verbosity": "low"}, strict=True), FORM)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages"),
        ({"temprature": 1}, "temprature"),
        ({"best_of": 2}, "best_of"),
        ({"functions": [{}]}, "functions"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 129}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"thinking": {"type": "yes"}}, "thinking.type"),
        ({"thinking": {"type": "disabled", "x": 1}}, "thinking.x"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"logprobs": 2}, "logprobs"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "structured_outputs"),
        ({"guided_json": "{", "structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"tools": [{"type": "functions", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "f"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_a_chat_that_cannot_be_served_is_refused_by_the_name_of_a_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param.rpartition(".")[2] in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1.5]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 101}, "prompt"),
        ({"prompt": ["a"] * 20, "n": 6}, "n"),
        ({"suffix": "b"}, "suffix"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"capture": [1], "stream": True}, "capture"),
    ],
)
def test_a_completion_that_cannot_be_served_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("reader", "fields", "param"),
    [
        (lambda body: read_embedding(body, 2), {}, "input"),
        (lambda body: read_embedding(body, 2), {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        (lambda body: read_embedding(body, 2), {"input": ["a"] * 3}, "input"),
        (lambda body: read_embedding(body, 2), {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (lambda body: read_tokenize(body, FORM), {}, "prompt"),
        (lambda body: read_tokenize(body, FORM), {"prompt": "a", "messages": [USER]}, "prompt"),
        (lambda body: read_tokenize(body, FORM), {"prompt": "a", "x": 1}, "x"),
        (read_detokenize, {}, "tokens"),
        (read_detokenize, {"tokens": [-1]}, "tokens"),
        (read_detokenize, {"tokens": [2**31]}, "tokens"),
        (read_detokenize, {"tokens": [1], "twist": 1}, "twist"),
    ],
)
def test_bodies_about_texts_are_refused_alike(reader: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        reader(Fields(fields))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"a"', b'{"a": NaN}', b"\xff", b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}"]
)
def test_what_is_no_object_of_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"temprature": 1}, "did you mean temperature?"),
        ({"max_new_tokens": 1}, "here it is max_tokens"),
        ({"stream": True, "stream_options": {"include_use": True}}, "did you mean include_usage?"),
        ({"xyzzy": 1}, "it might change the answer"),
    ],
)
def test_a_field_that_is_not_known_is_told_what_it_may_have_meant(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert caught.value.message.endswith(hint)


def test_the_wish_for_reasoning_has_several_forms() -> None:
    fields: dict[str, Any]
    for fields in ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}):
        assert chat(**fields).call.options["chat_template_kwargs"] == {"reasoning_effort": "none"}
        with_effort = chat(**fields, reasoning_effort="low").call.options
        assert with_effort["chat_template_kwargs"] == {"reasoning_effort": "low"}
    for fields in ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"enable_thinking": True}):
        assert chat(**fields).call.options["chat_template_kwargs"] == {"enable_thinking": True, "thinking": True}
    assert chat(thinking={"type": "auto"}).call.options["chat_template_kwargs"] is None


def test_edges_that_other_servers_take() -> None:
    options = chat(max_tokens=6.0, seed=3.0, top_k=4.0, temperature=0.5, top_logprobs=0).call.options
    assert [type(options[name]) for name in ("max_tokens", "seed", "top_k")] == [int] * 3
    assert chat(max_tokens=6.5).call.options["max_tokens"] == 6.5, "for the session to refuse"
    for source, content in (
        ({"role": "assistant", "content": None, "reasoning_content": "Hm."}, ""),
        ({"role": "assistant", "content": None, "refusal": "No."}, "No."),
        ({"role": "tool", "content": None, "tool_call_id": "1"}, ""),
        ({"role": "user", "content": None}, None),
        ({"role": "assistant", "content": None}, None),
    ):
        assert message(source, FORM)["content"] == content


def test_fields_without_an_effect_alone_are_dropped_since_clients_send_them_anyway() -> None:
    request = completion(include_stop_str_in_output=True, truncation_side="right", max_tokens=4)
    assert request.call.options == {"max_tokens": 4}
    both = completion(truncation_side="right", truncate_prompt_tokens=9, include_stop_str_in_output=True, stop="a")
    assert both.call.options["truncation_side"] == "right"
    assert both.call.options["keep_stop"] is True


BODY = json.dumps({"messages": [USER], "max_tokens": 1}).encode()
ENCODED: list[tuple[str, bytes]] = [
    ("gzip", gzip.compress(BODY, mtime=0)),
    ("x-gzip", gzip.compress(BODY, mtime=0)),
    ("GZIP", gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0)),
    ("deflate", zlib.compress(BODY)),
    ("deflate", zlib.compress(BODY)[2:-4]),  # without zlib's header, as some clients send it
    ("identity", BODY),
    ("", BODY),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("encoding", "data"), ENCODED)
async def test_a_compressed_body_is_read(serve: Serve, encoding: str, data: bytes) -> None:
    reply = await ask(app(serve("ok")), "/v1/chat/completions", data, headers={"content-encoding": encoding})
    assert reply.status == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("encoding", "data", "status", "message"),
    [
        ("zstd", BODY, 415, "the body has the content encoding 'zstd'; it may be one of gzip, deflate, or none"),
        ("br", BODY, 415, "'br'"),
        ("gzip, gzip", BODY, 415, "'gzip, gzip'"),
        ("gzip", BODY, 400, "and is not gzip"),
        ("gzip", gzip.compress(BODY, mtime=0)[:-9], 400, "it is cut"),
        ("gzip", gzip.compress(BODY, mtime=0) + b"more", 400, "is not gzip"),
        ("deflate", BODY, 400, "and is not deflate"),
        ("deflate", zlib.compress(BODY) + b"more", 400, "there is more behind its end"),
        ("gzip", gzip.compress(b" " * 5000 + BODY, mtime=0), 413, "the body may have at most 4096 bytes"),
        ("gzip", gzip.compress(b"", mtime=0) * 100, 400, "there is more behind its end"),
    ],
)
async def test_a_body_that_cannot_be_decoded_names_its_encoding(
    serve: Serve, encoding: str, data: bytes, status: int, message: str
) -> None:
    server = app(serve("ok"), limits=Limits(body_bytes=4096))
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
        reply = await ask(server, path, data, headers={"content-encoding": encoding})
        assert reply.status == status
        assert message in reply.body.decode()
        if status == 415:
            assert reply.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.anyio
async def test_a_bomb_is_never_decompressed_past_the_bound(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    """Count the bytes that zlib may give for 64 MiB in a body of 64 KiB."""
    most: list[int] = []

    class Stream:
        def __init__(self, window: int):
            self._stream = zlib.decompressobj(window)

        def decompress(self, data: bytes, length: int) -> bytes:
            most.append(length)
            return self._stream.decompress(data, length)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    monkeypatch.setattr(reading, "decompressobj", Stream)
    bomb = gzip.compress(b"\0" * (64 << 20))
    server = app(serve("ok"), limits=Limits(body_bytes=1 << 20))
    reply = await ask(server, "/v1/completions", bomb, headers={"content-encoding": "gzip"})
    assert reply.status == 413
    assert most == [(1 << 20) + 1]
