"""Pairs of frames of a Qwen2.5-VL are at the positions in time of transformers, by the frames of a second."""

import numpy as np
import pytest

from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.images.processors.families import IMAGE_SETTINGS, image_processor, videos_of
from rekindle.formats.images.processors.qwen_videos import AdjacentPairs
from rekindle.formats.images.videos import Video, video_source
from rekindle.formats.model_file import read_json
from tests.unit.images.vision_goldens import VISION

RATES = [0.25, 1 / 3, 0.7, 1, 1.5, 2, 3, 6, 7.5, 10, 12.5, 23.976, 24, 29.97, 30, 60]
"""Frames of a second."""


def pairs_of(per_second: int | None, kind: str = "qwen2_5_vl") -> AdjacentPairs:
    """Return the rules for videos of a model with so many positions in a second; None for the key's default."""
    directory = VISION / "qwen2_5-vl"
    config = read_json(directory / "config.json")
    tower = {key: value for key, value in config["vision_config"].items() if key != "tokens_per_second"}
    tower |= {} if per_second is None else {"tokens_per_second": per_second}
    files = {name: read_json(directory / f"{name}.json") for name in IMAGE_SETTINGS}
    config |= {"model_type": kind, "vision_config": tower}
    processor = image_processor(kind, directory, config, files, load_tokenizer(directory))
    assert processor is not None
    rules = videos_of(processor)
    assert isinstance(rules, AdjacentPairs)
    return rules


def times_of(count: int, fps: float) -> tuple[float, ...]:
    frames = [np.zeros((28, 28, 3), np.uint8)] * count
    video = video_source(frames, fps=fps)
    assert isinstance(video, Video)
    return video.times


@pytest.mark.parametrize("per_second", [2, 4, 25])
@pytest.mark.parametrize("fps", RATES)
def test_positions_are_those_of_transformers(per_second: int, fps: float) -> None:
    """Compute `second_per_grid_ts` = 2 / fps, the interval and its multiples in float32, each cut to an integer."""
    rules, interval = pairs_of(per_second), np.float32(per_second) * np.float32(2 / fps)
    for count in (2, 3, 7, 16, 61, 100):
        expected = (np.arange(-(-count // 2)).astype(np.float32) * interval).astype(np.int64).tolist()
        assert list(rules.positions(times_of(count, fps))) == expected


def test_a_second_has_four_positions_by_default_and_a_qwen2_vl_counts_pairs() -> None:
    times = times_of(8, 1)
    assert pairs_of(None).positions(times) == (0, 8, 16, 24)
    assert pairs_of(2).positions(times) == (0, 4, 8, 12), "as published"
    assert pairs_of(2, "qwen2_vl").positions(times) == (0, 1, 2, 3)
