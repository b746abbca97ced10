"""LangChain's standard tests of chat models hold for ChatOpenAI over the server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.unit.scripted import OTHERS, scripted_session

JOKE = {"setup": "Why do cats sit?", "punchline": "Because."}
CALLS: dict[str, dict[str, Any]] = {
    "magic_function_no_args": {},
    "magic_function": {"input": 3},
    "greeting_generator": {"answer_style": "Pirate"},
    "get_weather": {"location": "San Francisco, CA"},
    "unicode_customer": {"customer_name": OTHERS, "description": "Hello"},
    "Joke": JOKE,
}


def script(prompt: str) -> str:
    """Call the tool that a prompt names, tell a joke in JSON where it asks for one, else say hello."""
    if "<|im_start|>tool" in prompt:
        return "It is done."
    for name, arguments in CALLS.items():
        if f"{name} " in prompt.partition("<|im_start|>user")[0]:
            return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
    return json.dumps(JOKE) if "joke" in prompt else "Hello."


@pytest.mark.asyncio
class TestStandard(ChatModelIntegrationTests):  # type: ignore[misc]
    """ChatOpenAI, whose answers come from the server."""

    has_tool_choice = True
    supports_json_mode = True
    chat_model_class = ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "fake", "max_retries": 2, "stream_usage": True}

    @pytest.fixture(autouse=True)
    def served(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with scripted_session(monkeypatch, script) as session, session.serve_sync(port=0) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "none")
            yield
