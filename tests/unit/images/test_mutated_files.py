"""A changed file is read, or refused with an error of Rekindle: no other error, no warning, and nothing left behind."""

from collections import Counter

import numpy as np
import pytest

from rekindle.core.errors import InvalidRequest
from rekindle.formats.images.reading import MOST_PIXELS
from rekindle.formats.images.room import ROOM
from rekindle.formats.images.sources import decoded, image_source
from tests.unit.images.mutations import mutated, originals


def outcome(data: bytes) -> str:
    """Read a file to its pixels, and return what came of it."""
    try:
        image = image_source(data)
        height, width = image.upright
        with decoded([image]) as (pixels,):
            assert pixels.shape == (height, width, 3)
            assert pixels.dtype == np.uint8
            assert height * width <= MOST_PIXELS
    except InvalidRequest:
        return "refused"
    return "read"


def test_the_originals_are_read() -> None:
    assert Counter(map(outcome, originals())) == {"read": len(originals())}


@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(300, 10_000), marks=pytest.mark.deep)], ids=len)
def test_a_changed_file_is_read_or_refused(seeds: range) -> None:
    outcomes = Counter(outcome(mutated(seed)) for seed in seeds)
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.values()) > len(seeds) / 20, "the mutations are neither harmless nor all fatal"
    assert (list(ROOM._waiting), ROOM._sizes) == ([], [])
