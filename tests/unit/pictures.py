"""Fake images in prompts of fake requests."""

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

from rekindle.core.request.picture import Picture
from rekindle.testing import fake_picture

ROWS: Final = 48
"""Rows of the buffer of embeddings: those of two of the largest images of `LAYOUTS`, which may share a query block."""
PLACEHOLDER: Final = 1
"""The token id of all images."""
Layout = tuple[int, int, int, int]
"""The tokens before an image, its number among those of its size, its segments, and the tokens of a segment."""
LAYOUTS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 2), st.integers(1, 3), st.sampled_from([1, 4, 8])), max_size=2
)


def place(prompt: list[int], layouts: Sequence[Layout]) -> tuple[list[int], list[Picture]]:
    """Return a prompt with images in the places of some of its tokens, as far as there is room; and the images."""
    prompt, pictures, end = list(prompt), [], 0
    for gap, number, segments, tokens in layouts:
        positions = range(end + gap, end + gap + segments * tokens)
        if positions.stop > len(prompt):
            break
        end = positions.stop
        prompt[positions.start : end] = [PLACEHOLDER] * len(positions)
        pictures.append(fake_picture(100 * number + tokens, positions, segments))
    return prompt, pictures
