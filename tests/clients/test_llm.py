"""The package `llm` answers, embeds, calls tools and keeps schemas with sessions of its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llm
import llm.cli
import pytest
from click.testing import CliRunner, Result
from llm.plugins import load_plugins

import rekindle
from llm_rekindle import sessions
from llm_rekindle.registry import DEFAULT, models_path
from tests.clients.conftest import NAME
from tests.unit.scripted import call, dictated, scripted_session

pytestmark = pytest.mark.anyio
MODEL = "rekindle/smollm2"
Run = Callable[..., Result]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `llm` a folder of its own, and no open sessions."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setattr(sessions, "_sessions", {})
    load_plugins()


@pytest.fixture
def run() -> Run:
    """Return a function to run a command of `llm`."""

    def run(*arguments: str, status: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(llm.cli.cli, list(arguments), **options)
        assert result.exit_code == status, result.output
        return result

    return run


@pytest.fixture
def tiny(session: rekindle.Session) -> rekindle.Session:
    """Answer prompts for the default model by the tiny session."""
    sessions._sessions[DEFAULT.model] = session
    return session


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Answer prompts for the default model by a script; yield the conversations in the model's format."""
    prompts: list[str] = []

    def noted(prompt: str) -> str:
        prompts.append(prompt)
        return dictated(prompt)

    with scripted_session(monkeypatch, noted) as session:
        monkeypatch.setattr(rekindle.Session, "save_sync", lambda self, **options: 0)  # the fake device has no disk
        sessions._sessions[DEFAULT.model] = session
        yield prompts


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


def test_an_answer_is_that_of_a_chat_with_its_figures(tiny: rekindle.Session) -> None:
    chat = tiny.chat(system="Be brief.", max_tokens=9, temperature=1.0, seed=5, top_k=20)
    answer = chat.say_sync("Hello")
    options = {"max_tokens": 9, "temperature": 1.0, "seed": 5, "top_k": 20}
    response = llm.get_model(MODEL).prompt("Hello", system="Be brief.", **options)
    assert "".join(response) == answer.content
    usage = response.usage()
    assert (usage.input, usage.output) == (answer.usage.prompt_tokens, 9)
    assert response.response_json == {"finish_reason": "length"}
    whole = llm.get_model(MODEL).prompt("Hello", system="Be brief.", stream=False, **options)
    assert whole.text() == answer.content


async def test_an_async_answer_is_that_of_a_blocking_one(tiny: rekindle.Session) -> None:
    response = llm.get_async_model(MODEL).prompt("Hello", max_tokens=9, temperature=0)
    pieces = [piece async for piece in response]
    assert "".join(pieces) == llm.get_model(MODEL).prompt("Hello", max_tokens=9, temperature=0).text()
    assert (await response.usage()).output == 9


def test_a_schema_holds(tiny: rekindle.Session) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
    schema["additionalProperties"] = False
    response = llm.get_model(MODEL).prompt("Hello", schema=schema, max_tokens=60, temperature=0)
    assert list(json.loads(response.text())) == ["sure"]


def test_a_conversation_has_its_history_and_its_system_prompt(scripted: list[str]) -> None:
    conversation = llm.get_model(MODEL).conversation()
    assert conversation.prompt("say one", system="Be kind.").text() == "one"
    assert conversation.prompt("say two").text() == "two"
    texts = ["system\nBe kind.", "user\nsay one", "assistant\none", "user\nsay two"]
    assert [turn.removesuffix("<|im_end|>\n") for turn in scripted[-1].split("<|im_start|>")[1:-1]] == texts


def test_tools_are_called_and_their_results_are_read(scripted: list[str]) -> None:
    chain = llm.get_model(MODEL).chain(f"say {call('weather', city='Rome')}", tools=[weather])
    assert chain.text() == "It is: sunny in Rome"
    first, second = chain._responses
    assert [(each.name, each.arguments) for each in first.tool_calls()] == [("weather", {"city": "Rome"})]
    assert second.tool_calls() == []


async def test_an_async_chain_calls_tools(scripted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def save(self: rekindle.Session, **options: Any) -> int:
        return 0

    monkeypatch.setattr(rekindle.Session, "save", save)
    chain = llm.get_async_model(MODEL).chain(f"say {call('weather', city='Rome')}", tools=[weather])
    assert await chain.text() == "It is: sunny in Rome"


def test_commands_answer_and_go_on(scripted: list[str], run: Run) -> None:
    assert run("-m", MODEL, "say one").output == "one\n"
    assert run("-c", "say two").output == "two\n"
    assert "assistant\none" in scripted[-1]
    chatted = run("chat", "-m", MODEL, input="say three\nquit\n").output
    assert "three" in chatted
    tool = f"say {call('llm_version')}"
    assert run("-m", MODEL, "-T", "llm_version", tool).output.startswith("It is: ")


def test_attachments_and_wrong_options_are_refused(scripted: list[str], run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    assert "does not support attachments" in run("-m", MODEL, "what?", "-a", str(picture), status=1).output
    message = llm.user("what?", llm.Attachment(type="image/png", content=b"1"))
    with pytest.raises(ValueError, match="the prompt has an attachment of type image/png"):
        llm.get_model(MODEL).prompt(messages=[message]).text()
    assert "temperature must be" in run("-m", MODEL, "what?", "-o", "temperature", "-3", status=1).output
    assert "heat" in run("-m", MODEL, "what?", "-o", "heat", "3", status=1).output


def test_models_are_added_used_and_removed(
    checkpoint: Path, session: rekindle.Session, run: Run, tmp_path: Path
) -> None:
    families = Path(__file__).parents[1] / "goldens" / "families"
    texts = families / "llama-tied"
    assert (
        "rekindle/words is added: llm -m rekindle/words '...'"
        in run("rekindle", "add", str(texts), "-n", "words", "-a", "w").output
    )
    assert llm.get_model("w").model_id == "rekindle/words"
    assert f"llm embed -m rekindle/{NAME} -c" in run("rekindle", "add", str(checkpoint)).output
    sessions._sessions[str(checkpoint.resolve())] = session
    expected = session.embed_sync(["a", "b"]).tolist()
    model = llm.get_embedding_model(f"rekindle/{NAME}")
    assert list(model.embed_multi(["a", "b"])) == expected
    assert json.loads(run("embed", "-m", f"rekindle/{NAME}", "-c", "a").output) == pytest.approx(expected[0], rel=1e-4)
    assert "rekindle/words (aliases: w): text" in run("rekindle", "models").output
    assert run("rekindle", "models-file").output.strip() == str(models_path())
    run("rekindle", "remove", "words")
    with pytest.raises(llm.UnknownModelError):
        llm.get_model("rekindle/words")
    assert "was not added" in run("rekindle", "remove", "words", status=1).output
    assert "names another model" in run("rekindle", "add", str(texts), "-a", "smollm2", status=1).output
    assert "nowhere" in run("rekindle", "add", str(tmp_path / "nowhere"), status=1).output
    models_path().write_text("[]")
    assert "mend or delete it" in run("rekindle", "models", status=1).output


def test_the_plugin_is_found_and_imports_no_rekindle() -> None:
    code = (
        "import llm, sys; print('rekindle/smollm2' in llm.get_model_aliases(), {'rekindle', 'jax'} & set(sys.modules))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ})
    assert output == "True set()\n"
