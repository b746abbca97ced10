"""The fake device tells a wrong plan from a right one: that is what it is for."""

import math
from dataclasses import replace

import pytest

from rekindle.messages import Chunk, Dispatched, Message, Plan, Row, Scoring
from rekindle.request import Request, SamplingOptions, SamplingParams
from rekindle.testing import (
    VOCAB_SIZE,
    FakeStepper,
    banned_tokens,
    draw_of,
    expected_tokens,
    fake_limits,
    next_token,
)

LONG, SHORT = tuple(range(20)), (*range(50, 66), 9)


def request(request_id: int, prompt: tuple[int, ...], params: SamplingParams | None = None) -> Request:
    return Request(request_id, prompt, params or SamplingParams(), frozenset(), 1000)


def whole(
    request_id: int, slot: int, prompt: tuple[int, ...], pages: tuple[int, ...], params: SamplingParams | None = None
) -> Chunk:
    """A prompt in one chunk."""
    return Chunk(request_id, slot, 0, prompt, pages, request(request_id, prompt, params))


def tokens_of(plans: list[Plan]) -> list[int] | None:
    """The tokens of these plans; None where the device refuses one."""
    device, tokens = FakeStepper(fake_limits(page_size=16, max_running=2)), []
    for plan in plans:
        try:
            (dispatched,) = device.handle(plan)
        except (AssertionError, KeyError):
            return None
        assert isinstance(dispatched, Dispatched)
        tokens += dispatched.outputs
    return tokens


def plans(page: int = 2, start: int = 16, slot: int = 0, row_page: int = 2) -> list[Plan]:
    """Two prompts in chunks, then one more token for the longer one; the defaults are right."""
    longer, shorter = request(0, LONG), request(1, SHORT)
    return [
        Plan(1, (Chunk(1, 1, 0, SHORT[:16], (4,), None),), ()),
        Plan(2, (Chunk(0, 0, 0, LONG[:16], (1,), None),), ()),
        Plan(3, (Chunk(0, 0, 16, LONG[16:], (page,), longer),), ()),
        Plan(4, (Chunk(1, 1, start, SHORT[16:], (3,), shorter),), ()),
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
        Plan(1, (whole(0, 0, (), ()),), ()),
        Plan(1, (whole(0, 0, (1,) * 20, (1,)),), ()),
        Plan(1, (whole(0, 0, (1,), (1,)), whole(1, 0, (1,), (2,))), ()),
        Plan(1, (whole(0, 0, (1,), (1,)),), (Row(1, 1, 2),)),
        Plan(1, (whole(0, 0, (1,) * 528, tuple(range(1, 34))),), ()),
    ],
    ids=["empty", "empty chunk", "too few pages", "slot twice", "no bucket", "over budget"],
)
def test_what_no_program_could_run_is_refused(wrong: Plan) -> None:
    assert tokens_of([wrong]) is None


@pytest.mark.parametrize(
    "scoring",
    [Scoring(0, (1, 3), 2), Scoring(1, (1, 2), 2), Scoring(-1, (0, 1), 2), Scoring(4, (7,), 2)],
    ids=["wrong tokens", "one too late", "before the chunk", "behind the chunk"],
)
def test_a_prompt_that_is_scored_against_wrong_tokens_shows(scoring: Scoring) -> None:
    right = replace(whole(0, 0, (0, 1, 2, 3), (1,)), scoring=Scoring(0, (1, 2, 3), 2))
    assert tokens_of([Plan(1, (right,), ())]) == list(expected_tokens([0, 1, 2, 3], 1))
    assert tokens_of([Plan(1, (replace(right, scoring=scoring),), ())]) is None


def test_the_tokens_of_a_completed_prompt_are_those_of_its_request() -> None:
    right = replace(whole(0, 0, LONG[:4], (1,)), completes=request(0, LONG[:3]), generated=LONG[3:4])
    assert tokens_of([Plan(1, (right,), ())]) == list(expected_tokens(LONG[:4], 1))
    assert tokens_of([Plan(1, (replace(right, generated=()),), ())]) is None
    assert tokens_of([Plan(1, (replace(right, completes=request(0, (9, 9, 9))),), ())]) is None


@pytest.mark.parametrize(
    ("options", "banned"),
    [
        ({}, set()),
        ({"repetition_penalty": 1.1}, {5, 6, 9}),
        ({"frequency_penalty": 0.5}, {9}),
        ({"presence_penalty": 0.5}, {9}),
        ({"repetition_penalty": 0.9, "frequency_penalty": -1, "presence_penalty": -1}, set()),
        ({"logit_bias": {3: -math.inf, 4: -0.1, 5: 2.0}}, {3, 4}),
        ({"bad_words": [[3], [9, 4], [6, 9, 5], [6, 8]]}, {3, 4, 5}),
        ({"bad_words": [[1, 5, 6, 9, 7]]}, set()),
        ({"allowed_token_ids": range(2, VOCAB_SIZE)}, {0, 1}),
        ({"min_tokens": 2, "stop_token_ids": [7, 8]}, {7, 8}),
        ({"min_tokens": 1, "stop_token_ids": [7, 8]}, set()),
        ({"allowed_token_ids": [5, 6], "repetition_penalty": 2.0}, {*range(VOCAB_SIZE)} - {5, 6}),
    ],
)
def test_each_parameter_bans_what_it_says(options: SamplingOptions, banned: set[int]) -> None:
    """After the prompt 5, 6 and one token of output, 9."""
    params = SamplingParams.from_options(options)
    words = tuple(word for word in params.bad_words if not isinstance(word, str))
    asked = Request(0, (5, 6), params, params.stop_token_ids, 100, words)
    assert banned_tokens(asked, [5, 6, 9]) == banned
    assert next_token([3, 1, 4], banned={23, 24}) == 25


def test_the_seed_counts_only_where_something_is_drawn() -> None:
    assert draw_of(SamplingParams(temperature=0.0, seed=5)) == 0
    assert draw_of(SamplingParams(temperature=1.0, seed=5)) == 5
    plan = Plan(1, (whole(0, 0, (1, 2), (1,), SamplingParams(temperature=1.0, seed=5)),), ())
    assert tokens_of([plan]) == list(expected_tokens([1, 2], 1, draw=5)) != list(expected_tokens([1, 2], 1))


def test_another_actors_message_is_refused() -> None:
    message: Message = Dispatched(1, (), (), [])
    with pytest.raises(AssertionError, match="the stepper takes Plan"):
        FakeStepper(fake_limits()).handle(message)
