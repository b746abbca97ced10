"""The positions shown to each token are those of its image or of its text."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.inputs import InputLayout, TickInputs
from rekindle.core.device.tick_mixer import group_ends_of

SLOTS = 4


def inputs_of(
    blocks: list[tuple[int, int, int]], images: list[tuple[int, int]], lengths: tuple[int, ...] = (0,)
) -> TickInputs[Any]:
    """Return inputs of blocks, as (slot, start, count), with images in ranges of their tokens, and prompts' lengths."""
    layout = InputLayout(Bucket(16 * len(blocks), 0, pictures=True), SLOTS - 1, 8)
    inputs = layout.unpack(layout.padding())
    slots, starts, counts = (np.array(each, np.int32) for each in zip(*blocks, strict=True))
    embedded = np.full(16 * len(blocks), -1, np.int32)
    for first, last in images:
        embedded[first:last] = 7
    own: Any = {"block_slot": slots, "block_start": starts, "block_count": counts, "embedded": embedded}
    own["block_length"] = np.resize(np.array(lengths, np.int32), len(blocks))
    arrays: Any = {name: jnp.asarray(array) for name, array in own.items()}
    return replace(inputs, **arrays)


def ends_of(inputs: TickInputs[Any], *, whole_texts: bool) -> list[int]:
    flat: list[int] = np.asarray(group_ends_of(inputs, whole_texts=whole_texts)).reshape(-1).tolist()
    return flat


def test_a_text_is_shown_to_all_of_its_tokens() -> None:
    blocks = [(0, 0, 16), (0, 16, 5), (2, 0, 16), (2, 16, 9), (3, 0, 0)]
    until = ends_of(inputs_of(blocks, [], (21, 21, 20, 20, 0)), whole_texts=True)
    assert until[:21] == [21] * 21
    assert until[32:52] == [20] * 20
    assert until[52:57] == list(range(21, 26)), "an answer is causal"
    assert until[21:32] == list(range(22, 33)), "padding sees no less than its position"


def test_an_image_is_shown_to_its_tokens_and_to_no_other() -> None:
    blocks = [(0, 32, 16), (0, 48, 16), (1, 64, 16), (1, 0, 16)]
    until = ends_of(inputs_of(blocks, [(3, 20), (22, 32), (32, 48), (48, 50)]), whole_texts=False)
    assert until[:3] == [33, 34, 35]
    assert until[3:20] == [52] * 17
    assert until[20:22] == [53, 54]
    assert until[22:32] == [64] * 10, "the next block is of another request"
    assert until[32:48] == [80] * 16, "the next block is not the next of its request"
    assert until[48:50] == [2, 2]
    assert until[50:] == list(range(3, 17))
