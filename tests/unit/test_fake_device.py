"""The fake device tells a wrong plan from a right one: that is what it is for."""

import pytest

from rekindle.messages import Chunk, Dispatched, Message, Plan, Row
from rekindle.request import SamplingParams
from rekindle.testing import FakeStepper, draw_of, expected_tokens, fake_limits, next_token

LONG, SHORT = list(range(20)), [*range(50, 66), 9]


def tokens_of(plans: list[Plan]) -> list[int] | None:
    """The tokens of these plans; None where the device refuses one."""
    device, tokens = FakeStepper(fake_limits(page_size=16, max_running=2)), []
    for plan in plans:
        try:
            (dispatched,) = device.handle(plan)
        except (AssertionError, KeyError):
            return None
        assert isinstance(dispatched, Dispatched)
        tokens += dispatched.tokens
    return tokens


def plans(page: int = 2, start: int = 16, slot: int = 0, row_page: int = 2) -> list[Plan]:
    """Two prompts in chunks, then one more token for the longer one; the defaults are right."""
    greedy = SamplingParams()
    return [
        Plan(1, (Chunk(1, 1, 0, tuple(SHORT[:16]), (4,), None),), ()),
        Plan(2, (Chunk(0, 0, 0, tuple(LONG[:16]), (1,), None),), ()),
        Plan(3, (Chunk(0, 0, 16, tuple(LONG[16:]), (page,), greedy),), ()),
        Plan(4, (Chunk(1, 1, start, tuple(SHORT[16:]), (3,), greedy),), ()),
        Plan(5, (), (Row(0, slot, row_page),)),
    ]


RIGHT = [*expected_tokens(LONG, 1), *expected_tokens(SHORT, 1), expected_tokens(LONG, 2)[1]]


def test_a_right_plan_gives_the_tokens_that_are_computed_by_hand() -> None:
    assert next_token([3, 1, 4]) == 1 * 4 + 2 * 2 + 3 * 5
    assert expected_tokens([3, 1, 4], 2) == (23, 23 + 4 * 24)
    assert expected_tokens([3, 1, 4], 9, end_ids={23 + 4 * 24}) == (23, 23 + 4 * 24)
    assert tokens_of(plans()) == RIGHT


@pytest.mark.parametrize(
    "wrong",
    [
        plans(page=4),
        plans(page=0),
        plans(page=999),
        plans(start=32),
        plans(start=0),
        plans(start=17),
        plans(slot=1),
        plans(slot=7),
        plans(row_page=4),
        plans(row_page=0),
        [*plans()[:2], *plans()[:1:-1]],
        plans()[1:],
    ],
)
def test_a_wrong_page_slot_position_or_order_shows(wrong: list[Plan]) -> None:
    assert tokens_of(wrong) != RIGHT


@pytest.mark.parametrize(
    "wrong",
    [
        Plan(1, (), ()),
        Plan(1, (Chunk(0, 0, 0, (), (), SamplingParams()),), ()),
        Plan(1, (Chunk(0, 0, 0, (1,) * 20, (1,), SamplingParams()),), ()),
        Plan(1, (Chunk(0, 0, 0, (1,), (1,), SamplingParams()), Chunk(1, 0, 0, (1,), (2,), SamplingParams())), ()),
        Plan(1, (Chunk(0, 0, 0, (1,), (1,), SamplingParams()),), (Row(1, 1, 2),)),
        Plan(1, (Chunk(0, 0, 0, (1,) * 528, (1,) * 33, SamplingParams()),), ()),
    ],
    ids=["empty", "empty chunk", "too few pages", "slot twice", "no bucket", "over budget"],
)
def test_what_no_program_could_run_is_refused(wrong: Plan) -> None:
    assert tokens_of([wrong]) is None


def test_the_seed_counts_only_where_something_is_drawn() -> None:
    assert draw_of(SamplingParams(temperature=0.0, seed=5)) == 0
    assert draw_of(SamplingParams(temperature=1.0, seed=5)) == 5
    plan = Plan(1, (Chunk(0, 0, 0, (1, 2), (1,), SamplingParams(temperature=1.0, seed=5)),), ())
    assert tokens_of([plan]) == list(expected_tokens([1, 2], 1, draw=5)) != list(expected_tokens([1, 2], 1))


def test_another_actors_message_is_refused() -> None:
    message: Message = Dispatched(1, (), [])
    with pytest.raises(AssertionError, match="the stepper takes Plan"):
        FakeStepper(fake_limits()).handle(message)
