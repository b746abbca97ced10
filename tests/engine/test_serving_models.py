"""A server of two models closes one for the other, and has each back from disk without a compilation."""

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

import rekindle
from rekindle.session import serving
from tests.waiting import PATIENCE

SETTINGS = {"page_size": 16, "num_pages": 9, "max_context": 128, "max_running": 1, "max_prefill_tokens": 32}


@pytest.mark.wide
def test_two_models_take_turns_and_come_back_warm(
    families: Path, module_cache: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "ROOM", 1e-12)  # any two models are too large for it together
    sessions: list[rekindle.Session] = []

    async def open_and_note(source: serving.UnopenedModel) -> rekindle.Session:
        sessions.append(await rekindle.open(**source.options, progress=False))
        return sessions[-1]

    monkeypatch.setattr(serving.UnopenedModel, "open", open_and_note)
    names = ("llama-tied", "gpt2")
    models = {name: {"model": families / name, **SETTINGS} for name in names}
    with rekindle.serve_sync(models, port=0) as server:
        for name in (*names, *names):
            golden = np.load(families / name / "golden.npz")
            prompt, new = golden["greedy_prompt"].tolist(), golden["greedy_new"].tolist()
            answer = _complete(server.url, {"model": name, "prompt": prompt, "max_tokens": 4, "return_token_ids": True})
            assert answer["choices"][0]["token_ids"] == new[:4]
            assert sessions[-1].name.endswith(name)
            sessions[-1].precompiled_sync()
    assert [session.stats.compilations > 0 for session in sessions] == [True, True, False, False]


def _complete(url: str, body: dict[str, Any]) -> Any:
    headers = {"content-type": "application/json"}
    request = Request(f"{url}/v1/completions", json.dumps(body | {"temperature": 0}).encode(), headers)
    with urlopen(request, timeout=PATIENCE) as reply:
        return json.load(reply)
