"""The AI SDK and the Agents SDK, in their newest versions, run three rounds with two tools each."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agents
import openai
import pytest

from rekindle.server.listening.running import Server
from tests.clients.errands import Errands, serving
from tests.clients.npm import node_command

ROUNDS = (1, 2, 3)
SCRIPT = Path(__file__).parent / "scripts" / "rounds.mjs"
TEXTS = [f"DONE-{n}" for n in ROUNDS]
CALLS = [("weather", {"city": "Rome"}), ("note", {"text": "warm"})]


@pytest.fixture
def server() -> Iterator[Server]:
    script = Errands(calls=[CALLS] * 3, results=[["sunny in Rome", "noted warm"]] * 3)
    with serving(script) as server:
        yield server


def test_rounds_in_javascript(server: Server) -> None:
    start = node_command(SCRIPT)
    if start is None:
        pytest.skip("Node.js and its packages are not installed: python -m tests.clients.npm")
    done = subprocess.run(
        [*start, server.url, "fake"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=Path(start[-1]).parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["found"] == dict.fromkeys(answer["found"], TEXTS), done.stderr[-3000:]
    assert len(answer["found"]) == 12
    assert answer["done"] == ["Rome", "warm"] * 3 * 12


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def test_rounds_of_the_agents_sdk_in_python(server: Server, api: Any, stream: bool) -> None:
    done: list[str] = []

    def weather(city: str) -> str:
        done.append(city)
        return f"sunny in {city}"

    def note(text: str) -> str:
        done.append(text)
        return f"noted {text}"

    async def rounds() -> list[str]:
        history: list[Any] = []
        texts = []
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as client:
            model, tools = (
                api(model="fake", openai_client=client),
                [agents.function_tool(each) for each in (weather, note)],
            )
            agent: Any = agents.Agent(name="a", model=model, tools=tools)
            for n in ROUNDS:
                asked = [*history, {"role": "user", "content": f"ROUND-{n}"}]
                if stream:
                    result: Any = agents.Runner.run_streamed(agent, asked)
                    async for _ in result.stream_events():
                        pass
                else:
                    result = await agents.Runner.run(agent, asked)
                history = result.to_input_list()
                texts.append(result.final_output)
        return texts

    agents.set_tracing_disabled(True)
    assert asyncio.run(rounds()) == TEXTS
    assert done == ["Rome", "warm"] * 3
