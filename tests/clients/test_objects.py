"""The AI SDK's objects beside tools, in all of its providers for the APIs of the server."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekindle.server.listening.running import Server
from tests.clients.npm import node_command
from tests.unit.scripted import call, scripted_session

SCRIPT = Path(__file__).parent / "scripts" / "objects.mjs"
PROVIDERS = {"OpenAI, responses", "OpenAI, chats", "compatible", "Anthropic", "Ollama"}
OBJECT = {"city": "Rome", "people": 3}


def answer(prompt: str) -> str:
    """Return a call of the tool; after its result the object, or a call of the SDK's tool for objects if it has one."""
    if "sunny in Rome" not in prompt:
        return call("weather", place="Rome")
    return call("json", **OBJECT) if "weather json" in prompt else json.dumps(OBJECT)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with scripted_session(monkeypatch, answer, max_context=2048) as session, session.serve_sync(port=0) as server:
        yield server


def test_an_object_comes_after_a_call_and_a_cut_call_is_no_text(server: Server) -> None:
    start = node_command(SCRIPT)
    if start is None:
        pytest.skip("Node.js and its packages are not installed: python -m tests.clients.npm")
    command = [*start, server.url, "fake"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=Path(start[-1]).parent)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["found"].keys() == PROVIDERS
    for provider, own in result["found"].items():
        assert (own["whole"], own["stream"]) == (OBJECT, OBJECT), provider
        # The provider for Ollama sends its limit in a field that Ollama ignores.
        end = [json.dumps(OBJECT), "stop"] if provider == "Ollama" else ["", "length"]
        assert own["cut"] == own["cutStream"] == end, provider
    assert result["done"] == ["Rome"] * (2 * len(PROVIDERS) + 2)
