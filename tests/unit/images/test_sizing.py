"""Wishes for the pixels of one image count as in qwen-vl-utils where a family has them, and are refused elsewhere."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rekindle.client.calls.prompts import one_chat
from rekindle.core.errors import InvalidRequest
from rekindle.formats.images.parts import images_in, with_sources
from rekindle.formats.images.processors.families import sized
from rekindle.formats.images.processors.qwen import QwenImages
from rekindle.formats.images.sizing import PIXELS, Sizing
from rekindle.formats.images.writing import as_json
from tests.unit.images.test_marks import FAMILIES, WITH_VIDEOS, reader_of
from tests.unit.images.vision_goldens import smolvlm_images

PIXELS_OF_NOISE = np.random.default_rng(5).integers(0, 255, (90, 90, 3), np.uint8)
NORMALIZATION = smolvlm_images().normalization
RULES = QwenImages(56 * 56, 1280 * 28 * 28, 3, NORMALIZATION, patch=14, merge=2)
TOKEN = 28 * 28


@pytest.mark.parametrize(
    ("height", "width", "wishes", "grid"),  # of qwen-vl-utils 0.0.14, and then the processor of transformers
    [
        (300, 300, {"min_pixels": TOKEN, "max_pixels": 4 * TOKEN}, (2, 2)),
        (300, 300, {"max_pixels": 50 * TOKEN}, (7, 7)),
        (480, 640, {"max_pixels": 64 * TOKEN}, (6, 9)),
        (480, 640, {"min_pixels": 900 * TOKEN}, (26, 35)),
        (30, 40, {"min_pixels": 256 * TOKEN}, (14, 19)),
        (2000, 3000, {"max_pixels": 2000 * TOKEN}, (29, 43)),
        (2000, 3000, {"max_pixels": 16384 * TOKEN}, (29, 43)),
        (480, 640, {"resized_height": 280, "resized_width": 420}, (10, 15)),
        (480, 640, {"resized_height": 281, "resized_width": 9}, (10, 1)),
        (480, 640, {"resized_height": 5000, "resized_width": 5000}, (35, 35)),
        (100, 10, {"resized_height": 10, "resized_width": 10}, (2, 2)),
        (100, 10, {"min_pixels": TOKEN}, (4, 1)),
    ],
)
def test_wishes_count_as_in_qwen_vl_utils(
    height: int, width: int, wishes: dict[str, Any], grid: tuple[int, int]
) -> None:
    rules = sized(RULES, Sizing(**wishes))
    assert isinstance(rules, QwenImages)
    assert rules.grid(height, width) == grid
    assert rules.segments == RULES.segments, "no wish needs another program"
    assert repr(rules) != repr(RULES), "the identity of an image knows of the wish"
    patches = rules.patches(np.zeros((height, width, 3), np.uint8))
    assert patches.valid.sum() == grid[0] * grid[1] * 4


def test_low_detail_counts_beside_a_wish() -> None:
    rules = sized(RULES, Sizing("low", max_pixels=1000 * TOKEN))
    assert rules == replace(RULES.at_low_detail(), sizing=Sizing("low", max_pixels=1000 * TOKEN))


def part(**values: Any) -> dict[str, Any]:
    """Return the part of a message with an image, and some values beside."""
    return {"type": "image", "image": PIXELS_OF_NOISE, **values}


def tokens(family: str, **values: Any) -> int:
    """Return the number of tokens of a prompt with an image."""
    reader, _ = reader_of(family)
    chat = one_chat([{"role": "user", "content": [part(**values)]}], {})
    count = len(reader.read(chat).ids)
    assert reader.count(chat) == count
    return count


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_applies_wishes_or_refuses_them(family: str) -> None:
    if family in WITH_VIDEOS:
        assert tokens(family, max_pixels=8 * 8 * 32) < tokens(family)
        assert tokens(family, resized_height=16, resized_width=16) < tokens(family)
    else:
        for name in PIXELS[:2]:
            with pytest.raises(InvalidRequest, match="min_pixels"):
                tokens(family, **{name: 100_000})


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({"max_pixels": 0}, "positive integer"),
        ({"max_pixels": "9"}, "positive integer"),
        ({"min_pixels": True}, "positive integer"),
        ({"max_pixels": 1 << 40}, "positive integer"),
        ({"min_pixels": 9, "max_pixels": 8}, "at most its max_pixels"),
        ({"resized_height": 9}, "needs resized_width"),
        ({"max_pixels": 9, "detail": "much"}, "auto, low or high"),
    ],
)
def test_wishes_that_are_none_are_refused(wishes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        one_chat([{"role": "user", "content": [part(**wishes)]}], {})


def test_wishes_that_contradict_the_defaults_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least 3136"):
        sized(RULES, Sizing(max_pixels=100)).text(90, 90)


def test_wishes_beside_a_video_are_refused_by_name() -> None:
    frames = {"type": "video", "video": [PIXELS_OF_NOISE] * 2, "fps": 1, "max_pixels": 9}
    with pytest.raises(InvalidRequest, match="takes no max_pixels"):
        one_chat([{"role": "user", "content": [frames]}], {})


def test_wishes_stay_in_messages_and_in_their_files() -> None:
    messages = with_sources([{"role": "user", "content": [part(max_pixels=5000, detail="low")]}])
    for each in (messages, as_json(messages)):
        ((_, sizing),) = images_in(each)
        assert sizing == Sizing("low", max_pixels=5000)
