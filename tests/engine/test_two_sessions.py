"""Native kernels of two sessions share the threads of the device, and none holds up or changes the other's answers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle_kernels.cpu.library import unavailable_reason
from tests.engine.small import SMALL

pytestmark = pytest.mark.wide

ROUNDS = 8
OPTIONS: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0, "seed": 5}
PROMPTS = [[(number * place) % 499 for number in range(1, 40 + place)] for place in (1, 2, 3)]


@pytest.mark.skipif(unavailable_reason() is not None, reason=f"no native kernels: {unavailable_reason()}")
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.deep)])
def test_two_sessions_that_compute_at_once_answer_as_each_does_alone(families: Path, dtype: Any) -> None:
    def open_session(family: str) -> rekindle.Session:
        return rekindle.open_sync(families / family, dtype=dtype, prefix_cache=False, progress=False, **SMALL)

    def ask(session: rekindle.Session) -> list[tuple[int, ...]]:
        return [answer.token_ids for answer in session.generate_sync(token_ids=PROMPTS, **OPTIONS)]

    with open_session("llama-tied") as one, open_session("qwen2") as other, ThreadPoolExecutor(4) as client:
        alone = {session: ask(session) for session in (one, other)}
        futures = [(session, client.submit(ask, session)) for _ in range(ROUNDS) for session in (one, other)]
        for session, answers in futures:
            assert answers.result() == alone[session]
