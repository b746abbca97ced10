"""The server gives what its session gives in the form of Anthropic's API, whole and in events."""

from typing import Any

import pytest

from rekindle.formats.response import MessageForm
from rekindle.server import app
from rekindle.server.anthropic.blocks import Messages
from rekindle.server.anthropic.body import read_messages
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import ModelTemplate
from tests.unit.apis import MESSAGES, named_events
from tests.unit.asgi import ask
from tests.unit.scripted import HERMES, Serve, scripted_session

pytestmark = pytest.mark.anyio

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER = {"role": "user", "content": "Weather?"}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
ANSWER = f"<think>\nthe user asks\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
BODY: dict[str, Any] = {"max_tokens": 500, "messages": [USER]}
SWITCHED = HERMES.replace("{% if tools %}", "{% if enable_thinking is false %}quiet{% endif %}{% if tools %}")
ALTERNATING = "{% if messages[-1].role == 'system' %}{{ raise_exception('first') }}{% endif %}" + HERMES
TEMPLATE = ModelTemplate(MessageForm("reasoning_content"), frozenset({"enable_thinking", "reasoning_effort"}))


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return {
        **message,
        "id": "",
        "content": [block | ({"signature": ""} if "signature" in block else {}) for block in message["content"]],
    }


# What comes


async def test_a_message_is_the_answer_of_the_session_in_blocks(serve: Serve) -> None:
    session = serve(ANSWER)
    reply = await ask(app(session), PATH, {**BODY, "tools": [TOOL]})
    answer = await session.generate(
        [USER],
        tools=[{"type": "function", "function": {**TOOL, "parameters": {}}}],
        max_tokens=500,
    )
    thinking, text, *calls = reply.json["content"]
    assert thinking == {"type": "thinking", "thinking": "the user asks", "signature": reply.json["id"]}
    assert text == {"type": "text", "text": "Let me see."}
    assert [call["id"] for call in calls] == [call.id for call in answer.tool_calls]
    assert [(call["name"], call["input"]) for call in calls] == [("weather", {"city": "Rome"})] * 2
    assert (reply.json["stop_reason"], reply.json["stop_sequence"]) == ("tool_use", None)
    assert (reply.json["type"], reply.json["role"], reply.json["model"]) == ("message", "assistant", "fake")
    assert reply.json["id"].startswith("msg_")
    usage = reply.json["usage"]
    assert usage["output_tokens"] == answer.usage.completion_tokens
    assert usage["output_tokens_details"] == {"thinking_tokens": answer.usage.reasoning_tokens}


async def test_a_stream_has_the_same_in_events(serve: Serve) -> None:
    server = app(serve(ANSWER))
    for more in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"max_tokens": 9}):
        whole = (await ask(server, PATH, {**BODY, **more})).json
        reply = await ask(server, PATH, {**BODY, **more, "stream": True})
        usage = named_events(reply)[0]["message"]["usage"]
        message = MESSAGES.joined(reply)
        assert message["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
        assert {name: message["usage"][name] for name in usage if name != "output_tokens"} == {
            name: count for name, count in usage.items() if name != "output_tokens"
        }
        assert without_ids({**message, "usage": {}}) == without_ids({**whole, "usage": {}})


async def test_arguments_of_streamed_tools_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: ANSWER, by_letters=True) as session:
        reply = await ask(app(session), PATH, {**BODY, "tools": [TOOL], "stream": True})
    deltas = [event["delta"] for event in named_events(reply) if event["type"] == "content_block_delta"]
    pieces = [delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta"]
    assert len(pieces) > 6
    assert "".join(pieces) == '{"city": "Rome"}' * 2
    assert [block["type"] for block in MESSAGES.joined(reply)["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]


async def test_the_parts_of_the_input_add_up_to_the_prompt(serve: Serve) -> None:
    server = app(serve("Hi"))
    long = {**BODY, "messages": [{"role": "user", "content": "word " * 20}]}
    count = (await ask(server, COUNT, {"messages": long["messages"]})).json["input_tokens"]
    for cached in (False, True):
        usage = (await ask(server, PATH, long)).json["usage"]
        assert (usage["cache_read_input_tokens"] > 0) == cached
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(usage[part] for part in parts) == count


async def test_a_message_ends_for_each_of_the_reasons(serve: Serve) -> None:
    server = app(serve("one two three"))
    for more, text, reason, sequence in (
        ({}, "one two three", "end_turn", None),
        ({"stop_sequences": []}, "one two three", "end_turn", None),
        ({"stop_sequences": [" two", "x"]}, "one", "stop_sequence", " two"),
        ({"max_tokens": 3}, "one", "max_tokens", None),
    ):
        for streams in (False, True):
            reply = await ask(server, PATH, {**BODY, **more, "stream": streams})
            message = MESSAGES.joined(reply) if streams else reply.json
            assert message["content"] == [{"type": "text", "text": text}]
            assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


async def test_a_full_context_is_told_from_the_limit_of_tokens(serve: Serve) -> None:
    server = app(serve("x" * 2000))
    reply = await ask(server, PATH, {**BODY, "max_tokens": 32_000})
    assert reply.json["stop_reason"] == "model_context_window_exceeded"


async def test_an_empty_answer_has_an_empty_block(serve: Serve) -> None:
    server = app(serve(""))
    for streams in (False, True):
        reply = await ask(server, PATH, {**BODY, "stream": streams})
        message = MESSAGES.joined(reply) if streams else reply.json
        assert message["content"] == [{"type": "text", "text": ""}]


async def test_a_cut_further_call_does_not_count_if_only_one_may_be(serve: Serve) -> None:
    session = serve(f"{CALL}{CALL}")
    limit = len(session.encode(CALL)) + 20
    for one, reason in ((True, "tool_use"), (False, "max_tokens")):
        choice = {"type": "auto", "disable_parallel_tool_use": one}
        body = {**BODY, "tools": [TOOL], "tool_choice": choice, "max_tokens": limit}
        for streams in (False, True):
            reply = await ask(app(session), PATH, {**body, "stream": streams})
            message = MESSAGES.joined(reply) if streams else reply.json
            further = [] if one else ["text"]
            assert sorted(block["type"] for block in message["content"]) == [*further, "tool_use"]
            assert message["stop_reason"] == reason


async def test_thinking_may_be_left_out_of_its_block(serve: Serve) -> None:
    server = app(serve(ANSWER))
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    for streams in (False, True):
        reply = await ask(server, PATH, {**BODY, "thinking": thinking, "stream": streams})
        message = MESSAGES.joined(reply) if streams else reply.json
        assert message["content"][0]["thinking"] == ""
        assert message["content"][0]["signature"] == message["id"]


async def test_a_message_that_cannot_be_made_is_an_error(serve: Serve) -> None:
    session = serve("x" * 500)
    reply = await ask(app(session), PATH, {**BODY, "messages": [{"role": "user", "content": "x" * 2000}]})
    assert reply.status == 400
    assert reply.json["type"] == "error"
    assert reply.error["type"] == "invalid_request_error"
    thread = await ask(app(session), PATH, {**BODY, "thread": {"type": "create"}})
    assert (thread.status, thread.error["details"]) == (400, {"error_code": "thread_unsupported_request"})
    missing = await ask(app(session), PATH, {**BODY, "model": "claude-x"})
    assert (missing.status, missing.error["type"]) == (404, "not_found_error")
    assert "this server has 'fake'" in missing.error["message"]


# What goes in


async def test_the_prompt_is_that_of_the_chat_with_the_same_messages(serve: Serve) -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "Sunny"

    session = serve(answer)
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    body = {
        **BODY,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: v=1; h=d3adb"},
            {"type": "text", "text": "Be brief.", **mark},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?", **mark}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "see", "signature": "s"},
                    {"type": "redacted_thinking", "data": "xx"},
                    {"type": "text", "text": "Wait."},
                    call,
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "And?"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "sunny"}],
                        **mark,
                    },
                ],
            },
        ],
        "tools": [{**TOOL, **mark}],
    }
    await ask(app(session), PATH, body)
    function = {"name": "weather", "description": "The weather.", "parameters": {"type": "object"}}
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "see",
            "tool_calls": [
                {"type": "function", "id": "t1", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "weather", "content": "sunny"},
        {"role": "user", "content": "And?"},
    ]
    rendered = session.render(chat, tools=[{"type": "function", "function": function}])
    assert prompts == [rendered]
    count = (await ask(app(session), COUNT, {name: body[name] for name in ("system", "messages", "tools")})).json
    assert count == {"input_tokens": len(session.encode(rendered))}


async def test_a_template_without_tools_tells_and_counts_them(serve: Serve) -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "Sunny"

    server = app(
        serve(
            answer,
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        )
    )
    body = {**BODY, "tools": [TOOL], "thinking": {"type": "adaptive"}}
    usage = (await ask(server, PATH, body)).json["usage"]
    assert "The weather." in prompts[0]
    del body["max_tokens"]
    count = await ask(server, COUNT, {**body, "chat_template_kwargs": {"enable_thinking": False}})
    assert count.json == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


async def test_a_last_message_without_a_text_is_refused(serve: Serve) -> None:
    session = serve("one two three")
    called = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    for content in ([called], "", []):
        reply = await ask(app(session), PATH, {**BODY, "messages": [USER, {"role": "assistant", "content": content}]})
        assert reply.status == 400
        assert reply.error["message"].startswith("messages must end with")


def read(**body: Any) -> dict[str, Any]:
    """Return the keywords of the session for a body."""
    call = read_messages(Fields({**BODY, **body}), TEMPLATE).call
    return {**call.options, "prompt": call.prompt}


def test_choices_of_tools_are_those_of_the_session() -> None:
    tools = [TOOL, {"name": "two", "type": "custom", "input_schema": {}, "strict": True, "defer_loading": False}]
    for choice, expected in (
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "two"}, "two"),
        (None, "auto"),
    ):
        options = read(tools=tools, tool_choice=choice)
        assert options["tool_choice"] == expected
        assert [each["function"]["name"] for each in options["tools"]] == ["weather", "two"]
    assert "tools" not in read(tools=[])


def test_thinking_and_effort_reach_a_template_that_reads_them() -> None:
    for thinking, expected in (
        ({"type": "enabled", "budget_tokens": 2000}, {"enable_thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False, "reasoning_effort": "none"}),
    ):
        assert read(thinking=thinking)["chat_template_kwargs"] == expected
    assert read(thinking={"type": "between_tools"})["chat_template_kwargs"] is None
    assert read(output_config={"effort": "max"})["chat_template_kwargs"] == {"reasoning_effort": "max"}
    deaf = ModelTemplate(MessageForm(), frozenset())
    body = Fields({**BODY, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}})
    assert read_messages(body, deaf).call.options["chat_template_kwargs"] is None


async def test_thinking_is_switched_off_in_the_prompt(serve: Serve) -> None:
    server = app(serve(lambda prompt: "off" if prompt.startswith("quiet") else "on", SWITCHED))
    for kind, text in (("disabled", "off"), ("enabled", "on")):
        reply = await ask(server, PATH, {**BODY, "thinking": {"type": kind}})
        assert reply.json["content"][0]["text"] == text


def test_a_schema_holds_the_answer() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "schema": schema}
    assert read(output_config={"format": form})["json_schema"] == schema
    assert read(output_format=form)["json_schema"] == schema


def test_sampling_is_that_of_the_session() -> None:
    options = read(temperature=1, top_p=0.9, top_k=5, stop_sequences=["a"])
    assert {name: options[name] for name in ("temperature", "top_p", "top_k", "stop", "max_tokens")} == {
        "temperature": 1,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["a"],
        "max_tokens": 500,
    }


def test_hints_are_taken_and_misspelt_fields_are_not() -> None:
    assert read(metadata={"user_id": "u"}, service_tier="auto", cache_control={"type": "ephemeral"}, betas=["x"])
    assert read(context_management={"edits": []}, mcp_servers=[], container=None)
    with pytest.raises(ApiError, match="did you mean stop_sequences"):
        read(stop_sequence=["a"])
    with pytest.raises(ApiError, match="max_tokens is missing"):
        read(max_tokens=None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", None),
        ("messages", []),
        ("mcp_servers", [{"url": "x"}]),
        ("thinking", {"type": "deep"}),
        ("output_config", {"effort": 1}),
        ("output_format", {"type": "json_schema"}),
        ("output_format", {"type": "text", "schema": {}}),
        ("tool_choice", {"type": "any"}),
        ("tool_choice", {"type": "tool"}),
        ("tools", [{"type": "bash_20250124", "name": "bash"}]),
        ("tools", [{"name": "f"}]),
        ("system", 5),
        ("system", [{"type": "image"}]),
    ],
)
def test_a_field_of_another_form_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ApiError, match=name) as caught:
        read(**{name: value})
    assert (caught.value.param or "").startswith(name)


def messages_of(*messages: dict[str, Any]) -> list[tuple[str, Any]]:
    writer = Messages()
    for each in messages:
        writer.add(each, "messages[0]")
    return [(each["role"], each["content"]) for each in writer.finish()]


def test_results_of_tools_come_first_and_errors_say_so() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "none", "is_error": True}
    bare = {"type": "tool_result", "tool_use_id": "t"}
    content = [{"type": "text", "text": "go on"}, result, bare]
    assert messages_of({"role": "user", "content": content}) == [
        ("tool", "error: none"),
        ("tool", ""),
        ("user", "go on"),
    ]


def test_adjacent_messages_of_a_role_are_one() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    two = messages_of({"role": "user", "content": "a"}, {"role": "user", "content": "b"})
    assert two == messages_of({"role": "user", "content": texts}) == [("user", texts)]


def test_documents_and_search_results_in_text_are_read() -> None:
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}
    search_result = {"type": "search_result", "title": "S", "source": "u", "content": [{"type": "text", "text": "f"}]}
    inner = {"type": "document", "source": {"type": "content", "content": "c"}}
    loaded = {"type": "tool_reference", "tool_name": "weather"}
    ((_, parts),) = messages_of({"role": "user", "content": [document, search_result, inner, loaded]})
    assert [part["text"] for part in parts] == ["T\nd", "S\nu\nf", "c", "weather"]


@pytest.mark.parametrize("missing", ["id", "name", "input"])
def test_a_use_of_a_tool_is_whole(missing: str) -> None:
    block: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    del block[missing]
    with pytest.raises(ApiError, match=missing):
        messages_of({"role": "assistant", "content": [block]})


async def test_models_are_listed_for_clients_of_either_api(serve: Serve) -> None:
    server = app(serve("Hi"))
    headers = {"anthropic-version": "2023-06-01"}
    page = (await ask(server, "/v1/models", headers=headers)).json
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "fake", "fake")
    assert (await ask(server, "/v1/models/fake", headers=headers)).json == page["data"][0]
    assert (await ask(server, "/v1/models")).json["object"] == "list"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "data": ""}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
        {"type": "tool_result", "tool_use_id": "t", "content": 5},
        {"type": "tool_result", "content": "x"},
        {"type": "text", "text": None},
        {"type": ["text"]},
        {},
        5,
    ],
)
def test_other_blocks_are_refused_by_their_place(block: Any) -> None:
    with pytest.raises(ApiError, match=r"messages\[0\]") as caught:
        messages_of({"role": "user", "content": [block]})
    assert caught.value.status == 400


def test_instructions_among_the_messages_keep_their_place() -> None:
    late = [USER, {"role": "assistant", "content": "a"}, {"role": "system", "content": "s"}, USER]
    assert [role for role, _ in messages_of(*late)] == ["user", "assistant", "system", "user"]


def test_a_reminder_beside_a_result_is_in_the_result() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "sunny"}
    reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
    question = {"type": "text", "text": "And tomorrow?"}
    text = f"sunny\n\n{reminder['text']}"
    assert messages_of({"role": "user", "content": [result, reminder]}) == [("tool", text)]
    both = messages_of({"role": "user", "content": [result, reminder, question]})
    assert both == [("tool", text), ("user", "And tomorrow?")]
    alone = messages_of({"role": "user", "content": [reminder, question]})
    assert [role for role, _ in alone] == ["user"]


def test_the_variables_of_a_template_with_tools_are_known(serve: Serve) -> None:
    from rekindle.server.models.served import OneModel

    for template in (HERMES, ALTERNATING):
        (model,) = OneModel(serve("", template), None).open_models()
        assert "tools" in model.template.variables


def test_tools_that_anthropic_runs_are_left_out_unless_one_is_chosen() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    own = {"name": "f", "input_schema": {"type": "object"}}
    fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "tools": [hosted, own]}
    template = ModelTemplate(MessageForm(), frozenset())
    body = Fields({**fields, "fallbacks": [], "thinking": {"type": "disabled", "block_binding": "x"}})
    tools = read_messages(body, template).call.options["tools"]
    assert [each["function"]["name"] for each in tools] == ["f"]
    assert "'web_search_20250305'" in body.notes[0]
    for change in ({"tool_choice": {"type": "tool", "name": "web_search"}}, {"tools": [{"type": "bash_20250124"}]}):
        with pytest.raises(ApiError):
            read_messages(Fields({**fields, **change}), template)
    with pytest.raises(ApiError, match="are not served"):
        read_messages(Fields(fields, strict=True), template)


def test_blocks_of_hosted_tools_in_a_history_are_left_out_with_a_note() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
    search_result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result"}]}
    answer = {"type": "text", "text": "It rains.", "citations": [{"type": "web_search_result_location"}]}
    remote = [
        {"type": "mcp_tool_use", "id": "m1", "name": "f", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "content": "x"},
        {"type": "code_execution_tool_result", "tool_use_id": "c1", "content": {"type": "code_execution_result"}},
    ]
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "compaction", "content": "Rome was named."}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": [search, search_result, answer, *remote, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
        {"role": "assistant", "content": [{"type": "compaction", "content": None}, search, search_result]},
        {"role": "user", "content": "And?"},
    ]
    body = Fields({"max_tokens": 1, "messages": messages})
    first, second, third, fourth, last = read_messages(body, ModelTemplate(MessageForm(), ())).call.prompt
    assert [part["text"] for part in first["content"]] == ["Rome was named.", "?"]
    assert second["content"] == "It rains."
    assert [each["function"]["name"] for each in second["tool_calls"]] == ["weather"]
    assert (third["role"], third["content"]) == ("tool", "sunny")
    assert (fourth["role"], fourth["content"], last["content"]) == ("assistant", "", "And?")
    kinds = (
        "'code_execution_tool_result', 'mcp_tool_result', 'mcp_tool_use', 'server_tool_use', 'web_search_tool_result'"
    )
    assert body.notes == [f"blocks of the types {kinds} are left out: this server runs no tools"]
    with pytest.raises(ApiError, match="reads only text"):
        read_messages(
            Fields({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "container_upload"}]}]}),
            ModelTemplate(MessageForm(), ()),
        )
