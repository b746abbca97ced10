"""The npm package `ai` gets what a session gives, in OpenAI's and in Anthropic's API."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME
from tests.clients.npm import node_command

SOURCE = Path(__file__).parent / "scripts" / "ask.mjs"


@pytest.fixture(scope="module")
def answers(server: Server) -> dict[str, Any]:
    """Return what the script prints."""
    start = node_command(SOURCE)
    if start is None:
        pytest.skip("Node.js and its packages are not installed: python -m tests.clients.npm")
    asked = [*start, server.url, NAME]
    done = subprocess.run(asked, cwd=Path(start[-1]).parent, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_each_api_gives_what_the_session_gives(answers: dict[str, Any], session: rekindle.Session, api: str) -> None:
    made, answer = answers[api], session.generate_sync([{"role": "user", "content": "Hello"}], max_tokens=9)
    assert made["text"] == made["streamed"] == answer.content
    assert (made["reason"], made["tokens"]) == ("length", 9)
    assert made["calls"] == made["streamedCalls"]
    assert {call["city"] for call in made["calls"]} <= {"Rome", "Oslo"}
    assert made["object"]["color"] in ("red", "green")
    assert len(made["calls"]) > 0


def test_embeddings_are_those_of_the_session(answers: dict[str, Any], session: rekindle.Session) -> None:
    assert answers["embeddings"] == session.embed_sync(["one", "two"]).tolist()
