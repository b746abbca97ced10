"""LlamaIndex answers, streams, calls tools and makes objects on the server."""

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME

# It wants an older `openai` than the other clients, hence is no part of their environment.
like = pytest.importorskip("llama_index.llms.openai_like")

HELLO = [{"role": "user", "content": "Hello"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    sunny: bool


def model(server: Server, **options: Any) -> Any:
    settings = {
        "is_chat_model": True,
        "is_function_calling_model": True,
        "temperature": 0,
        "max_retries": 0,
        "context_window": 512,
    }
    return like.OpenAILike(model=NAME, api_base=f"{server.url}/v1", api_key="none", **settings | options)


def test_chats_and_completions_whole_and_in_streams(server: Server, session: rekindle.Session) -> None:
    from llama_index.core.llms import ChatMessage

    made = model(server, max_tokens=30)
    answer = session.generate_sync(HELLO, max_tokens=30, temperature=0)
    asked = [ChatMessage(role="user", content="Hello")]
    assert made.chat(asked).message.content == answer.content
    assert "".join(part.delta or "" for part in made.stream_chat(asked)) == answer.content
    assert asyncio.run(made.achat(asked)).message.content == answer.content
    plain = model(server, max_tokens=30, is_chat_model=False)
    assert plain.complete("Hello").text == session.generate_sync("Hello", max_tokens=30, temperature=0).text


def test_tools_are_called_and_objects_made(big_server: Server) -> None:
    from llama_index.core.tools import FunctionTool

    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """Tell the weather."""
        return f"sunny in {city}"

    made = model(big_server, max_tokens=300)
    tool = FunctionTool.from_defaults(weather)
    answer = made.chat_with_tools([tool], "Hello", tool_required=True, allow_parallel_tool_calls=False)
    (call,) = made.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs["city"] in ("Rome", "Oslo")) == ("weather", True)
    for options in ({}, {"should_use_structured_outputs": True}):
        found = model(big_server, max_tokens=300, **options).as_structured_llm(Weather).complete("Hello").raw
        assert isinstance(found, Weather)
