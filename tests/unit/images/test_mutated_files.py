"""A changed file is read, or refused with an error of Rekindle: no other error, no warning, and nothing left behind."""

from collections import Counter

import numpy as np
import pytest

from rekindle.core.errors import InvalidRequest
from rekindle.formats.images.reading import MOST_PIXELS
from rekindle.formats.images.room import ROOM
from rekindle.formats.images.sources import decoded, image_source
from tests.costs import Costs
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


def check_outcomes(outcomes: Counter[str]) -> None:
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.values()) > outcomes.total() / 20, "the mutations are neither harmless nor all fatal"
    assert (list(ROOM._waiting), ROOM._sizes) == ([], [])


def test_a_changed_file_is_read_or_refused() -> None:
    check_outcomes(Counter(outcome(mutated(seed)) for seed in range(300)))


@pytest.mark.deep
def test_ten_thousand_changed_files_are_read_or_refused_soon_and_leave_no_memory() -> None:
    outcomes, costs = Counter[str](), Costs(warm_up=300)
    for seed in range(10_000):
        data = mutated(seed)
        with costs.of(seed):
            outcomes[outcome(data)] += 1
    check_outcomes(outcomes)
    costs.check()
