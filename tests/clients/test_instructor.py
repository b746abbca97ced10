"""Instructor makes objects of answers of the server."""

import json
from typing import Any, Literal

import instructor
import openai
import pytest
from pydantic import BaseModel

from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME
from tests.unit.scripted import scripted_session

USER: list[Any] = [{"role": "user", "content": "Hello"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    sunny: bool


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_instructor_holds_answers_to_models(big_server: Server, mode: str) -> None:
    with openai.OpenAI(base_url=f"{big_server.url}/v1", api_key="none", max_retries=0) as client:
        made = instructor.from_openai(client, mode=instructor.Mode[mode])
        asked: dict[str, Any] = {"model": NAME, "messages": USER, "max_tokens": 300}
        answer, whole = made.create_with_completion(response_model=Weather, max_retries=0, **asked)
        assert isinstance(answer, Weather)
        assert whole.usage.completion_tokens > 0
        *_, last = made.create_partial(response_model=Weather, max_retries=0, **asked)
        assert last.model_dump() == answer.model_dump()


@pytest.mark.parametrize("mode", ["JSON", "MD_JSON"])
def test_instructor_asks_in_words_for_the_fields(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Check modes whose answers follow the instructions alone, as those of a model with training."""
    weather = json.dumps({"city": "Oslo", "sunny": False})

    def script(prompt: str) -> str:
        assert "Oslo" in prompt, "the instructions have the schema"
        return weather if mode == "JSON" else f"```json\n{weather}\n```"

    with (
        scripted_session(monkeypatch, script, max_context=8192) as session,
        session.serve_sync(port=0) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        made = instructor.from_openai(client, mode=instructor.Mode[mode])
        asked: dict[str, Any] = {"model": "fake", "messages": USER, "max_tokens": 300}
        answer, whole = made.create_with_completion(response_model=Weather, max_retries=0, **asked)
        assert answer.model_dump() == {"city": "Oslo", "sunny": False}
        assert (whole.choices[0].message.content == weather) == (mode == "JSON")
        *_, last = made.create_partial(response_model=Weather, max_retries=0, **asked)
        assert last.model_dump() == answer.model_dump()
