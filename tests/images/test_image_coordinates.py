"""Answers behind images with positions by row and column: several steps, drafts, preemption, and text beside them."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rekindle
from rekindle.core.scheduler.drafts.gain import Chances, Times
from rekindle.server import app
from rekindle_kernels.cpu.library import unavailable_reason
from tests.draft_heads import with_draft_head
from tests.engine.pictured import GREEDY, Pictured
from tests.unit.asgi import ask

pytestmark = [pytest.mark.anyio, pytest.mark.wide]
QWEN = Pictured("qwen3-vl")
TEXT: Any = [{"role": "user", "content": "Only text, only text, only text."}]
SETTINGS: Any = {"dtype": "float32", "page_size": 16, "max_prefill_tokens": 64, "max_running": 4, "restore": "off"}
WAYS: dict[str, dict[str, Any]] = {
    "several steps": {"decode_steps": 4},
    "drafts": {"draft": "lookup"},
    "deterministic": {"deterministic": True, "implementation": "xla"},
}


@pytest.mark.parametrize("way", WAYS)
async def test_greedy_tokens_are_those_of_transformers(way: str) -> None:
    with rekindle.open_sync(QWEN.path, **SETTINGS, **WAYS[way], precompile="lazy", progress=False) as session:
        prompts: Any = [QWEN.messages(0), TEXT, QWEN.messages(1), QWEN.messages(0, is_flipped=True)]
        answers: Any = await session.generate(prompts, **GREEDY)
        assert list(answers[0].token_ids) == QWEN.tokens(0, "greedy_new")
        assert list(answers[2].token_ids) == QWEN.tokens(1, "greedy_new")
        assert list(answers[3].token_ids) == QWEN.tokens(0, "flipped_new")
        if way == "drafts":
            options: Any = {**GREEDY, "max_tokens": 40}
            alone = await session.generate(TEXT, **options, logit_bias={20: 100.0})
            repeated = await session.generate(QWEN.messages(0), **options, logit_bias={20: 100.0})
            assert set(alone.token_ids) == set(repeated.token_ids) == {20}
            assert session.stats.scheduler.accepted_tokens > 0


async def test_guesses_of_the_own_head_leave_answers_to_images_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chances, "of", lambda self, match: 0.9)
    family = Pictured("qwen3_5")
    model = with_draft_head(family.path, tmp_path / "qwen3_5", "echo")
    with rekindle.open_sync(model, **SETTINGS, draft="mtp", precompile="lazy", progress=False) as session:
        prompts: Any = [family.messages(0), TEXT, family.messages(1), family.messages(0, is_flipped=True)]
        answers: Any = await session.generate(prompts, **GREEDY)
        assert list(answers[0].token_ids) == family.tokens(0, "greedy_new")
        assert list(answers[2].token_ids) == family.tokens(1, "greedy_new")
        assert list(answers[3].token_ids) == family.tokens(0, "flipped_new")
        assert session.stats.scheduler.drafted_tokens > 0


def facts_of(answer: Any) -> tuple[Any, ...]:
    """Return the tokens and the log-probabilities of an answer."""
    return answer.token_ids, [each.logprob for each in answer.logprobs]


def assert_same(facts: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Compare tokens, and log-probabilities: bit for bit with the kernels of CPUs."""
    assert facts[0] == expected[0]
    tolerance = 0 if unavailable_reason() is None else 1e-5
    np.testing.assert_allclose(facts[1], expected[1], rtol=0, atol=tolerance)


@pytest.fixture
def free_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all ticks seem to take the same time, however busy the machine is, so that each guess pays."""
    monkeypatch.setattr(Times, "of", lambda self, rows: 1.0)


@pytest.mark.usefixtures("free_guesses")
@pytest.mark.parametrize("name", ["qwen2_5-vl", "qwen3-vl", "qwen3_5", "smolvlm"])
async def test_right_guesses_behind_an_image_have_its_positions(name: str) -> None:
    """Let the model choose between two tokens, so that their repetition is guessed rightly."""
    family = Pictured(name)
    options: Any = {**GREEDY, "max_tokens": 48, "logprobs": 0, "logit_bias": {20: 100.0, 21: 100.0}}
    with rekindle.open_sync(family.path, **SETTINGS, draft="lookup", progress=False) as session:
        await session.precompiled(progress=False)
        for number in (0, 1):
            expected = facts_of(await session.generate(family.messages(number), **options, draft=False))
            assert set(expected[0]) == {20, 21}
            before = session.stats.scheduler.accepted_tokens
            assert_same(facts_of(await session.generate(family.messages(number), **options)), expected)
            assert session.stats.scheduler.accepted_tokens > before


@pytest.mark.usefixtures("free_guesses")
async def test_right_guesses_of_the_own_head_behind_an_image_have_its_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give all layers small results, so that the head guesses as the model from the last token does."""
    monkeypatch.setattr(Chances, "of", lambda self, match: 0.9)
    family = Pictured("qwen3_5")
    model = with_draft_head(family.path, tmp_path / "qwen3_5", "echo")
    tensors = load_file(model / "model.safetensors")
    last = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    tensors = {name: value * np.float32(0.2) if name.endswith(last) else value for name, value in tensors.items()}
    save_file(tensors, model / "model.safetensors")
    options: Any = {**GREEDY, "max_tokens": 48, "logprobs": 0}
    with rekindle.open_sync(model, **SETTINGS, draft="mtp", progress=False) as session:
        await session.precompiled(progress=False)
        for number in (0, 1):
            expected = facts_of(await session.generate(family.messages(number), **options, draft=False))
            assert len(set(expected[0])) > 4
            before = session.stats.scheduler.accepted_tokens
            assert_same(facts_of(await session.generate(family.messages(number), **options)), expected)
            assert session.stats.scheduler.accepted_tokens > before


async def test_a_request_goes_on_after_its_preemption() -> None:
    options: Any = {**GREEDY, "max_tokens": 60}
    with rekindle.open_sync(QWEN.path, **SETTINGS, num_pages=14, precompile="lazy", progress=False) as session:
        alone = await session.generate(QWEN.messages(0), **options)
        assert list(alone.token_ids[:16]) == QWEN.tokens(0, "greedy_new")
        text = session.submit(TEXT, temperature=0, max_tokens=90, ignore_eos=True)
        handles = [session.submit(QWEN.messages(0), cache_salt="anew", **options), text]
        assert (await handles[0]).token_ids == alone.token_ids
        assert len((await text).token_ids) == 90
        assert session.stats.scheduler.preemptions > 0


async def test_text_has_the_bits_of_the_model_without_its_tower() -> None:
    options: Any = {**GREEDY, "logprobs": 0, "prompt_logprobs": 0}
    answers = []
    choices: tuple[dict[str, Any], ...] = ({"image_bytes": 0}, {})
    for images in choices:
        with rekindle.open_sync(QWEN.path, **SETTINGS, **images, precompile="lazy", progress=False) as session:
            answer = await session.generate(TEXT, **options)
            numbers = [each.logprob for each in (*answer.prompt_logprobs[1:], *answer.logprobs)]
            answers.append((answer.token_ids, numbers))
            assert session.stats.scheduler.pictures == 0
    assert answers[0] == answers[1], "bit for bit"


async def test_a_look_has_the_coordinates_and_the_summands_of_images() -> None:
    with rekindle.open_sync(QWEN.path, **SETTINGS, precompile="lazy", progress=False) as session:
        for number in (0, 1):
            look = await session.look(QWEN.messages(number))
            lens = await session.logit_lens(look, top=1)
            assert lens.token_ids[-1, -1, 0] == QWEN.tokens(number, "greedy_new")[0]
            places = np.flatnonzero(np.array(look.token_ids) == 5)
            expected = QWEN.numbers[f"{number}_embedded"]
            assert np.abs(look.embedding[places] - expected).max() < 1e-5 * np.abs(expected).max()


async def test_embeddings_of_images_are_those_of_transformers_over_http_too() -> None:
    head = load_file(QWEN.path / "model.safetensors")["lm_head.weight"]
    template: Any = {"add_generation_prompt": True}
    with rekindle.open_sync(QWEN.path, **SETTINGS, precompile="lazy", progress=False) as session:
        for number in (0, 1):
            messages: Any = QWEN.messages(number)
            vector = await session.embed(messages, normalize=False, chat_template_kwargs=template)
            expected = QWEN.numbers[f"{number}_logits"][-1]
            assert np.abs(head @ vector - expected).max() < 1e-5 * np.abs(expected).max()
        parts = [_over_http(part) for part in messages[0]["content"]]
        body = {"messages": [{"role": "user", "content": parts}], "chat_template_kwargs": template}
        reply = await ask(app(session), "/v1/embeddings", body)
        (answer,) = reply.json["data"]
        assert np.abs(np.array(answer["embedding"]) - vector / np.linalg.norm(vector)).max() < 1e-6
        assert reply.json["usage"]["prompt_tokens"] == len(QWEN.tokens(1, "input_ids"))


def _over_http(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a message with its image in a data: URL."""
    if part["type"] != "image":
        return part
    data = base64.b64encode(part["image"].read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
