"""LangChain and the command `llm` work on the server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]


@pytest.fixture
def chat(server: Server) -> Any:
    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key=SecretStr("none"), model=NAME, max_completion_tokens=200, max_retries=0
    )


def test_langchain_invokes_and_streams(chat: Any, session: rekindle.Session) -> None:
    answer = session.generate_sync([{"role": "user", "content": "Hello"}], max_tokens=200)
    assert chat.invoke("Hello").content == answer.content
    assert "".join(chunk.content for chunk in chat.stream("Hello")) == answer.content


def test_langchain_calls_tools_and_holds_answers_to_schemas(chat: Any) -> None:
    called = chat.bind_tools([Weather], tool_choice="required", parallel_tool_calls=False).invoke("Hello")
    assert called.tool_calls[0]["name"] == "Weather"
    assert called.tool_calls[0]["args"]["city"] in ("Rome", "Oslo")
    assert isinstance(chat.with_structured_output(Weather, method="json_schema").invoke("Hello"), Weather)


def test_langchain_embeds(server: Server, session: rekindle.Session) -> None:
    embeds = OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key=SecretStr("none"), model=NAME, check_embedding_ctx_length=False
    )
    assert embeds.embed_documents(["one", "two"]) == session.embed_sync(["one", "two"]).tolist()


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
def test_the_command_llm_prompts(server: Server, session: rekindle.Session, tmp_path: Path, options: list[str]) -> None:
    entry = f"- model_id: mine\n  model_name: {NAME}\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry, encoding="utf-8")
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    arguments = ["-m", "mine", *options, "-o", "max_tokens", "9", "-o", "temperature", "0", "Hello"]
    found = subprocess.run(
        [sys.executable, "-m", "llm", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    answer = session.generate_sync([{"role": "user", "content": "Hello"}], max_tokens=9, temperature=0)
    assert (found.returncode, found.stdout.strip()) == (0, answer.content.strip()), found.stderr
