"""The fake device accepts right plans and refuses wrong ones."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest

from rekindle.core.messages import (
    Chunk,
    Copy,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    Message,
    Offload,
    Offloaded,
    Onload,
    Plan,
    Row,
    Scoring,
    Withdraw,
)
from rekindle.core.request.params import SamplingOptions, SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.testing import (
    VOCAB_SIZE,
    ByHand,
    CheckedScheduler,
    FakeHostTier,
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
    """Make the chunk of a whole prompt."""
    return Chunk(request_id, slot, 0, prompt, pages, pages, request(request_id, prompt, params))


def tokens_of(plans: list[Plan]) -> list[int] | None:
    """Return the tokens of plans, or None if the device refuses one."""
    device, tokens = FakeStepper(fake_limits(page_size=16, max_running=2)), []
    for plan in plans:
        try:
            (dispatched,) = device.handle(plan)
        except (AssertionError, KeyError):
            return None
        assert isinstance(dispatched, Dispatched)
        tokens += dispatched.outputs.values
    return tokens


def plans(page: int = 2, start: int = 16, slot: int = 0, row_page: int = 2) -> list[Plan]:
    """Make two prompts in chunks, then one more token for the longer one; the defaults are right."""
    longer, shorter = request(0, LONG), request(1, SHORT)
    return [
        Plan(1, (Chunk(1, 1, 0, SHORT[:16], (4,), (4,), None),), ()),
        Plan(2, (Chunk(0, 0, 0, LONG[:16], (1,), (1, page), None),), ()),
        Plan(3, (Chunk(0, 0, 16, LONG[16:], (page,), (1, page), longer),), ()),
        Plan(4, (Chunk(1, 1, start, SHORT[16:], (3,), (4, 3), shorter),), ()),
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
    """Check the bans after the prompt 5, 6 and the one new token 9."""
    params = SamplingParams.from_options(options)
    words = tuple(word for word in params.bad_words if not isinstance(word, str))
    sampling_request = Request(0, (5, 6), params, params.stop_token_ids, 100, words)
    assert banned_tokens(sampling_request, [5, 6, 9]) == banned
    assert next_token([3, 1, 4], banned={23, 24}) == 25


def test_the_seed_counts_only_where_something_is_drawn() -> None:
    assert draw_of(SamplingParams(temperature=0.0, seed=5)) == 0
    assert draw_of(SamplingParams(temperature=1.0, seed=5)) == 5
    plan = Plan(1, (whole(0, 0, (1, 2), (1,), SamplingParams(temperature=1.0, seed=5)),), ())
    assert tokens_of([plan]) == list(expected_tokens([1, 2], 1, draw=5)) != list(expected_tokens([1, 2], 1))


@pytest.fixture
def filled() -> FakeStepper:
    """Make a device with the first 16 tokens of LONG in page 1, and the rest in a part of page 2."""
    device = FakeStepper(fake_limits(page_size=16, max_running=2))
    device.handle(Plan(1, (whole(0, 0, LONG, (1, 2)),), ()))
    return device


def onloaded(staged: tuple[Any, ...], pages: tuple[int, ...] = (5,)) -> Plan:
    """Plan the rest of LONG after an onloaded page."""
    chunk = Chunk(7, 1, 16, LONG[16:], (6,), (5, 6), request(7, LONG))
    return Plan(9, (chunk,), (), (Onload(staged, pages),))


def test_a_page_that_was_saved_and_overwritten_comes_back_wherever_it_is_onloaded(filled: FakeStepper) -> None:
    (gathered,) = filled.handle(Offload(3, (1,), (40,)))
    filled.handle(Plan(2, (whole(0, 0, SHORT, (1, 2)),), ()))
    tier = FakeHostTier(capacity=9)
    assert tier.handle(gathered) == [Offloaded(3, is_stored=True)]
    (fetched,) = tier.handle(Fetch(7, (Copy(40, None),)))
    assert isinstance(fetched, Fetched)
    assert fetched.staged is not None
    assert tier.handle(Drop((40,))) == []
    (dispatched,) = filled.handle(onloaded(fetched.staged))
    assert isinstance(dispatched, Dispatched)
    assert dispatched.outputs.values == list(expected_tokens(LONG, 1))


def test_what_is_onloaded_is_read(filled: FakeStepper) -> None:
    with pytest.raises(AssertionError, match="the tokens are not the request's"):
        filled.handle(onloaded((LONG[1:17],)))


@pytest.mark.parametrize("plan", [onloaded((LONG[:16],), (0,)), onloaded((LONG[:16],) * 2, (5, 5)), onloaded(())])
def test_pages_that_cannot_be_onloaded_are_refused(filled: FakeStepper, plan: Plan) -> None:
    with pytest.raises((AssertionError, ValueError), match=r"for padding|onloaded twice|zip\(\)"):
        filled.handle(plan)


@pytest.mark.parametrize("page", [2, 3])
def test_a_page_is_not_offloaded_before_it_is_full(filled: FakeStepper, page: int) -> None:
    with pytest.raises(AssertionError, match=f"page {page} is offloaded before it is full"):
        filled.handle(Offload(0, (1, page), (4, 5)))


def test_the_fake_host_tier_refuses_what_the_scheduler_must_not_ask() -> None:
    tier, content = FakeHostTier(capacity=2), LONG[:16]
    assert tier.handle(Gathered(0, (3, 4), (SHORT[:16], content))) == [Offloaded(0, is_stored=True)]
    tier.handle(Drop((9,)))
    for message in (
        Gathered(1, (5,), (content,)),
        Gathered(1, (2,), (content,)),
        Fetch(0, (Copy(3, None), Copy(5, None))),
        Drop((2,)),
        Drop((9,)),
        Drop((3, 3)),
    ):
        with pytest.raises(AssertionError):
            copy.deepcopy(tier).handle(message)
    tier.handle(Gathered(1, (9,), (content,)))  # it was dropped ahead, so it takes no room
    assert tier.entries.keys() == {3, 4}
    tier.lose([Copy(3, None)])
    assert tier.handle(
        Fetch(
            0,
            (Copy(3, None), Copy(4, None)),
        )
    ) == [Fetched(0, None, (Copy(3, None),))]
    tier.handle(Drop((3, 4)))
    assert not tier.entries


class Scripted(CheckedScheduler):
    """A scheduler with a script of its answers and a record of its messages."""

    def __init__(self, limits: EngineLimits, script: list[list[Message]]):
        super().__init__(limits)
        self.messages: list[Message] = []
        self.script = iter(script)

    def handle(self, message: Message) -> list[Message]:
        self.messages.append(message)
        return next(self.script, [])


def test_saves_and_fetches_by_hand_stay_in_flight_until_they_are_settled() -> None:
    engine = ByHand(page_size=16)
    plan = Plan(1, (whole(0, 0, LONG, (1, 2)),), ())
    script: list[list[Message]] = [
        [plan, Offload(0, (1,), (5,)), Offload(1, (1,), (6,)), Offload(2, (1,), (7,))],
        [],
        [],
        [],
        [Fetch(7, (Copy(5, None),)), Drop((5,))],
        [Fetch(8, (Copy(6, None),))],
    ]
    scheduler = engine.scheduler = Scripted(engine.limits, script)
    assert engine.say(Withdraw(0)) == [plan]
    assert (len(engine.in_flight), len(engine.offloading), engine.host_tier.entries) == (1, 3, {})
    engine.settle_offload()
    engine.settle_offload()
    engine.settle_offload(ok=False)
    assert engine.host_tier.entries == {5: LONG[:16], 6: LONG[:16]}
    assert scheduler.messages[1:] == [
        Offloaded(0, is_stored=True),
        Offloaded(1, is_stored=True),
        Offloaded(2, is_stored=False),
    ]
    engine.settle()
    assert engine.host_tier.entries == {6: LONG[:16]}, "dropped after it was fetched"
    engine.settle_fetch()
    engine.settle_fetch(ok=False)
    assert engine.host_tier.entries == {}
    assert scheduler.messages[5:] == [Fetched(7, (LONG[:16],)), Fetched(8, None, (Copy(6, None),))]


def test_another_actors_message_is_refused() -> None:
    message: Message = Dispatched(1, (), (), [])
    with pytest.raises(TypeError, match="the stepper takes no"):
        FakeStepper(fake_limits()).handle(message)
