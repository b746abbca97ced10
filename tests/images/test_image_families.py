"""Each family of models with images has the numbers of transformers: alone, in chunks, in a batch, from the cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle import InvalidRequest
from tests.engine.pictured import GREEDY, Pictured
from tests.mistral_layout import write_mistrals

pytestmark = pytest.mark.anyio
FAMILIES = pytest.mark.parametrize(
    "family",
    [
        Pictured("qwen3-vl"),  # positions by row and column
        *(
            pytest.param(Pictured(name), marks=pytest.mark.wide)
            for name in (
                *("gemma3", "gemma4-dense", "gemma4-e", "granite-vision", "internvl", "lfm2-vl", "llava", "llava-next"),
                *("ministral3", "mistral3", "paligemma", "pixtral", "qwen2_5-vl", "qwen3_5", "smolvlm"),
            )
        ),
    ],
    ids=lambda family: family.path.name,
)
"""A tiny model of each tower."""
SETTINGS: Any = {"dtype": "float32", "page_size": 16, "max_prefill_tokens": 96, "max_running": 4, "progress": False}


@pytest.mark.wide
@FAMILIES
async def test_answers_are_those_of_transformers(
    family: Pictured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    is_cached = family.path.name != "paligemma"  # it reads each prompt as a whole
    settings = SETTINGS if is_cached else {**SETTINGS, "max_prefill_tokens": 96}
    with rekindle.open_sync(family.path, **settings) as session:
        for number in (0, 1):
            answer = await session.generate(family.messages(number), **GREEDY, prompt_logprobs=0)
            assert list(answer.prompt_token_ids) == family.tokens(number, "input_ids")
            assert list(answer.token_ids) == family.tokens(number, "greedy_new")
            assert answer.prompt_logprobs is not None
            logprobs = np.array([each.logprob for each in answer.prompt_logprobs if each is not None])
            expected = family.numbers[f"{number}_prompt_logprobs"].reshape(-1)
            bound = 5e-5 if family.path.name == "qwen3_5" else 1e-5
            assert np.abs(logprobs - expected).max() < bound * max(1, np.abs(expected).max())
        text: Any = [{"role": "user", "content": "Only text."}]
        alone = await session.generate(text, **GREEDY)
        flipped = [family.messages(number, is_flipped=True) for number in (0, 1)]
        batch: Any = await session.generate([family.messages(0), text, *flipped, family.messages(1)], **GREEDY)
        embedded = session.stats.scheduler.embedded_pictures
        answers = [list(each.token_ids) for each in batch]
        assert answers[1] == list(alone.token_ids)
        assert answers[2:4] == [family.tokens(number, "flipped_new") for number in (0, 1)], "no page is shared"
        assert [answers[0], answers[4]] == [family.tokens(number, "greedy_new") for number in (0, 1)]
        assert embedded == 6, "three images, and each of them upside down"
        await session.save(progress=False)
    with rekindle.open_sync(family.path, **settings) as session:
        both: Any = [family.messages(0), family.messages(1)]
        again: Any = await session.generate(both, **GREEDY)
        assert [list(each.token_ids) for each in again] == [family.tokens(number, "greedy_new") for number in (0, 1)]
        stats = session.stats
        assert (stats.compilations, stats.unexpected_compilations) == (0, 0)
        assert stats.scheduler.embedded_pictures == 0, "embeddings are on disk, also of prompts that are not"
        assert (stats.scheduler.disk_hit_tokens > 0) == is_cached


@pytest.mark.wide
async def test_a_ministral_in_the_layout_of_mistrals_own_code_has_the_same_answers(tmp_path: Path) -> None:
    family = Pictured("ministral3")
    path = write_mistrals(family.path, tmp_path / "own")
    assert sorted(each.name for each in path.iterdir()) == [
        *("chat_template.jinja", "consolidated.safetensors", "params.json", "tekken.json")
    ]
    with rekindle.open_sync(path, **SETTINGS, precompile="lazy", restore="off") as session:
        both: Any = [family.messages(0), family.messages(1)]
        answers: Any = await session.generate(both, **GREEDY, prompt_logprobs=0)
        for number, answer in enumerate(answers):
            assert list(answer.prompt_token_ids) == family.tokens(number, "input_ids")
            assert list(answer.token_ids) == family.tokens(number, "greedy_new")
            logprobs = np.array([each.logprob for each in answer.prompt_logprobs if each is not None])
            expected = family.numbers[f"{number}_prompt_logprobs"]
            assert np.abs(logprobs - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.wide
async def test_a_prompt_read_as_a_whole_is_preempted_and_has_no_prefix() -> None:
    family = Pictured("paligemma")
    few: Any = {**SETTINGS, "max_prefill_tokens": 96, "num_pages": 8, "restore": "off"}
    with rekindle.open_sync(family.path, **few) as session:
        prompts: Any = [family.messages(0)] * 4
        answers: Any = await session.generate(prompts, **GREEDY)
        assert [list(each.token_ids) for each in answers] == [family.tokens(0, "greedy_new")] * 4
        assert session.stats.scheduler.preemptions > 0
        with pytest.raises(InvalidRequest, match="in both directions"):
            await session.prefix(family.messages(0))
