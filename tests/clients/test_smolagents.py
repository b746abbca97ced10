"""A model of smolagents answers and calls tools on the server, and its agents get to their answers."""

import json
from typing import Any

import pytest
from smolagents import OpenAIServerModel, Tool, ToolCallingAgent

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME
from tests.unit.scripted import scripted_session

USER = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]


class Weather(Tool):  # type: ignore[misc]
    """Tells the weather of a city."""

    name = "weather"
    description = "Tells the weather."
    inputs = {"city": {"type": "string", "description": "The city.", "enum": ["Rome", "Oslo"]}}  # noqa: RUF012
    output_type = "string"

    def forward(self, city: str) -> str:
        return f"sunny in {city}"


def model(server: Server, name: str = NAME, **options: Any) -> Any:
    return OpenAIServerModel(model_id=name, api_base=f"{server.url}/v1", api_key="none", **options)


def test_a_model_answers_whole_and_in_streams(server: Server, session: rekindle.Session) -> None:
    made = model(server, max_tokens=30)
    answer = session.generate_sync([{"role": "user", "content": "Hello"}], max_tokens=30)
    whole = made.generate(USER)
    assert whole.content == answer.content
    assert whole.token_usage.output_tokens == 30
    assert "".join(delta.content or "" for delta in made.generate_stream(USER)) == answer.content


def test_a_model_calls_tools_of_their_form(server: Server) -> None:
    (call,) = (
        model(server, max_tokens=400, parallel_tool_calls=False)
        .generate(USER, tools_to_call_from=[Weather()])
        .tool_calls
    )
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_calls_tools_and_answers(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    def script(prompt: str) -> str:
        """Answer with the weather once it is known, else ask for it."""
        name, arguments = ("final_answer", {"answer": "It is sunny."})
        if "Observation:\nsunny in Rome" not in prompt:
            name, arguments = ("weather", {"city": "Rome"})
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    with scripted_session(monkeypatch, script, max_context=16_384) as session, session.serve_sync(port=0) as server:
        agent = ToolCallingAgent(
            tools=[Weather()],
            model=model(server, "fake"),
            max_steps=3,
            verbosity_level=0,
            stream_outputs=stream,
        )
        result = agent.run("How is the weather in Rome?", return_full_result=True)
    assert (result.output, result.state) == ("It is sunny.", "success")
    assert result.token_usage.input_tokens > 1000
