"""The npm package `ai` gets what a session gives, in OpenAI's and in Anthropic's API."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME

SOURCE = Path(__file__).parent / "vercel"
BUILD = Path(__file__).parents[2] / "build" / "vercel"


@pytest.fixture(scope="module")
def answers(server: Server) -> dict[str, Any]:
    """Return what the script prints, after an installation of its packages in `build`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no Node.js")
    BUILD.mkdir(parents=True, exist_ok=True)
    for path in SOURCE.iterdir():
        shutil.copy(path, BUILD)
    quiet = ["--no-audit", "--no-fund", "--silent"]
    if subprocess.run([npm, "install", *quiet], cwd=BUILD, check=False, timeout=300).returncode:
        pytest.skip("npm cannot install the packages")
    asked = [node, "ask.mjs", server.url, NAME]
    done = subprocess.run(asked, cwd=BUILD, capture_output=True, text=True, check=False, timeout=300)
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
