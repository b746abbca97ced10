"""Any number of decode steps in a tick gives an answer the same bits, by the same programs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.core.buckets import MAX_STEPS
from rekindle.core.scheduler.planner import StepCounts
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.engine.pictured import Pictured
from tests.engine.small import SMALL
from tests.unit.lora import random_parts, saved
from tests.waiting import PATIENCE

COUNTS = (1, 2, 3, 5, 8, 13, 16)
FEW = (1, 5, 16)
PROMPTS = [np.random.default_rng(0).integers(20, 90, count).tolist() for count in (5, 17, 33, 60)]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 11, "logprobs": 2}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "max_tokens": 37, "ignore_eos": True, "logprobs": 2},
    {**SAMPLED, "max_tokens": 29, "min_tokens": 4, "min_p": 0.02, "stop_token_ids": range(40, 48)},
    {**SAMPLED, "max_tokens": 21, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    {**SAMPLED, "max_tokens": 21, "top_k": 20, "top_p": 0.9, "bad_words": [(21, 22)], "logprobs_of": "sampled"},
)
ALONE: Any = {"precompile": "lazy", "prefix_cache": False, "progress": False}


@pytest.fixture(autouse=True)
def _as_many_steps_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCounts, "choose", lambda self, rows, alone: MAX_STEPS)


def bits(answer: rekindle.Generation) -> tuple[Any, ...]:
    """Return all of an answer that its number of steps could change."""
    scores = [(each.token_id, each.logprob, each.rank, each.top) for each in answer.logprobs or ()]
    return answer.token_ids, answer.finish_reason, answer.stopped_by, answer.text, scores


def answers(session: rekindle.Session, prompts: list[Any], kinds: tuple[dict[str, Any], ...] = KINDS) -> list[Any]:
    """Return the bits of all answers; the requests of a kind run side by side, and none waits for a slot."""
    found = []
    for kind in kinds:
        own = [kind | {"max_tokens": kind["max_tokens"] - place} for place in range(len(prompts))]
        handles = [session.submit(**prompt, **options) for prompt, options in zip(prompts, own, strict=True)]
        found += [bits(handle.result(timeout=PATIENCE)) for handle in handles]
    return found


def check(model: Path, counts: tuple[int, ...], prompts: list[Any], **settings: Any) -> None:
    """Compare the answers of sessions with several limits of steps; the first one compiles for all."""
    expected: list[Any] = []
    ticks = 0
    for count in counts:
        with rekindle.open_sync(model, decode_steps=count, **settings) as session:
            found = answers(session, prompts)
            if not expected:
                expected, ticks = found, session.stats.scheduler.ticks
                assert len({each[0] for each in expected}) > len(PROMPTS)
                continue
            assert session.stats.compilations == 0, "one program for all numbers of steps"
            assert found == expected
            assert session.stats.scheduler.ticks < ticks / 1.4


@pytest.mark.parametrize(
    ("family", "counts"),
    [
        pytest.param("gpt-oss", FEW, id="experts, windows and sinks"),
        pytest.param("qwen3_5", FEW, id="states"),
        *(
            pytest.param(name, COUNTS, marks=pytest.mark.wide)
            for name in (
                "llama-tied",
                "gemma3",
                "deepseek-v3",
                "mixtral",
                "qwen3-next",
                "nemotron-h",
                "gemma3n",
                "lfm2",
            )
        ),
    ],
)
def test_the_number_of_steps_changes_no_bit(family: str, counts: tuple[int, ...], families: Path) -> None:
    check(families / family, counts, [{"token_ids": prompt} for prompt in PROMPTS], **ALONE, **SMALL)


@pytest.mark.wide
@pytest.mark.parametrize(
    "settings",
    [
        {"implementation": "xla"},
        {"implementation": "xla", "dtype": "bfloat16"},
        {"quantize": "int4"},
        {"replicas": 2},
        {"overlap": False},
        {"ticks": "combined"},
        {"kv_dtype": "int8"},
    ],
    ids=str,
)
def test_nor_does_it_with_other_settings(settings: dict[str, Any], families: Path) -> None:
    check(families / "qwen2", FEW, [{"token_ids": prompt} for prompt in PROMPTS], **ALONE | SMALL | settings)


@pytest.mark.wide
def test_nor_does_it_with_one_shape_for_all_ticks(families: Path) -> None:
    sizes = {name: size for name, size in SMALL.items() if "buckets" not in name}
    settings = {**ALONE, **sizes, "deterministic": True, "implementation": "xla"}
    check(families / "qwen2", FEW, [{"token_ids": prompt} for prompt in PROMPTS], **settings)


@pytest.mark.wide
def test_nor_does_it_with_adapters_beside_each_other(families: Path, tmp_path: Path) -> None:
    adapter = saved(tmp_path / "one", random_parts(open_checkpoint(families / "qwen2").config, 3, 1))
    prompts = [{"token_ids": prompt, "adapter": "one" if place % 2 else None} for place, prompt in enumerate(PROMPTS)]
    check(families / "qwen2", FEW, prompts, adapters={"one": adapter}, **ALONE, **SMALL)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["smolvlm", "qwen3-vl"])
def test_nor_does_it_behind_images(name: str) -> None:
    family = Pictured(name)
    prompts = [{"prompt": family.messages(number)} for number in (0, 1)]
    settings: Any = {"page_size": 16, "max_running": 4, "decode_buckets": (4,), "max_context": 512}
    check(family.path, FEW, prompts, **ALONE, **settings)
