"""The app of the guide, in FastAPI, answers whole and in pieces, and serves the APIs beside its own routes."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import rekindle
from tests.documents import ROOT, blocks
from tests.unit.scripted import scripted_session

GUIDE = ROOT / "tutorials" / "guides" / "clients.md"
QUESTION = {"question": "What is the capital of France?"}


def test_the_app_of_the_guide_answers_and_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (block.text for block in blocks(GUIDE, "python") if "FastAPI" in block.text)
    (tmp_path / "guide_app.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with scripted_session(monkeypatch, lambda prompt: "It is Paris.") as session:
        monkeypatch.setattr(rekindle, "open", lambda: nullcontext(session))
        guide_app: Any = __import__("guide_app")
        with TestClient(guide_app.app) as client:
            assert client.get("/ask", params=QUESTION).json() == {"answer": "It is Paris."}
            with client.stream("GET", "/stream", params=QUESTION) as streamed:
                assert "".join(streamed.iter_text()) == "It is Paris."
            body = {"messages": [{"role": "user", "content": "Hello"}]}
            answer = client.post("/llm/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == "It is Paris."
