"""Agents of Pydantic AI get texts and objects from the server."""

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    sunny: bool


def agent(server: Server, api: Any, **options: Any) -> Any:
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
    return Agent(api(NAME, provider=provider), **options)


each_api = pytest.mark.parametrize("api", [OpenAIChatModel, OpenAIResponsesModel])


@each_api
def test_an_agent_answers_whole_and_in_streams(server: Server, session: rekindle.Session, api: Any) -> None:
    answer = session.generate_sync([{"role": "user", "content": "Hello"}], max_tokens=30)

    async def both() -> tuple[str, str, int]:
        made = agent(server, api, model_settings={"max_tokens": 30})
        whole = await made.run("Hello")
        async with made.run_stream("Hello") as stream:
            return whole.output, await stream.get_output(), whole.usage.output_tokens

    assert asyncio.run(both()) == (answer.content, answer.content, 30)


@each_api
@pytest.mark.parametrize("form", [ToolOutput, NativeOutput])
def test_an_agent_makes_objects(big_server: Server, api: Any, form: Any) -> None:
    settings = {"max_tokens": 300, "parallel_tool_calls": False}

    async def both() -> list[Any]:
        made = agent(big_server, api, output_type=form(Weather), model_settings=settings, retries=0)
        whole = await made.run("Hello")
        async with made.run_stream("Hello") as stream:
            return [whole.output, await stream.get_output()]

    whole, streamed = asyncio.run(both())
    assert isinstance(whole, Weather)
    assert streamed == whole
