"""Tokens per second follow from the counter, whenever between two seconds it is read."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.notebook.board.rates import SECONDS, Rate, Rates

STEPS = st.lists(st.tuples(st.floats(0.01, 90.0), st.integers(0, 10_000)), min_size=1, max_size=40)


@given(STEPS, st.floats(0.0, 1e6))
def test_they_are_those_of_the_counter_drawn_as_a_line_through_all_looks(
    steps: list[tuple[float, int]], began: float
) -> None:
    rates = Rates()
    assert rates.look(began, 7) == Rate()
    times = [0.0, *accumulate(step for step, _ in steps)]
    counts = [7, *accumulate((count for _, count in steps), initial=7)][1:]
    for time, count in zip(times[1:], counts[1:], strict=True):
        rate = rates.look(began + time, count)
    newest = int(times[-1] + 1e-9)
    if abs(times[-1] - round(times[-1])) < 1e-6:
        return  # rounding decides whether that second is whole yet
    if not newest:
        assert rate == Rate()
        return
    marks = np.interp(range(max(0, newest - SECONDS), newest + 1), times, counts)
    assert rate.history == pytest.approx([later - earlier for earlier, later in pairwise(marks)], abs=0.01)
    assert rate.seconds == pytest.approx(times[-1] - max(0, newest - SECONDS))
    assert rate.mean is not None
    assert rate.mean * rate.seconds == pytest.approx(counts[-1] - marks[0], abs=0.01)
    back = min(2, newest)
    assert rate.now is not None
    assert rate.now * (times[-1] - newest + back) == pytest.approx(counts[-1] - marks[-1 - back], abs=0.01)


def test_a_steady_counter_has_one_rate_everywhere() -> None:
    rates = Rates()
    for look in range(400):
        rate = rates.look(look / 3, 10 * look)
    assert rate.now == pytest.approx(30)
    assert rate.mean == pytest.approx(30)
    assert rate.history == pytest.approx([30.0] * SECONDS)


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    rates = Rates()
    for look in range(70):
        rate = rates.look(float(look), min(look, 5) * 100)
    assert (rate.now, rate.mean) == (0, 0)
    assert rate.history == (0,) * SECONDS


def test_in_the_first_second_nothing_is_said() -> None:
    rates = Rates()
    assert [rates.look(at, 100) for at in (5.0, 5.00001, 5.9)] == [Rate()] * 3
    assert rates.look(6.0, 130).mean == pytest.approx(30)


def test_two_looks_at_one_time_are_one() -> None:
    rates = Rates()
    assert rates.look(1.0, 0) == rates.look(1.0, 0) == Rate()
    assert rates.look(2.5, 30) == rates.look(2.5, 30) == rates.look(2.0, 30)
