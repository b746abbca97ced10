"""Most of LangChain's standard tests of chat models hold for ChatOpenAI over the server."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.clients.conftest import NAME
from tests.unit.scripted import scripted_session

CALLS: dict[str, dict[str, Any]] = {
    "magic_function_no_args": {},
    "magic_function": {"input": 3},
    "greeting_generator": {"answer_style": "Pirate"},
    "get_weather": {"location": "San Francisco, CA"},
}
JOKE = {"setup": "Why do cats sit?", "punchline": "Because."}


def script(prompt: str) -> str:
    """Call the tool that a prompt names, tell a joke in JSON where it asks for one, else say hello."""
    if "<|im_start|>tool" in prompt:
        return "It is done."
    for name, arguments in CALLS.items():
        if f"{name} " in prompt.partition("<|im_start|>user")[0]:
            return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    return json.dumps(JOKE) if "joke" in prompt else "Hello."


# With a script, a required choice ends in "no token was left to choose"; the cause is not known yet.
OF_WEIGHTS = {"test_tool_choice", "test_structured_few_shot_examples"}
# With a script as above; weights without training do not say what is asked for.
NEITHER = {
    "test_tool_calling",
    "test_tool_calling_async",
    "test_structured_output_pydantic_2_v1",
    "test_unicode_tool_call_integration",
}


@pytest.mark.asyncio
class TestStandard(ChatModelIntegrationTests):  # type: ignore[misc]
    """ChatOpenAI, whose answers come from the server."""

    has_tool_choice = True
    supports_json_mode = True
    chat_model_class = ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.name, "max_retries": 2, "stream_usage": True}

    @pytest.fixture(autouse=True)
    def served(self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
        test = request.node.originalname
        if test in NEITHER:
            pytest.skip("no model of the tests can answer it")
        with ExitStack() as stack:
            if test in OF_WEIGHTS:
                self.name, server = NAME, request.getfixturevalue("big_server")
            else:
                session = stack.enter_context(scripted_session(monkeypatch, script))
                self.name, server = "fake", stack.enter_context(session.serve_sync(port=0))
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "none")
            yield
