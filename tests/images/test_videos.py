"""Videos as lists of frames have the tokens, pixels, positions and answers of transformers, and of their own cache."""

import base64
import io
import json
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rekindle
from rekindle import InvalidRequest
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.core.messages import Conversation
from rekindle.core.request.picture import coordinates_of
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.images.parts import with_sources
from rekindle.formats.images.writing import as_json
from rekindle.server import app
from tests.engine.pictured import GREEDY, Pictured
from tests.unit.asgi import ask
from tests.unit.images.test_family_pixels import frames_of

pytestmark = pytest.mark.anyio
SETTINGS: Any = {"dtype": "float32", "page_size": 16, "max_prefill_tokens": 64, "max_running": 4, "restore": "off"}


class Filmed(Pictured):
    """A tiny model with its prompts with videos."""

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        """The prompts of the golden."""
        prompts: list[dict[str, Any]] = json.loads((self.path / "video.json").read_text())["prompts"]
        return prompts

    @cached_property
    def numbers(self) -> Any:
        """The arrays of the golden."""
        return np.load(self.path / "video.npz")

    def conversation(self, number: int, *, is_swapped: bool = False) -> list[dict[str, Any]]:
        """Return the messages of a golden, with its videos as arrays; or with the frames of each pair exchanged."""

        def part_of(part: dict[str, Any]) -> dict[str, Any]:
            if part["type"] != "video":
                return part
            frames = self.numbers[f"{number}_video_{part['video']}"]
            times = self.prompts[number]["times"][part["video"]]
            if is_swapped:
                order = [min(index ^ 1, len(frames) - 1) for index in range(len(frames))]
                frames = frames[order]
            return {"type": "video", "video": list(frames), "times": times}

        (message,) = self.messages(number)
        return [{**message, "content": [part_of(part) for part in message["content"]]}]


QWEN = Filmed("qwen3-vl")
FAMILIES = pytest.mark.parametrize(
    "model",
    [
        QWEN,
        *(pytest.param(Filmed(name), marks=pytest.mark.wide) for name in ("qwen2-vl", "qwen2_5-vl", "qwen3_5")),
    ],
    ids=lambda model: model.path.name,
)


@FAMILIES
@pytest.mark.parametrize("number", [0, 1])
def test_tokens_pixels_and_positions_are_those_of_transformers(model: Filmed, number: int) -> None:
    reader = PromptReader.of(open_checkpoint(model.path), 2048, picture_rows=4096)
    chat = Conversation(with_sources(model.conversation(number)), None, {}, False)
    prompt = reader.read(chat)
    assert list(prompt.ids) == model.tokens(number, "input_ids")
    videos = [picture for picture in prompt.pictures if hasattr(picture.source, "second")]
    valid = [picture.patches() for picture in videos]
    pixels = np.concatenate([frames_of(each, 4)[each.valid[0]] for each in valid])
    np.testing.assert_array_equal(pixels, model.numbers[f"{number}_pixel_values_videos"])
    coordinates = coordinates_of(prompt.pictures, 0, len(prompt.ids))
    np.testing.assert_array_equal(coordinates, model.numbers[f"{number}_positions"])
    assert len({picture.digest for picture in prompt.pictures}) == len(prompt.pictures)


@pytest.mark.wide
@FAMILIES
async def test_answers_are_those_of_transformers(model: Filmed) -> None:
    with rekindle.open_sync(model.path, **SETTINGS, precompile="lazy", progress=False) as session:
        prompts: Any = [model.conversation(0), model.conversation(1), model.conversation(1, is_swapped=True)]
        answers: Any = await session.generate(prompts, **GREEDY)
        assert list(answers[0].token_ids) == model.tokens(0, "greedy_new")
        assert list(answers[1].token_ids) == model.tokens(1, "greedy_new")
        assert list(answers[2].token_ids) == model.tokens(1, "swapped_new"), "no page is shared"
        embedded = session.stats.scheduler.embedded_pictures
        pairs = [sum(-(-len(times) // 2) for times in prompt["times"]) for prompt in model.prompts]
        alone = sum(len(times) % 2 for times in model.prompts[1]["times"])  # a last frame is its own pair
        assert embedded == sum(pairs) + 1 + pairs[1] - alone, "pairs of frames, and one image for two prompts"
        again = await session.generate(model.conversation(1), **GREEDY)
        assert list(again.token_ids) == model.tokens(1, "greedy_new")
        assert session.stats.scheduler.embedded_pictures == embedded, "cached pages need no tower"
        text = as_json(with_sources(model.conversation(0)))
        read: Any = json.loads(json.dumps(text))
        assert list((await session.generate(read, **GREEDY)).token_ids) == model.tokens(0, "greedy_new")


@pytest.mark.wide
async def test_a_video_by_http_is_a_list_of_frames_in_one_url() -> None:
    frames = [_png(frame) for frame in QWEN.numbers["0_video_0"]]
    url = {"url": f"data:video/jpeg;base64,{','.join(frames)}", "times": QWEN.prompts[0]["times"][0]}
    parts = QWEN.prompts[0]["messages"][0]["content"]
    content = [{"type": "video_url", "video_url": url} if part["type"] == "video" else part for part in parts]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    with rekindle.open_sync(QWEN.path, **SETTINGS, precompile="lazy", progress=False) as session:
        served = app(session)
        reply = await ask(served, "/v1/chat/completions", body)
        assert reply.json["usage"]["prompt_tokens"] == len(QWEN.tokens(0, "input_ids"))
        content[1] = {"type": "video_url", "video_url": {"url": "https://example.org/film.mp4"}}
        reply = await ask(served, "/v1/chat/completions", body)
        assert reply.status == 400
        assert "no video file is decoded" in reply.json["error"]["message"]


def _png(frame: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


FRAMES = list(np.zeros((3, 8, 8, 3), np.uint8))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"video": "film.mp4", "fps": 2}, "must be a list of its frames"),
        ({"video": FRAMES[:1], "fps": 2}, "must have 2 to 768 frames, got 1"),
        ({"video": FRAMES}, "times, the seconds of its frames, or fps, got neither"),
        ({"video": FRAMES, "fps": 2, "times": [0, 1, 2]}, "or fps, got both"),
        ({"video": FRAMES, "fps": 0}, "fps of a video must be a positive number"),
        ({"video": FRAMES, "times": [0, 1]}, "a number for each of its 3 frames"),
        ({"video": FRAMES, "times": [0, 2, 1]}, "must ascend from 0"),
        ({"video": [*FRAMES, np.zeros((8, 9, 3), np.uint8)], "fps": 1}, "must have one size, got 8 x 8 and 9 x 8"),
    ],
)
def test_a_bad_video_is_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        with_sources([{"role": "user", "content": [{"type": "video", **part}]}])


@pytest.mark.parametrize("family", ["gemma3", "smolvlm"])
def test_other_families_refuse_videos_by_name(family: str) -> None:
    reader = PromptReader.of(open_checkpoint(Pictured(family).path), 2048, picture_rows=4096)
    messages = [{"role": "user", "content": [{"type": "video", "video": FRAMES, "fps": 1}]}]
    with pytest.raises(InvalidRequest, match=r"only Qwen2-VL, Qwen2\.5-VL, Qwen3-VL and Qwen3\.5"):
        reader.read(Conversation(with_sources(messages), None, {}, False))
