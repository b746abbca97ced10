"""Instructor makes objects of answers of the server."""

from typing import Any, Literal

import instructor
import openai
import pytest
from pydantic import BaseModel

from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME

USER: list[Any] = [{"role": "user", "content": "Hello"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    sunny: bool


# The modes JSON and MD_JSON ask in words alone for the fields, which a model without training does not heed.
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
