"""Agents of OpenAI's SDK answer, call tools and make objects on the server, by chats and by responses."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import agents
import openai
import pytest
from pydantic import BaseModel

from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME
from tests.unit.scripted import scripted_session

agents.set_tracing_disabled(True)  # traces go to OpenAI


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    sunny: bool


each_api = pytest.mark.parametrize("api", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])


def run(server: Server, api: Any, stream: bool, name: str, options: Callable[[], dict[str, Any]]) -> Any:
    async def one() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            agent = agents.Agent(name="agent", model=api(model=name, openai_client=client), **options())
            if not stream:
                return await agents.Runner.run(agent, "Hello")
            streamed = agents.Runner.run_streamed(agent, "Hello")
            async for _ in streamed.stream_events():
                pass
            return streamed

    return asyncio.run(one())


@each_api
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_makes_objects(server: Server, api: Any, stream: bool) -> None:
    made = run(
        server,
        api,
        stream,
        NAME,
        lambda: {"model_settings": agents.ModelSettings(max_tokens=300), "output_type": Weather},
    )
    assert isinstance(made.final_output, Weather)


@each_api
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_calls_tools_and_answers(monkeypatch: pytest.MonkeyPatch, api: Any, stream: bool) -> None:
    asked: list[str] = []

    def weather(city: Literal["Rome", "Oslo"]) -> str:
        asked.append(city)
        return "sunny"

    def script(prompt: str) -> str:
        call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
        return "It is sunny." if "<|im_start|>tool\nsunny" in prompt else call

    settings = agents.ModelSettings(max_tokens=100, include_usage=True)
    with scripted_session(monkeypatch, script) as session, session.serve_sync(port=0) as server:
        made = run(
            server,
            api,
            stream,
            "fake",
            lambda: {"model_settings": settings, "tools": [agents.function_tool(weather)]},
        )
    assert asked == ["Rome"]
    assert made.final_output == "It is sunny."
    assert made.context_wrapper.usage.requests == 2
    assert made.context_wrapper.usage.output_tokens > 0
