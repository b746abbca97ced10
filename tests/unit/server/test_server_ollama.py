"""The server gives the answers of its session in the form of Ollama's API, whole and in lines."""

import json
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from rekindle.formats.checkpoints.model_facts import ModelFacts
from rekindle.formats.response import MessageForm
from rekindle.server import app
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import ModelTemplate
from rekindle.server.models.served import ModelCard, OneModel
from rekindle.server.ollama.answer import parameter_size
from rekindle.server.ollama.body import (
    finish_model_body,
    read_ollama_chat,
    read_ollama_embed,
    read_ollama_embedding,
    read_ollama_generate,
)
from rekindle.server.ollama.routes import OllamaRoutes
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.apis import OLLAMA
from tests.unit.asgi import Reply, ask
from tests.unit.scripted import HERMES, Serve

pytestmark = pytest.mark.anyio

CHAT, TEXT = "/api/chat", "/api/generate"
USER = {"role": "user", "content": "Weather?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
ANSWER = f"<think>\nthe user asks\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
TEMPLATE = ModelTemplate(MessageForm("reasoning_content"), frozenset({"enable_thinking", "reasoning_effort"}))
NAME = "fake"


def lines(reply: Reply) -> list[dict[str, Any]]:
    """Return the objects of a stream; only the last is done."""
    assert reply.headers["content-type"] == "application/x-ndjson"
    objects = [json.loads(line) for line in reply.body.decode().splitlines()]
    assert [each["done"] for each in objects] == [False] * (len(objects) - 1) + [True]
    return objects


# What comes


async def test_a_chat_is_the_answer_of_the_session(serve: Serve) -> None:
    session = serve(ANSWER)
    body = {"model": "fake:latest", "messages": [USER], "tools": [TOOL]}
    reply = await ask(app(session), CHAT, {**body, "stream": False})
    answer = await session.generate([USER], tools=[TOOL], max_tokens=None)
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    calls = [{"id": call.id, "function": {"index": i, **function}} for i, call in enumerate(answer.tool_calls)]
    assert reply.json["message"] == {
        "role": "assistant",
        "content": "Let me see.",
        "thinking": "the user asks",
        "tool_calls": calls,
    }
    assert (reply.json["model"], reply.json["done"], reply.json["done_reason"]) == (NAME, True, "stop")
    assert reply.json["prompt_eval_count"] == answer.usage.prompt_tokens
    assert reply.json["eval_count"] == answer.usage.completion_tokens
    parts = ("load_duration", "prompt_eval_duration", "eval_duration")
    assert 0 < sum(reply.json[part] for part in parts) <= reply.json["total_duration"]
    streamed = await ask(app(session), CHAT, body)
    objects = lines(streamed)
    assert OLLAMA.joined(streamed)["message"] == reply.json["message"]
    times = {name for name in reply.json if name.endswith("_duration")}
    assert {name for name in objects[-1] if name not in reply.json} == set()
    for name in set(reply.json) - times - {"message", "created_at"}:
        assert objects[-1][name] == reply.json[name]


async def test_a_prompt_is_answered_as_a_message_or_as_it_stands(serve: Serve) -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "<think>so</think>one two"

    session = serve(answer)
    body = {"prompt": "Hi", "system": "Be brief.", "stream": False}
    reply = (await ask(app(session), TEXT, body)).json
    assert (reply["response"], reply["thinking"], reply["done_reason"]) == ("one two", "so", "stop")
    rendered = session.render([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert prompts == [rendered]
    assert reply["context"][: reply["prompt_eval_count"]] == session.encode(rendered)
    assert len(reply["context"]) == reply["prompt_eval_count"] + reply["eval_count"]
    streamed = lines(await ask(app(session), TEXT, {**body, "stream": True}))
    assert "".join(each["response"] for each in streamed) == "one two"
    assert "".join(each.get("thinking", "") for each in streamed) == "so"
    assert streamed[-1]["context"] == reply["context"]
    raw = (await ask(app(session), TEXT, {"prompt": rendered, "raw": True, "stream": False})).json
    assert raw["response"] == "<think>so</think>one two"
    assert "context" not in raw
    after = (await ask(app(session), TEXT, {"prompt": "Go on", "context": reply["context"], "stream": False})).json
    assert after["context"][: len(reply["context"])] == reply["context"]
    further = session.encode(session.render([{"role": "user", "content": "Go on"}]))
    assert after["prompt_eval_count"] == len(reply["context"]) + len(further)


async def test_logprobs_come_with_their_texts(serve: Serve) -> None:
    server = app(serve("one two"))
    body = {"messages": [USER], "logprobs": True, "top_logprobs": 1}
    whole = (await ask(server, CHAT, {**body, "stream": False})).json["logprobs"]
    streamed = [each for part in lines(await ask(server, CHAT, body)) for each in part.get("logprobs", ())]
    assert streamed == whole
    assert {*whole[0]} == {"token", "logprob", "bytes", "top_logprobs"}
    assert "logprobs" not in (await ask(server, CHAT, {"messages": [USER], "stream": False})).json


async def test_without_a_prompt_the_model_is_opened_alone(serve: Serve) -> None:
    server = app(serve("Hi"))
    chat = (await ask(server, CHAT, {"model": NAME, "messages": []})).json
    assert (chat["message"], chat["done"], chat["done_reason"]) == (
        {"role": "assistant", "content": ""},
        True,
        "load",
    )
    text = (await ask(server, TEXT, {"model": NAME, "keep_alive": "5m"})).json
    assert (text["response"], text["done"], text["done_reason"]) == ("", True, "load")


async def test_a_model_for_images_is_shown_as_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "takes_images", True)
    description = (await ask(app(serve("Hi")), "/api/show", {"model": "fake:latest"})).json
    assert description["capabilities"] == ["completion", "tools", "vision", "thinking"]


async def test_models_are_listed_shown_and_pulled(serve: Serve) -> None:
    session = serve("Hi")
    server = app(session)
    (tag,) = (await ask(server, "/api/tags")).json["models"]
    assert (tag["name"], tag["model"], tag["size"]) == ("fake:latest", "fake:latest", session.memory.weights)
    (running,) = (await ask(server, "/api/ps")).json["models"]
    assert running["digest"] == tag["digest"]
    assert running["context_length"] == session.settings.max_context
    description = (await ask(server, "/api/show", {"model": "fake:latest"})).json
    assert description["template"] == HERMES
    assert description["capabilities"] == ["completion", "tools", "thinking"]
    assert description["model_info"]["unknown.context_length"] == session.settings.max_context
    assert (await ask(server, "/api/show", {"name": NAME})).status == 200
    assert (await ask(server, "/api/version")).json["version"].count(".") == 2
    pulled = await ask(server, "/api/pull", {"model": NAME})
    assert [json.loads(line)["status"] for line in pulled.body.splitlines()][-1] == "success"
    assert (await ask(server, "/api/pull", {"model": NAME, "stream": False})).json == {"status": "success"}
    missing = await ask(server, "/api/pull", {"model": "other"})
    assert (missing.status, missing.json["error"]) == (404, "there is no model 'other'; this server has 'fake'")


async def test_a_model_is_described_by_its_files(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    session = serve("Hi")
    facts = ModelFacts("llama", 134_515_008, "bfloat16", "safetensors", 269_060_552, "ab" * 32, 1e9)
    monkeypatch.setattr(session, "_model_facts", facts)
    server, details = (
        app(session),
        {
            "parent_model": "",
            "format": "safetensors",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "135M",
            "quantization_level": "BF16",
        },
    )
    (tag,) = (await ask(server, "/api/tags")).json["models"]
    assert tag["details"] == details
    assert (tag["size"], tag["digest"], tag["modified_at"]) == (269_060_552, "ab" * 32, "2001-09-09T01:46:40Z")
    description = (await ask(server, "/api/show", {"model": NAME})).json
    assert (description["details"], description["modified_at"]) == (details, tag["modified_at"])
    longest = session.settings.max_context
    assert description["model_info"] == {
        "general.architecture": "llama",
        "general.parameter_count": 134_515_008,
        "llama.context_length": longest,
    }
    monkeypatch.setattr(session, "_model_facts", replace(facts, generates=False))
    assert (await ask(app(session), "/api/show", {"model": NAME})).json["capabilities"][:1] == ["embedding"]
    (running,) = (await ask(server, "/api/ps")).json["models"]
    assert (running["details"], running["expires_at"][:4]) == (details, "9999")


@pytest.mark.parametrize(
    ("count", "text"),
    [(7, "7"), (1500, "1.5K"), (999_600_000, "1B"), (1_235_814_400, "1.24B"), (70_553_706_496, "70.6B")],
)
def test_numbers_of_parameters_are_short(count: int, text: str) -> None:
    assert parameter_size(count) == text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((300, 300.0), ("5m", 300.0), ("1h0.5m", 3630.0), ("1.m.5s", 60.5), ("200ms", 0.2), (0, 0.0), ("0", 0.0)),
        *((-1, inf), ("-1m", inf), (-(10**400), inf), (10**400, 1e300)),
    ],
)
def test_the_time_to_keep_a_model_is_a_number_or_a_duration(value: Any, seconds: float) -> None:
    chat = read_ollama_chat(Fields({"keep_alive": value}), TEMPLATE)
    embedding = read_ollama_embed(Fields({"input": "a", "keep_alive": value}), 1)
    assert [chat.keep_alive, embedding.keep_alive] == pytest.approx([seconds, seconds])


@pytest.mark.parametrize("value", ["5", "m", "5 m", "1d", "", True, [5], pytest.param("1" * 10**6, id="long")])
async def test_another_time_is_refused(serve: Serve, value: Any) -> None:
    refused = await ask(app(serve("Hi")), CHAT, {"messages": [USER], "keep_alive": value})
    assert (refused.status, refused.json["error"][:22]) == (400, "keep_alive must be a n")


async def test_a_tag_may_be_part_of_a_models_name(serve: Serve) -> None:
    server = app(serve("Hi"), name=["small:latest", "tiny"])
    for name in ("small:latest", "small", "tiny", "tiny:latest"):
        assert (await ask(server, TEXT, {"model": name})).json["model"] == "small:latest"
    assert "there is no model 'other'" in (await ask(server, TEXT, {"model": "other:latest"})).json["error"]


async def test_the_only_model_stays_open(serve: Serve) -> None:
    server = app(serve("Hi"))
    assert (await ask(server, CHAT, {"messages": [USER], "keep_alive": 0, "stream": False})).status == 200
    assert (await ask(server, TEXT, {"keep_alive": 0})).json["done_reason"] == "load"
    assert (await ask(server, CHAT, {"messages": [USER], "stream": False})).status == 200


async def test_closed_models_are_listed_without_a_size(serve: Serve) -> None:
    (model,) = OneModel(serve("Hi"), None).open_models()

    class Two(OneModel):
        def cards(self) -> list[ModelCard]:
            return [
                *super().cards(),
                ModelCard("fake-sql", NAME, True, 0, None),
                ModelCard("closed", "closed", False, 0, None),
            ]

    routes = OllamaRoutes(Two(model.session, None))
    request: Any = None
    tags = json.loads(bytes((await routes.tags(request)).body))["models"]
    size = model.session.memory.weights
    sizes = {"fake:latest": size, "fake-sql:latest": size, "closed:latest": 0}
    assert {tag["name"]: tag["size"] for tag in tags} == sizes
    assert len(json.loads(bytes((await routes.running(request)).body))["models"]) == 1


async def test_a_model_may_have_the_tag_in_its_name(serve: Serve) -> None:
    server = app(serve("Hi"), name="fake:1b")
    (tag,) = (await ask(server, "/api/tags")).json["models"]
    assert tag["name"] == "fake:1b"
    assert (await ask(server, CHAT, {"model": "fake:1b", "messages": [], "stream": False})).status == 200


async def test_texts_are_embedded_and_cut(byte_tokenizer: Any) -> None:
    limits = fake_limits(max_context=64, num_pages=64, page_size=16)
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        server = app(session)
        one = (await ask(server, "/api/embed", {"input": "abc"})).json
        assert one["embeddings"] == (await session.embed(["abc"])).tolist()
        assert (one["prompt_eval_count"], one["model"]) == (session.count_tokens("abc"), NAME)
        two = (await ask(server, "/api/embed", {"input": ["abc", "de"], "dimensions": 1})).json
        assert two["embeddings"] == (await session.embed(["abc", "de"], dimensions=1)).tolist()
        assert (await ask(server, "/api/embed", {"input": []})).json["embeddings"] == []
        former = (await ask(server, "/api/embeddings", {"prompt": "abc"})).json
        assert former == {"embedding": one["embeddings"][0]}
        long = (await ask(server, "/api/embed", {"input": ["x" * 100, "abc"]})).json
        assert long["embeddings"][0] == (await session.embed(["x" * 64])).tolist()[0]
        assert long["prompt_eval_count"] == 64 + 3
        refused = await ask(server, "/api/embed", {"input": "x" * 100, "truncate": False})
        assert (refused.status, type(refused.json["error"])) == (400, str)


async def test_a_chat_longer_than_the_context_loses_its_oldest_turns(byte_tokenizer: Any) -> None:
    limits = fake_limits(max_context=128, num_pages=64, page_size=16)
    rules = {"role": "system", "content": "Be brief."}
    turns = [{"role": role, "content": 20 * letter} for letter in "abcdefgh" for role in ("user", "assistant")]
    body = {"messages": [rules, *turns, USER], "options": {"num_predict": 4}, "stream": False}
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        server = app(session)
        reply = await ask(server, CHAT, body)
        assert reply.status == 200
        kept = next(place for place in range(0, 18, 2) if len("Be brief.Weather?") + 20 * (16 - place) <= 124)
        assert reply.json["prompt_eval_count"] <= session.count_tokens([rules, *turns[kept:], USER])
        whole = await ask(server, CHAT, {**body, "truncate": False})
        assert (whole.status, type(whole.json["error"])) == (400, str)
        alone = await ask(server, CHAT, {**body, "messages": [{"role": "user", "content": "x" * 200}]})
        assert (alone.status, type(alone.json["error"])) == (400, str)
        short = await ask(server, CHAT, {**body, "messages": [rules, USER]})
        assert short.json["prompt_eval_count"] == session.count_tokens([rules, USER])


# Who may ask


async def test_a_client_needs_no_content_type_but_a_page_in_a_browser_does(serve: Serve) -> None:
    server = app(serve("Hi"))
    body = json.dumps({"messages": [USER], "stream": False}).encode()
    form = "application/x-www-form-urlencoded"
    for headers, status in (
        ({"content-type": form}, 200),
        ({"content-type": ""}, 200),
        ({"content-type": form, "origin": "https://a.example"}, 415),
        ({"content-type": "text/plain", "origin": "null"}, 415),
        ({"content-type": "text/plain", "sec-fetch-site": "cross-site"}, 415),
        ({"content-type": "application/json", "origin": "https://a.example"}, 200),
    ):
        assert (await ask(server, CHAT, body, headers=headers)).status == status
    assert (await ask(server, "/v1/chat/completions", body, headers={"content-type": form})).status == 415


# What goes in


def read(**body: Any) -> dict[str, Any]:
    """Return the keywords of the session for a chat."""
    call = read_ollama_chat(Fields({"messages": [USER], **body}), TEMPLATE).call
    assert call is not None
    return {**call.options, "prompt": call.prompt}


def test_options_are_those_of_the_session() -> None:
    options = {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 42,
        "num_predict": 100,
        "repeat_penalty": 1.2,
        "presence_penalty": 1.5,
        "frequency_penalty": 1.0,
        "stop": ["a"],
        **{"num_ctx": 1024, "num_gpu": 1, "num_thread": 8, "use_mmap": True, "repeat_last_n": 33, "num_keep": 5},
        **{"mirostat": 0, "mirostat_tau": 0.8, "typical_p": 1.0, "tfs_z": 1},
    }
    assert (
        read(options=options).items()
        >= {
            "temperature": 0.8,
            "top_k": 20,
            "top_p": 0.9,
            "min_p": 0.1,
            "seed": 42,
            "max_tokens": 100,
            "repetition_penalty": 1.2,
            "presence_penalty": 1.5,
            "frequency_penalty": 1.0,
            "stop": ["a"],
        }.items()
    )
    assert "seed" not in read(options={"temperature": 0, "seed": 1})
    assert "seed" not in read(options={"seed": -1})
    with pytest.raises(ApiError, match=r"options\.typical_p cannot be served"):
        read(options={"typical_p": 0.5})


def test_unknown_fields_are_ignored_as_by_ollama_and_noted() -> None:
    """Check the top, the options, and bodies without generation; a strict server refuses each by its name."""
    for read_body, own in (
        (lambda body: read_ollama_chat(body, TEMPLATE), {"messages": [USER]}),
        (lambda body: read_ollama_generate(body, TEMPLATE), {"prompt": "Hi"}),
        (lambda body: read_ollama_embed(body, 9), {"input": "Hi"}),
        (read_ollama_embedding, {"prompt": "Hi"}),
        (finish_model_body, {}),
    ):
        body = Fields({**own, "max_output_tokens": 8})
        read_body(body)
        assert body.notes == ["the fields 'max_output_tokens' are unknown"]
        with pytest.raises(ApiError, match="max_output_tokens cannot be served: it is unknown"):
            read_body(Fields({**own, "max_output_tokens": 8}, strict=True))
    body = Fields({"messages": [USER], "options": {"temprature": 1, "num_gqa": 8, "mirostat": 1, "num_predict": 3}})
    call = read_ollama_chat(body, TEMPLATE).call
    assert call is not None
    assert call.options["max_tokens"] == 3
    assert body.notes == ["the fields 'options.num_gqa', 'options.temprature' are unknown"]
    with pytest.raises(ApiError, match=r"options\.temprature .*did you mean temperature"):
        read_ollama_chat(Fields({"messages": [USER], "options": {"temprature": 1}}, strict=True), TEMPLATE)


async def test_an_option_of_a_wrong_value_is_named(serve: Serve) -> None:
    server = app(serve("Hi"))
    reply = await ask(server, CHAT, {"messages": [USER], "options": {"temperature": -1}})
    assert reply.status == 400
    assert reply.json["error"].startswith("temperature must be")


def test_thinking_reaches_a_template_that_reads_it() -> None:
    assert read(think=True)["chat_template_kwargs"] == {"enable_thinking": True}
    off = {"enable_thinking": False, "reasoning_effort": "none"}
    assert read(think=False)["chat_template_kwargs"] == read(think="none")["chat_template_kwargs"] == off
    assert read(think="low")["chat_template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "low"}
    assert "chat_template_kwargs" not in read()


def test_a_format_holds_the_answer() -> None:
    assert read(format="json")["json_schema"] == {"type": "object"}
    assert read(format={"type": "integer"})["json_schema"] == {"type": "integer"}
    assert "json_schema" not in read(format="")


def test_calls_and_results_without_ids_belong_together() -> None:
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    prompt = read(
        messages=[
            USER,
            {"role": "assistant", "thinking": "so", "tool_calls": [{"function": function}, {"function": function}]},
            {"role": "tool", "content": "sunny", "tool_name": "weather"},
            {"role": "tool", "content": "wet"},
        ]
    )["prompt"]
    calls = prompt[1]["tool_calls"]
    assert [call["id"] for call in calls] == [prompt[2]["tool_call_id"], prompt[3]["tool_call_id"]]
    assert calls[0] == {"id": calls[0]["id"], "type": "function", "function": function}
    assert prompt[1]["reasoning_content"] == "so"
    assert prompt[2]["name"] == "weather"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", [5]),
        ("messages", [{**USER, "images": ["aGk="]}]),
        ("format", "yaml"),
        ("think", 5),
        ("options", []),
        ("stream", "yes"),
    ],
)
def test_a_field_of_another_form_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ApiError, match=name):
        read(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("suffix", "x"), ("template", "x"), ("images", ["aGk="]), ("context", ["a"]), ("context", [-1])]
)
def test_a_prompt_refuses_what_would_change_it(name: str, value: Any) -> None:
    with pytest.raises(ApiError, match=name):
        read_ollama_generate(Fields({"prompt": "Hi", name: value}), TEMPLATE)
    empty = Fields({"prompt": "Hi", "suffix": "", "template": "", "images": [], "context": []})
    assert read_ollama_generate(empty, TEMPLATE).call is not None


def test_a_model_without_a_template_reads_plain_texts() -> None:
    call = read_ollama_generate(Fields({"prompt": "Hi", "system": "Be brief."}), None).call
    assert call is not None
    assert call.prompt == "Be brief.\n\nHi"


async def test_nothing_to_embed_is_no_vector_as_in_ollama(serve: Serve) -> None:
    server = app(serve("Hi"))
    bodies: list[dict[str, Any]] = [{}, {"input": ""}, {"input": []}, {"input": None}]
    for body in bodies:
        reply = await ask(server, "/api/embed", body)
        assert (reply.status, reply.json["embeddings"]) == (200, [])
    for body in [*bodies[:1], {"prompt": ""}]:
        reply = await ask(server, "/api/embeddings", body)
        assert (reply.status, reply.json["embedding"]) == (200, [])


def test_a_limit_of_0_or_less_is_none() -> None:
    assert [read(options={"num_predict": most})["max_tokens"] for most in (3, 0, -1, -2)] == [3, None, None, None]
