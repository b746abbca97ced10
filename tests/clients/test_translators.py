"""Libraries that speak to the server in Anthropic's and in Ollama's API get what a session gives."""

import warnings
from typing import Any, Literal

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama, OllamaEmbeddings
from pydantic import BaseModel, SecretStr

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME

USER = [{"role": "user", "content": "Hello"}]
PLACE: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PLACE}}]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]


@pytest.fixture(scope="module")
def litellm() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm

    litellm.telemetry = False
    return litellm


@pytest.mark.parametrize("api", ["anthropic", "ollama_chat", "ollama", "openai"])
def test_litellm_speaks_each_api(litellm: Any, server: Server, session: rekindle.Session, api: str) -> None:
    base = f"{server.url}/v1" if api == "openai" else server.url
    asked = {"model": f"{api}/{NAME}", "messages": USER, "api_base": base, "api_key": "none", "max_tokens": 9}
    answer = session.generate_sync(USER, max_tokens=9)
    made = litellm.completion(**asked)
    has_own_template = api == "ollama"
    assert has_own_template or made.choices[0].message.content == answer.content
    assert made.usage.completion_tokens == 9
    chunks = list(litellm.completion(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == made.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == ("stop" if has_own_template else "length")


def test_litellm_calls_tools_in_anthropics_api(litellm: Any, server: Server) -> None:
    made = litellm.completion(
        model=f"anthropic/{NAME}",
        messages=USER,
        tools=TOOLS,
        tool_choice="required",
        max_tokens=200,
        api_base=server.url,
        api_key="none",
    )
    calls = made.choices[0].message.tool_calls
    assert {call.function.name for call in calls} == {"weather"}
    assert made.choices[0].finish_reason == "tool_calls"


def test_langchain_speaks_anthropics_api(server: Server, session: rekindle.Session) -> None:
    chat = ChatAnthropic(
        base_url=server.url, api_key=SecretStr("none"), model_name=NAME, max_tokens_to_sample=200, max_retries=0
    )
    answer = session.generate_sync(USER, max_tokens=200)
    assert chat.invoke("Hello").content == answer.content
    assert "".join(str(chunk.text) for chunk in chat.stream("Hello")) == answer.content
    called = chat.bind_tools([Weather], tool_choice="Weather", parallel_tool_calls=False).invoke("Hello")
    assert called.tool_calls[0]["name"] == "Weather"
    assert called.tool_calls[0]["args"]["city"] in ("Rome", "Oslo")
    assert isinstance(chat.with_structured_output(Weather).invoke("Hello"), Weather)


def test_langchain_speaks_ollamas_api(server: Server, session: rekindle.Session) -> None:
    chat = ChatOllama(base_url=server.url, model=NAME, temperature=0, num_predict=200, num_ctx=512)
    answer = session.generate_sync(USER, max_tokens=200)
    assert chat.invoke("Hello").content == answer.content
    assert "".join(str(chunk.content) for chunk in chat.stream("Hello")) == answer.content
    assert isinstance(chat.with_structured_output(Weather, method="json_schema").invoke("Hello"), Weather)
    embeds = OllamaEmbeddings(base_url=server.url, model=NAME)
    assert embeds.embed_documents(["one", "two"]) == session.embed_sync(["one", "two"]).tolist()
