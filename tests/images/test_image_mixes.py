"""Images beside adapters, steering, lanes, priorities, cut prompts and cancelled requests, on a tiny SmolVLM."""

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anyio import to_thread
from PIL import Image
from safetensors.numpy import load_file, save_file

import rekindle
from rekindle import CheckpointError, InvalidRequest, RequestCancelled, Session, Steering
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.images.processed import ProcessedImage
from rekindle_kernels.cpu.library import unavailable_reason
from tests.engine.pictured import GOLDEN, GREEDY, NUMBERS, messages_of
from tests.unit.lora import config_of, merged, random_parts, tensors_of
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
IMAGES: Any = [GOLDEN / f"image-{index}.png" for index in range(3)]
SETTINGS: Any = {"dtype": "float32", "page_size": 16, "restore": "off", "progress": False, "max_running": 4}
RANK = 3


SIDES = iter(np.random.default_rng(0).integers(0, 255, (32, 40, 40, 3), np.uint8))
"""Pixels that no test of this process had, as embeddings and pages of an image outlive its test."""


def question(text: str, *images: Any) -> list[Any]:
    """Return a conversation of one message."""
    parts: list[Any] = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def logprobs(answer: Any) -> list[float]:
    return [token.logprob for token in answer.logprobs]


@pytest.mark.wide
async def test_adapters_change_the_decoder_and_share_the_embeddings_of_an_image() -> None:
    checkpoint = open_checkpoint(GOLDEN)
    parts = random_parts(checkpoint.config, RANK, 1)
    asked: Any = {**GREEDY, "logprobs": 0}
    with rekindle.open_sync(GOLDEN, max_adapters=1, max_adapter_rank=RANK, precompile="lazy", **SETTINGS) as session:
        await session.add_adapter("one", tensors=tensors_of(parts), config=config_of(parts))
        text: Any = [{"role": "user", "content": "Only text."}]
        cases: Any = [(messages_of(0), None), (messages_of(0), "one"), (text, "one"), (messages_of(1), "one")]
        handles = [session.submit(messages, adapter=name, **asked) for messages, name in cases]
        answers = [await handle for handle in handles]
        assert session.stats.scheduler.embedded_pictures == 3, "the tower is without adapters: one run for each image"
        assert list(answers[0].token_ids) == NUMBERS["0_greedy_new"].tolist()
        await session.update_weights(merged(checkpoint.config, checkpoint.tensors, parts))
        merged_answers = [await session.generate(messages, **asked) for messages, _ in cases]
    assert merged_answers[0].token_ids == answers[1].token_ids != answers[0].token_ids
    for answer, other in zip(answers[1:], merged_answers[1:], strict=True):
        assert answer.token_ids == other.token_ids
        np.testing.assert_allclose(logprobs(answer), logprobs(other), rtol=0, atol=2e-5)


@pytest.mark.wide
async def test_steering_changes_image_tokens_too_and_leaves_neighbours(session: Session) -> None:
    vector = np.random.default_rng(0).normal(0, 2, 32).astype(np.float32)
    asked: Any = {**GREEDY, "logprobs": 0}
    plain = await session.generate(messages_of(0), **asked)
    image_tokens = np.flatnonzero(np.array(plain.prompt_token_ids) == 4)
    changes = [Steering(0, vector), Steering(0, vector, tokens=slice(int(image_tokens[0]), int(image_tokens[-1]) + 1))]
    for steer in changes:
        both: list[Any] = [{}, {"steer": steer}]
        handles = [session.submit(messages_of(0), cache_salt="steered", **asked, **more) for more in both]
        beside, steered = [await handle for handle in handles]
        look = await session.look(messages_of(0), steer=steer)
        lens = await session.logit_lens(look, top=1)
        assert steered.token_ids[0] == lens.token_ids[-1, -1, 0]
        assert logprobs(steered) != logprobs(beside)
        assert beside.token_ids == plain.token_ids
        if unavailable_reason() is None:
            assert logprobs(beside) == logprobs(plain), "bit for bit"


@pytest.mark.wide
async def test_lanes_and_priorities_have_the_answers_of_each_alone(session: Session) -> None:
    prompts = [question(f"Is it {number}?", IMAGES[number % 3]) for number in range(9)]
    alone = [(await session.generate(prompt, **GREEDY)).token_ids for prompt in prompts]
    with rekindle.open_sync(GOLDEN, max_prefill_tokens=64, replicas=2, **SETTINGS) as lanes:
        handles = [lanes.submit(prompt, priority=-number % 4, **GREEDY) for number, prompt in enumerate(prompts)]
        assert [(await handle).token_ids for handle in handles] == alone
        assert 3 <= lanes.stats.scheduler.embedded_pictures <= 6, "once for each image and lane"
        assert lanes.stats.unexpected_compilations == 0
    few: Any = {**SETTINGS, "max_running": 1, "max_prefill_tokens": 64, "precompile": "lazy"}
    with rekindle.open_sync(GOLDEN, policy="longest-prefix", **few) as queue:
        handles = [queue.submit(prompt, priority=-number, **GREEDY) for number, prompt in enumerate(prompts)]
        assert [(await handle).token_ids for handle in handles] == alone


@pytest.mark.wide
async def test_a_chat_with_images_goes_on_after_its_first_images_are_cut(session: Session) -> None:
    chat = session.chat(truncate_prompt_tokens=220, **GREEDY)
    turns = [await chat.say(f"And {number}?", images=[IMAGES[0]]) for number in range(3)]
    size = turns[0].usage.image_tokens
    assert size == (await session.generate(question("And 0?", IMAGES[0]), **GREEDY)).usage.image_tokens
    assert all(turn.usage.image_tokens % size == 0 for turn in turns), "whole images"
    assert turns[2].usage.prompt_tokens <= 220 < sum(turn.usage.prompt_tokens for turn in turns)
    last = await chat.say("And now?", truncate_prompt_tokens=60)
    assert last.usage.prompt_tokens <= 60
    assert len(chat) == 8, "the chat itself keeps all messages"


class Gate:
    """Cutting of images into patches that waits for a signal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.began, self.opened, self.count = threading.Event(), threading.Event(), 0
        patches = ProcessedImage.patches

        def waiting(source: ProcessedImage) -> Any:
            self.count += 1
            self.began.set()
            assert self.opened.wait(PATIENCE)
            return patches(source)

        monkeypatch.setattr(ProcessedImage, "patches", waiting)


@pytest.mark.wide
@pytest.mark.parametrize("shared", [False, True])
async def test_a_request_may_be_cancelled_while_its_image_is_decoded(
    session: Session, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    gate = Gate(monkeypatch)
    image = Image.fromarray(next(SIDES))
    before = session.stats.scheduler
    leaving = session.submit(question("One?", image), **GREEDY)
    assert await to_thread.run_sync(gate.began.wait, PATIENCE)
    staying = session.submit(question("Two?", image), **GREEDY) if shared else None
    text: Any = [{"role": "user", "content": "Only text."}]
    meanwhile = await session.generate(text, **GREEDY)
    assert meanwhile.finish_reason == "length", "text does not wait for an image of another request"
    leaving.cancel()
    with pytest.raises(RequestCancelled):
        await leaving
    gate.opened.set()
    if staying is not None:
        assert len((await staying).token_ids) == 16
    again = await session.generate(question("One?", image), **GREEDY)
    alone = await session.generate(question("One?", image), cache_salt="alone", **GREEDY)
    assert again.token_ids == alone.token_ids
    after = session.stats.scheduler
    assert after.embedded_pictures == before.embedded_pictures + 1
    assert (after.running, after.waiting) == (0, 0)


@pytest.mark.wide
async def test_a_request_may_be_cancelled_between_two_tiles_of_its_image(session: Session) -> None:
    image = Image.fromarray(next(SIDES)).resize((96, 96))
    expected = await session.generate(question("Tiles?", image.copy()), cache_salt="first", **GREEDY)
    dark = image.point(lambda value: value // 2)
    session.pause_sync()
    handle = session.submit(question("Tiles?", dark), **GREEDY)
    for _ in range(200):
        record = await session.step()
        if record is not None and "embed" in str(record):
            break
    else:
        pytest.fail("no tile was embedded")
    handle.cancel()
    session.resume()
    with pytest.raises(RequestCancelled):
        await handle
    again = await session.generate(question("Tiles?", image), **GREEDY)
    assert again.token_ids == expected.token_ids
    assert len((await session.generate(question("Tiles?", dark), **GREEDY)).token_ids) == 16


@pytest.mark.wide
async def test_a_damaged_image_fails_its_requests_alone(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(source: ProcessedImage) -> Any:
        raise InvalidRequest("the file is damaged")

    image = Image.fromarray(next(SIDES))
    with monkeypatch.context() as patched:
        patched.setattr(ProcessedImage, "patches", damaged)
        handles = [session.submit(question(f"{number}?", image), **GREEDY) for number in range(2)]
        beside = session.submit([{"role": "user", "content": "Only text."}], **GREEDY)
        for handle in handles:
            with pytest.raises(InvalidRequest, match="the file is damaged"):
                await handle
        assert len((await beside).token_ids) == 16
    assert len((await session.generate(question("0?", image), **GREEDY)).token_ids) == 16


def other_model(directory: Path, arrays: Any) -> Path:
    """Write the golden with other weights."""
    directory.mkdir()
    for path in GOLDEN.glob("*.json*"):
        (directory / path.name).write_bytes(path.read_bytes())
    (directory / "chat_template.jinja").write_bytes((GOLDEN / "chat_template.jinja").read_bytes())
    save_file(arrays, directory / "model.safetensors")
    return directory


@pytest.mark.wide
async def test_new_weights_bring_their_tower_and_may_leave_it_out(tmp_path: Path) -> None:
    arrays = load_file(GOLDEN / "model.safetensors")
    changed = {
        name: np.roll(array, 1, 0) if "vision_model" in name and name.endswith("fc1.weight") else array
        for name, array in arrays.items()
    }
    text = {name: array for name, array in arrays.items() if "vision_model" not in name and "connector" not in name}
    other = other_model(tmp_path / "other", changed)
    golden = NUMBERS["0_greedy_new"].tolist()
    with rekindle.open_sync(other, precompile="lazy", **SETTINGS) as fresh:
        expected = list((await fresh.generate(messages_of(0), **GREEDY)).token_ids)
    assert expected != golden
    with rekindle.open_sync(GOLDEN, precompile="lazy", **SETTINGS) as session:
        cases: Any = ((None, golden), (other, expected), (text, expected), (arrays, golden), (changed, expected))
        for weights, answer in cases:
            if weights is not None:
                await session.update_weights(weights)
            for _ in range(2):
                assert list((await session.generate(messages_of(0), **GREEDY)).token_ids) == answer
        assert session.stats.scheduler.embedded_pictures == 4, "text alone keeps the embeddings of images"
        await session.update_weights(other)
        await session.sleep()
        await session.wake()
        assert list((await session.generate(messages_of(0), **GREEDY)).token_ids) == expected
        with pytest.raises(CheckpointError, match=r"missing .* of its vision"):
            await session.update_weights(
                {name: each for name, each in arrays.items() if "layers.1.mlp.fc2" not in name}
            )
        await session.sleep()
        await session.wake(GOLDEN)
        assert list((await session.generate(messages_of(0), **GREEDY)).token_ids) == golden


@pytest.mark.wide
async def test_a_running_request_goes_on_with_the_new_tower() -> None:
    arrays = load_file(GOLDEN / "model.safetensors")
    image = Image.open(GOLDEN / "image-0.png")
    with rekindle.open_sync(GOLDEN, precompile="lazy", **SETTINGS) as session:
        await session.pause()
        handle = session.submit(question("What?", image), **GREEDY)
        exchange = to_thread.run_sync(lambda: session.update_weights_sync(arrays, in_flight="keep"))
        session.resume()
        await exchange
        answer = await handle
        assert answer.token_ids == (await session.generate(question("What?", image), **GREEDY)).token_ids


@pytest.mark.wide
def test_a_cached_prompt_of_whole_pages_that_ends_with_an_image_has_its_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute the last block again, after a restart with the image on disk or without it."""
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    settings: Any = {**SETTINGS, "restore": "auto", "max_prefill_tokens": 64, "precompile": "lazy"}
    llava = GOLDEN.parent / "llava"
    images: Any = [llava / "image-0.png"]
    asked: Any = {**GREEDY, "max_tokens": 6, "logprobs": 0, "images": images}

    def ask(session: Session, end: str) -> tuple[list[Any], list[float], int]:
        texts = (f"Here is a picture{'x' * fill}: <image>{end}" for fill in range(64))
        text = next(text for text in texts if session.count_tokens(text, images=images) % 16 == 0)
        answer = session.generate_sync(text, **asked)
        return list(answer.token_ids), logprobs(answer), answer.cached_tokens

    for end, embedded in (("", 1), ("?", 0)):
        with rekindle.open_sync(llava, **settings) as session:
            first, again = ask(session, end), ask(session, end)
            session.save_sync(progress=False)
        assert first[2] == 0 < again[2]
        for kept in (True, False):
            if not kept:
                for directory in tmp_path.rglob("images"):
                    shutil.rmtree(directory)
            with rekindle.open_sync(llava, **settings) as session:
                assert ask(session, end) == again
                count = session.stats.scheduler.embedded_pictures
            assert count == (0 if kept else embedded), (
                "of a prompt that ends with a word, that word alone is read again"
            )
        assert first[:2] == again[:2]


@pytest.mark.wide
def test_mixtures_of_images_adapters_and_steering_compile_nothing_after_they_are_prepared() -> None:
    parts = random_parts(open_checkpoint(GOLDEN).config, RANK, 1)
    narrow: Any = {"max_prefill_tokens": 64, "prefill_buckets": (64,), "decode_buckets": (4,), "precompile": "all"}
    vector = np.ones(32, np.float32)
    mixtures: list[Any] = [{}, {"adapter": "one"}, {"steer": [Steering(1, vector)]}]
    mixtures.append(mixtures[1] | mixtures[2])
    with rekindle.open_sync(GOLDEN, max_adapters=1, max_adapter_rank=RANK, **narrow, **SETTINGS) as session:
        session.add_adapter_sync("one", tensors=tensors_of(parts), config=config_of(parts))
        session.generate_sync("text", max_tokens=2, **mixtures[2])
        session.precompiled_sync(progress=False)
        before = session.stats.compilations
        prompts: list[Any] = [question("What?"), question("What?", IMAGES[0])]
        for handle in [session.submit(prompt, **GREEDY, **options) for prompt in prompts for options in mixtures]:
            handle.result()
        assert session.stats.compilations == before
        assert session.stats.unexpected_compilations == 0


@pytest.mark.wide
def test_a_restart_encodes_no_image_again_unless_the_tower_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of 64 tokens do not end with an image, whose last tokens are computed again."""
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    copy = tmp_path / "model"
    shutil.copytree(GOLDEN, copy)
    settings: Any = {**SETTINGS, "page_size": 64, "max_prefill_tokens": 64, "restore": "auto", "precompile": "lazy"}
    prompts: list[Any] = [question("What is it?", IMAGES[1]), question("Is it blue, or not?", IMAGES[2], IMAGES[0])]

    def ask() -> tuple[list[Any], int]:
        with rekindle.open_sync(copy, **settings) as session:
            answers = [session.generate_sync(prompt, **GREEDY, logprobs=0) for prompt in prompts]
            session.save_sync(progress=False)
            return [(each.token_ids, logprobs(each)) for each in answers], session.stats.scheduler.embedded_pictures

    first, again = ask(), ask()
    assert (first[1], again[1]) == (3, 0)
    assert again[0] == first[0]
    tensors = load_file(copy / "model.safetensors")
    name = next(name for name in tensors if "vision" in name and "norm" in name)
    save_file({**tensors, name: tensors[name] * 2}, copy / "model.safetensors")
    with pytest.warns(RuntimeWarning, match="differ in weights"):
        other = ask()
    assert other[1] == 3
    assert other[0] != first[0]
