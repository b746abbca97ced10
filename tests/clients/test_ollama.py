"""Ollama's own client gets from the server what a session gives."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import ollama
import pytest
from pydantic import BaseModel

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME
from tests.unit.scripted import scripted_session

USER: list[Any] = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0, "num_predict": 9}
SAMPLED = {"temperature": 1.0, "seed": 5, "top_k": 20, "num_predict": 9, "num_ctx": 512}


class Answer(BaseModel):
    """The form that an answer is held to."""

    color: Literal["red", "green"]
    sure: bool


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as client:
        yield client


def test_models_are_listed_shown_and_pulled(client: ollama.Client, session: rekindle.Session) -> None:
    (listed,) = client.list().models
    assert listed.model == f"{NAME}:latest"
    (running,) = client.ps().models
    assert (running.model, running.context_length) == (listed.model, session.settings.max_context)
    shown = client.show(listed.model)
    assert shown.capabilities is not None
    assert "tools" in shown.capabilities
    assert [each.status for each in client.pull(NAME, stream=True)][-1] == "success"
    assert client.pull(listed.model).status == "success"


@pytest.mark.parametrize("options", [GREEDY, SAMPLED])
def test_a_chat_is_the_answer_of_the_session(
    client: ollama.Client, session: rekindle.Session, options: dict[str, Any]
) -> None:
    made = client.chat(f"{NAME}:latest", messages=USER, options=options)
    sampling = {name: value for name, value in options.items() if not name.startswith("num_")}
    answer = session.generate_sync(USER, max_tokens=9, **sampling)
    assert made.message.content == answer.content
    assert (made.done, made.done_reason, made.eval_count) == (True, "length", 9)
    assert made.prompt_eval_count == answer.usage.prompt_tokens
    assert made.total_duration is not None
    assert made.total_duration > 0
    chunks = list(client.chat(NAME, messages=USER, options=options, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == answer.content
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_prompt_is_answered_with_and_without_the_template(client: ollama.Client, session: rekindle.Session) -> None:
    made = client.generate(NAME, "Hello", options=GREEDY)
    assert made.response == session.generate_sync(USER, max_tokens=9).content
    raw = client.generate(NAME, "Hello", raw=True, options=GREEDY, stream=True)
    assert "".join(chunk.response or "" for chunk in raw) == session.generate_sync("Hello", max_tokens=9).text
    further = client.generate(NAME, "More", context=made.context, options=GREEDY)
    assert further.prompt_eval_count is not None
    assert made.prompt_eval_count is not None
    assert further.prompt_eval_count > made.prompt_eval_count + 9


def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Return the weather of a city.

    Args:
        city: the city
    """
    return "sunny"


def test_tools_are_called_and_their_results_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'

    def script(prompt: str) -> str:
        return "It is sunny." if "<|im_start|>tool\nsunny" in prompt else f"<think>so</think>{call}"

    with (
        scripted_session(monkeypatch, script) as session,
        session.serve_sync(port=0) as server,
        ollama.Client(host=server.url) as client,
    ):
        asked = list(USER)
        made = client.chat("fake", messages=asked, tools=[weather], think=True)
        streamed = list(client.chat("fake", messages=asked, tools=[weather], think=True, stream=True))
        for message in (made.message, *(chunk.message for chunk in streamed if chunk.message.tool_calls)):
            assert message.tool_calls is not None
            (used,) = message.tool_calls
            assert (used.function.name, used.function.arguments) == ("weather", {"city": "Rome"})
        assert made.message.thinking == "so"
        assert "".join(chunk.message.thinking or "" for chunk in streamed) == "so"
        asked += [made.message, {"role": "tool", "content": weather("Rome"), "tool_name": "weather"}]
        assert client.chat("fake", messages=asked, tools=[weather]).message.content == "It is sunny."


def test_an_answer_is_held_to_a_schema(client: ollama.Client) -> None:
    made = client.chat(NAME, messages=USER, format=Answer.model_json_schema(), options={"num_predict": 100})
    assert made.message.content is not None
    assert Answer.model_validate_json(made.message.content).color in ("red", "green")
    free = client.generate(NAME, "Hello", format="json", options={"temperature": 0, "num_predict": 200})
    assert free.done_reason == "length" or isinstance(json.loads(free.response or ""), dict)


def test_embeddings_are_those_of_the_session(client: ollama.Client, session: rekindle.Session) -> None:
    texts = ["one text", "another"]
    assert client.embed(NAME, texts).embeddings == session.embed_sync(texts).tolist()
    assert client.embed(NAME, texts[0], dimensions=8).embeddings == session.embed_sync(texts[:1], dimensions=8).tolist()
    assert client.embeddings(NAME, texts[0]).embedding == session.embed_sync(texts[:1]).tolist()[0]
    assert len(client.embed(NAME, "x" * 5000).embeddings) == 1


def test_errors_are_those_of_the_client(client: ollama.Client, session: rekindle.Session) -> None:
    with pytest.raises(ollama.ResponseError, match="there is no model 'other'") as missing:
        client.chat("other", messages=USER)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="temperature"):
        client.chat(NAME, messages=USER, options={"temperature": 1000.0})
    with session.serve_sync(port=0, api_keys=["secret"]) as server:
        with ollama.Client(host=server.url, headers={"authorization": "Bearer secret"}) as keyed:
            assert keyed.list().models
        with ollama.Client(host=server.url) as keyed, pytest.raises(ollama.ResponseError, match="give an API key"):
            keyed.list()
