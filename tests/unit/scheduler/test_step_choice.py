"""A tick takes as many steps as fit its time by measurement, and one while anything else waits for the device."""

from collections.abc import Sequence

import pytest

from rekindle.core.messages import Plan, Settled
from rekindle.core.scheduler.planner import StepCounts
from rekindle.testing import ByHand, expected_tokens

PROMPT = [1, 2, 3]


def measured(seconds: Sequence[float], *, shares_cores: bool = False, steps: int = 1) -> StepCounts:
    """Return the counts after ticks of one row of so many seconds each."""
    counts = StepCounts(shares_cores=shares_cores)
    for number, each in enumerate(seconds):
        counts.add(Settled(number, (), rows=1, seconds=each, steps=steps))
    return counts


@pytest.mark.parametrize(("step", "most"), [(0.0012, 8), (0.0031, 3), (0.0099, 1), (0.02, 1), (0.0004, 25)])
def test_the_steps_of_a_tick_fit_ten_milliseconds(step: float, most: int) -> None:
    for alone in (True, False):
        assert measured([step, step]).choose(1, alone=alone) == most
        assert measured([8 * step, 8 * step], steps=8).choose(1, alone=alone) == most
    assert measured([step, step], shares_cores=True).choose(1, alone=False) == most


@pytest.mark.parametrize(("step", "most"), [(0.0087, 4), (0.0101, 3), (0.019, 2), (0.05, 1), (0.002, 5)])
def test_one_request_alone_on_a_cpu_takes_up_to_four(step: float, most: int) -> None:
    assert measured([step, step], shares_cores=True).choose(1, alone=True) == most


def test_there_is_one_step_before_a_measurement_of_this_size_and_a_new_program_is_not_measured() -> None:
    assert measured([]).choose(1, alone=True) == 1
    assert measured([0.5]).choose(1, alone=True) == 1
    assert measured([0.5, 0.001]).choose(1, alone=True) == 10
    assert measured([0.001, 0.001]).choose(4, alone=True) == 1


def test_a_pause_of_the_machine_counts_little_and_a_slower_device_counts_soon() -> None:
    assert measured([0.001] * 5 + [3.0]).choose(1, alone=True) == 8
    assert measured([0.001] * 5 + [0.005] * 30).choose(1, alone=True) == 2


def test_a_tick_without_steps_measures_nothing() -> None:
    assert measured([0.001, 0.001] + [0.0] * 9, steps=0).choose(1, alone=True) == 1


def plans_of(engine: ByHand, ticks: int) -> list[Plan]:
    """Settle so many ticks; return their plans."""
    return [plan for _ in range(ticks) for plan in engine.settle()]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_new_request_waits_for_no_tick_of_several_steps_planned_after_it(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.testing.device.TICK_SECONDS", 0.0012)
    engine = ByHand(decode_steps=16, decode_buckets=(4,), max_running=4, overlap=overlap)
    engine.admit(0, PROMPT, 150)
    assert plans_of(engine, 10)[-1].steps == 8
    planned = engine.admit(1, PROMPT[:2], 150)
    settled = 0
    while 1 not in engine.tokens:
        planned += engine.settle()
        settled += 1
    assert [chunk.request_id for chunk in planned[0].chunks] == [1]
    assert settled == 2 + overlap, "its first token comes behind the ticks in flight and its prompt"
    assert plans_of(engine, 6)[-1].steps == 8
    engine.drain()
    for number, prompt in enumerate((PROMPT, PROMPT[:2])):
        assert tuple(engine.tokens[number]) == expected_tokens(prompt, 150)


def test_a_given_number_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.testing.device.TICK_SECONDS", 0.0012)
    for most, steps in ((1, 1), (3, 3), (16, 8)):
        engine = ByHand(decode_steps=most)
        engine.admit(0, PROMPT, 150)
        assert max(plan.steps for plan in plans_of(engine, 12)) == steps
