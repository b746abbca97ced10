"""Requests with images, drafts, constraints and seeds under preemption, on a tiny SmolVLM: the tokens of each alone.

In the tier of the engine.
"""

import random
from typing import Any

import pytest

import rekindle
from tests.engine.pictured import GOLDEN
from tests.waiting import PATIENCE

pytestmark = pytest.mark.wide
IMAGES: Any = [GOLDEN / f"image-{index}.png" for index in range(3)]
SETTINGS: Any = {
    "dtype": "float32",
    "page_size": 16,
    "restore": "off",
    "progress": False,
    "max_running": 4,
    "max_prefill_tokens": 64,
    "draft": "lookup",
    "precompile": "lazy",
}
CANCELLED = (5, 17)
WAYS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "draft": None},
    {"seed": 7, "temperature": 1.0},
    {"temperature": 0, "choice": ["a b a b a b", "b a b a b a"]},
    {"temperature": 0, "logprobs": 1, "frequency_penalty": 1.0},
]


def asked(number: int) -> tuple[list[Any], dict[str, Any]]:
    """Return the conversation and the options of a request: some repeat words, for guesses, and some share images."""
    draw = random.Random(number)
    images = draw.sample(IMAGES, draw.choice((0, 1, 1, 2)))
    words = "one two three " * draw.randrange(1, 12)
    parts = [
        *({"type": "image", "image": image} for image in images),
        {"type": "text", "text": words + str(number % 5)},
    ]
    way = WAYS[number % len(WAYS)]
    length = {} if "choice" in way else {"max_tokens": draw.randrange(30, 90), "ignore_eos": True}
    return [{"role": "user", "content": parts}], {**way, **length}


def test_images_drafts_and_constraints_are_preempted_without_a_change_of_tokens() -> None:
    count = 24
    with rekindle.open_sync(GOLDEN, **SETTINGS) as roomy:
        alone = []
        for number in range(count):
            prompt, options = asked(number)
            alone.append(roomy.generate_sync(prompt, cache_salt=f"{number}", **options))
        longest = max(each.usage.prompt_tokens + len(each.token_ids) for each in alone)
        assert roomy.stats.scheduler.preemptions == 0
        assert roomy.stats.scheduler.accepted_tokens > 0
    pages = -(-longest // SETTINGS["page_size"]) + 6
    with rekindle.open_sync(GOLDEN, num_pages=pages, host_cache_bytes=0, **SETTINGS) as narrow:
        handles = []
        for number in range(count):
            prompt, options = asked(number)
            handles.append(narrow.submit(prompt, priority=number % 3, **options))
        for number in CANCELLED:
            handles[number].cancel()
        answers = {
            number: handle.result(timeout=PATIENCE) for number, handle in enumerate(handles) if number not in CANCELLED
        }
        stats = narrow.stats.scheduler
        assert stats.preemptions > 3
        assert (stats.running, stats.waiting) == (0, 0)
    for number, answer in answers.items():
        assert answer.token_ids == alone[number].token_ids
        assert answer.finish_reason == alone[number].finish_reason
