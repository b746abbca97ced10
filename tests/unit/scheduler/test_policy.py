"""A policy decides the next request to leave the waiting queue, and nothing else."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.errors import ConfigError
from rekindle.core.policy import Candidate, Order, Policy, longest_prefix
from rekindle.core.scheduler.requests import waiting
from rekindle.core.scheduler.requests.waiting import CONSIDERED
from rekindle.settings.engine import Settings
from rekindle.testing import ByHand, expected_tokens, fake_session
from tests.waiting import PATIENCE

SHARED = list(range(40))
"""A prefix of two whole pages of 16 tokens and a half."""
BEFORE = 1000


def prompt_of(request_id: int) -> list[int]:
    """Make a prompt; no two begin alike."""
    return [request_id % 250, request_id // 250, 7]


def starts(policy: Policy, prompts: Sequence[Sequence[int]], before: Sequence[int] = (250,)) -> list[int]:
    """Return the numbers of requests, all waiting for one slot, in the order of their starts."""
    engine = ByHand(page_size=16, max_running=1, overlap=False, policy=policy)
    engine.admit(BEFORE, before, max_tokens=2)
    for request_id, prompt in enumerate(prompts):
        engine.admit(request_id, prompt, max_tokens=2)
    engine.drain()
    assert engine.started[0] == BEFORE
    return engine.started[1:]


def by(keys: Sequence[Any]) -> Order:
    """Make a policy from the keys of requests."""
    return lambda candidate: None if candidate.request.id == BEFORE else keys[candidate.request.id]


# Order


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_requests_start_by_the_key_and_those_of_equal_keys_as_they_came(keys: list[int]) -> None:
    order = starts(by(keys), [prompt_of(request_id) for request_id in range(len(keys))])
    assert order == sorted(range(len(keys)), key=keys.__getitem__)


def test_a_key_may_be_anything_that_can_be_compared() -> None:
    keys = [("b", 1.5), ("a", 2.5), ("a", -1.0)]
    assert starts(by(keys), [prompt_of(number) for number in range(3)]) == [2, 1, 0]


def test_a_constant_is_first_come_first_served() -> None:
    prompts = [prompt_of(number) for number in range(9)]
    assert starts(lambda candidate: 0, prompts) == starts("fcfs", prompts) == list(range(9))


@pytest.mark.parametrize("policy", ["longest-prefix", longest_prefix])
def test_a_policy_that_is_named_is_the_function_of_that_name(policy: Policy) -> None:
    prompts = [[*SHARED[: 16 * (number % 3)], 100 + number] for number in range(9)]
    assert starts(policy, prompts, before=SHARED) == [2, 5, 8, 1, 4, 7, 0, 3, 6]


def test_only_the_first_of_the_queue_are_considered_and_the_next_when_one_of_them_has_left() -> None:
    last = CONSIDERED + 1
    keys = [1] * (last + 1)
    keys[CONSIDERED] = keys[last] = 0
    order = starts(by(keys), [prompt_of(number) for number in range(last + 1)])
    assert order == [0, CONSIDERED, last, *range(1, CONSIDERED)]


def test_dfs_weight_starts_those_that_share_a_prefix_one_after_the_other_the_most_shared_first() -> None:
    engine = ByHand(page_size=16, max_running=8, overlap=False, policy="dfs-weight")
    shared, other = list(range(16)), list(range(100, 116))
    engine.admit(BEFORE, [*shared, *shared], max_tokens=1)
    engine.admit(BEFORE + 1, [*other, 1], max_tokens=1)
    engine.drain()
    engine.admit(BEFORE + 2, [250], max_tokens=2)
    prompts = [[7], [*other, 2], [*shared, 3], [*shared, *shared, 4], [*other, 5], [*shared, 6], [*shared, *shared, 8]]
    for number, prompt in enumerate(prompts):
        engine.admit(number, prompt, max_tokens=1)
    engine.drain()
    # Four begin with `shared`, of which two go on with it; two begin with `other`, and one with neither.
    assert engine.started[3:] == [3, 6, 2, 5, 1, 4, 0]


def test_longest_output_starts_first_what_may_generate_most() -> None:
    engine = ByHand(page_size=16, max_running=1, overlap=False, policy="longest-output")
    engine.admit(BEFORE, [250], max_tokens=2)
    for number, most in enumerate((3, 9, 1, 9, 40)):
        engine.admit(number, prompt_of(number), max_tokens=most)
    engine.drain()
    assert engine.started[1:] == [4, 1, 3, 0, 2]


def test_random_is_another_order_than_that_of_arrival_and_the_same_in_each_run() -> None:
    prompts = [prompt_of(number) for number in range(12)]
    order = starts("random", prompts)
    assert sorted(order) == list(range(12)) != order
    assert starts("random", prompts) == order


# Priorities


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), max_size=20), st.booleans())
def test_the_lowest_priority_starts_first_and_the_policy_orders_those_of_one(
    each: list[tuple[int, int]], by_key: bool
) -> None:
    keys = [key if by_key else 0 for _, key in each]
    engine = ByHand(page_size=16, max_running=1, overlap=False, policy=by(keys) if by_key else "fcfs")
    engine.admit(BEFORE, [250], max_tokens=2)
    for number, (priority, _) in enumerate(each):
        engine.admit(number, prompt_of(number), max_tokens=2, priority=priority)
    engine.drain()
    assert engine.started[1:] == sorted(range(len(each)), key=lambda number: (each[number][0], keys[number]))


def test_a_priority_is_seen_behind_any_number_of_others() -> None:
    engine = ByHand(page_size=16, max_running=1, overlap=False)
    engine.admit(BEFORE, [250], max_tokens=2)
    for number in range(CONSIDERED + 9):
        engine.admit(number, prompt_of(number), max_tokens=1)
    engine.admit(CONSIDERED + 9, prompt_of(999), max_tokens=1, priority=-1)
    engine.drain()
    assert engine.started[1] == CONSIDERED + 9


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_the_lowest_priority_loses_its_pages_first_and_then_the_last_admitted(first: int, overlap: bool) -> None:
    engine = ByHand(page_size=16, num_pages=7, max_running=3, overlap=overlap, host_cache_bytes=0)
    priorities = [5 if number == first else 0 for number in range(3)]
    for number, priority in enumerate(priorities):
        engine.admit(number, [number] * 15, max_tokens=40, priority=priority)
    victims: list[int] = []
    while engine.in_flight:
        victims += [request_id for plan in engine.settle() for request_id in plan.preempted]
    assert victims[:2] == [first, 2]
    for number in range(3):
        assert tuple(engine.tokens[number]) == expected_tokens([number] * 15, 40)


@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix", "dfs-weight", "longest-output", "random", by([0] * 999)])
def test_whoever_has_waited_long_goes_next_whatever_keeps_coming(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_TICKS", 30)
    engine = ByHand(page_size=16, max_running=1, overlap=False, policy=policy)
    engine.admit(BEFORE, SHARED, max_tokens=2)
    engine.admit(0, prompt_of(0), max_tokens=2, priority=9)
    for number in range(1, 60):  # always before it: by priority, by what is cached, and by their outputs
        engine.admit(number, [*SHARED, number], max_tokens=5)
        while engine.scheduler.stats.waiting > 3:
            engine.settle()
    engine.drain()
    assert 4 <= engine.started.index(0) <= 30 // 5 + 5


# The facts that a policy sees


def test_a_candidate_is_the_request_itself() -> None:
    candidates: dict[int, Candidate] = {}

    def policy(candidate: Candidate) -> int:
        candidates[candidate.request.id] = candidate
        return 0

    starts(policy, [[1, 2, 3], [4, 5]])
    assert candidates[0].request.prompt == (1, 2, 3)
    assert candidates[1].request.prompt == (4, 5)
    assert candidates[1].request.params.max_tokens == 2


def test_cached_tokens_are_those_of_whole_pages_and_looked_up_each_time() -> None:
    lookups: list[tuple[int, int]] = []

    def policy(candidate: Candidate) -> int:
        lookups.append((candidate.request.id, candidate.cached_tokens))
        return candidate.request.id

    starts(policy, [SHARED, [*SHARED, 1], [99]])
    assert [cached for request_id, cached in lookups if request_id == 2] == [0] * 3
    counts = [cached for request_id, cached in lookups if request_id == 1]
    assert (counts[0], counts[-1]) == (0, 32), "it waits while another computes what it begins with"


def test_ticks_waited_are_those_planned_since_it_came() -> None:
    waited: dict[int, list[int]] = {1: [], 2: []}

    def policy(candidate: Candidate) -> int:
        if candidate.request.id in waited:
            waited[candidate.request.id].append(candidate.waited)
        return 0

    engine = ByHand(page_size=16, max_running=1, overlap=False, policy=policy)
    engine.admit(0, [250], max_tokens=30)
    for request_id in (1, 2):
        for _ in range(10):
            engine.settle()
        engine.admit(request_id, prompt_of(request_id), max_tokens=5)
    engine.drain()
    # Request 0 has ticks 1 to 30, and request 1 the next five. A policy is asked when a slot is free.
    assert waited == {1: [19], 2: [9, 14]}


def test_ticks_waited_begin_anew_for_one_that_lost_its_pages() -> None:
    since: set[int] = set()

    def policy(candidate: Candidate) -> int:
        if candidate.started:
            since.add(engine.scheduler.stats.ticks - candidate.waited)
        return 0

    engine = ByHand(page_size=16, num_pages=6, max_running=2, overlap=False, policy=policy)
    for request_id in range(2):
        engine.admit(request_id, [request_id] * 15, max_tokens=50)
    losses: list[int] = []
    while engine.in_flight:
        losses += [plan.tick for plan in engine.settle() if plan.preempted]
    assert engine.scheduler.stats.preemptions == len(losses) == 1
    assert since == {losses[0] - 1}, "the plan that says so is the first that it waits for"


@pytest.mark.parametrize(("patience", "most"), [(0, 1), (5, 6), (12, 10), (1000, 40)])
def test_ageing_by_the_ticks_waited_ends_the_wait_of_one_that_all_others_would_pass(patience: int, most: int) -> None:
    def policy(candidate: Candidate) -> tuple[bool, int]:
        old = candidate.waited > patience
        return (not old, 0 if old else len(candidate.request.prompt))

    engine = ByHand(page_size=16, max_running=1, overlap=False, policy=policy)
    engine.admit(BEFORE, [250], max_tokens=2)
    engine.admit(0, [7] * 12, max_tokens=2)
    for number in range(1, 41):  # short ones keep coming
        engine.admit(number, prompt_of(number), max_tokens=1 + number % 4)
        while engine.scheduler.stats.waiting > 2:
            engine.settle()
    engine.drain()
    passed = engine.started.index(0) - 1
    assert passed <= most
    assert passed == 40 or patience < 1000, "without ageing, it is the last"


def test_one_that_lost_its_pages_is_known_to_have_started() -> None:
    started: dict[int, bool] = {}

    def policy(candidate: Candidate) -> int:
        started[candidate.request.id] = started.get(candidate.request.id, False) or candidate.started
        return 0

    engine = ByHand(page_size=16, num_pages=6, max_running=4, policy=policy)
    for request_id in range(4):
        engine.admit(request_id, [request_id] * 15, max_tokens=50)
    assert not any(started.values())
    engine.drain()
    assert engine.scheduler.stats.preemptions > 0
    assert any(started.values())


def test_a_policy_may_look_at_the_session() -> None:
    node_counts: list[int] = []

    def policy(candidate: Candidate) -> int:
        node_counts.append(session.cache.nodes)
        return 0

    with fake_session(page_size=16, policy=policy) as session:
        for _ in range(2):
            session.submit(token_ids=SHARED, max_tokens=2).result(timeout=PATIENCE)
    assert node_counts == [0, 2]


@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix"])
def test_one_that_lost_its_pages_goes_on_before_those_that_came_later(policy: Policy) -> None:
    engine = ByHand(page_size=16, num_pages=9, max_running=2, policy=policy, host_cache_bytes=0)
    engine.admit(0, SHARED, max_tokens=70)
    engine.admit(1, [9] * 15, max_tokens=60)
    for _ in range(8):
        engine.settle()
    for request_id in range(2, 8):
        engine.admit(request_id, [*SHARED, request_id], max_tokens=3)
    completed = []
    while engine.in_flight:
        plans = engine.settle()
        completed += [chunk.request_id for plan in plans for chunk in plan.chunks if chunk.completes is not None]
    assert engine.scheduler.stats.preemptions == 1
    assert completed == [1, 2, 3, 4, 5, 6, 7], "the one that lost its pages first"


@settings(max_examples=30)
@given(
    keys=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    last=st.booleans(),
    overlap=st.booleans(),
)
def test_no_policy_changes_what_is_generated_or_leaves_one_behind(keys: list[int], last: bool, overlap: bool) -> None:
    """Check also a policy with preempted requests last."""

    def policy(candidate: Candidate) -> tuple[bool, int]:
        return (candidate.started == last, keys[candidate.request.id])

    engine = ByHand(page_size=16, num_pages=6, max_running=4, overlap=overlap, policy=policy)
    prompts = [[request_id] * 15 for request_id in range(6)]
    for request_id, prompt in enumerate(prompts):
        engine.admit(request_id, prompt, max_tokens=20)
    engine.drain()
    assert engine.scheduler.stats.preemptions > 0
    assert [tuple(engine.tokens[request_id]) for request_id in range(6)] == [
        expected_tokens(prompt, 20) for prompt in prompts
    ]


# Wrong policies


@pytest.mark.parametrize("value", ["lifo", "", None, 3, ["fcfs"]])
def test_what_is_neither_a_name_nor_a_function_is_refused(value: Any) -> None:
    names = "'fcfs', 'longest-prefix', 'dfs-weight', 'longest-output', 'random'"
    expected = f"policy must be one of {names} or a function of a rekindle.Candidate, got "
    with pytest.raises(ConfigError) as refused:
        Settings(policy=value)
    assert str(refused.value).partition("; did you mean")[0] == f"{expected}{value!r}"


def raising(candidate: Candidate) -> int:
    raise LookupError(f"no priority for request {candidate.request.id}")


def incomparable(candidate: Candidate) -> object:
    return candidate.request.params


FAILURES: list[tuple[Order, str, str]] = [
    (
        raising,
        "the policy raising failed: it raised an error. It is not called again",
        "LookupError: no priority for request 0",
    ),
    (
        incomparable,
        "the policy incomparable failed: its keys cannot be compared. It is not called again",
        "TypeError: '<' not supported between instances of 'SamplingParams' and 'SamplingParams'",
    ),
]


@pytest.mark.parametrize(("policy", "beginning", "error"), FAILURES, ids=["raises", "cannot be compared"])
def test_a_policy_that_fails_is_told_of_once_and_all_requests_are_served(
    policy: Order, beginning: str, error: str
) -> None:
    prompts = [[5, number] for number in range(6)]
    expected = [expected_tokens(prompt, 4) for prompt in prompts]
    with fake_session(max_running=1, policy=policy) as session:
        with pytest.warns(RuntimeWarning) as reports:
            answers = session.generate_sync(token_ids=prompts, max_tokens=4)
        again = session.generate_sync(token_ids=prompts, max_tokens=4)  # where a warning would be an error
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in again] == expected
    (warning,) = reports
    first, *trace = str(warning.message).splitlines()
    assert first.startswith(beginning)
    assert trace[-1] == error


def test_a_warning_about_a_policy_has_its_calls_and_none_of_the_package() -> None:
    with pytest.warns(RuntimeWarning) as reports:
        starts(raising, [prompt_of(number) for number in range(3)])
    _, header, *calls, _ = str(reports[0].message).splitlines()
    assert header == "Traceback (most recent call last):"
    assert [line for line in calls if line.startswith("  File")] == [
        f'  File "{__file__}", line {raising.__code__.co_firstlineno + 1}, in raising'
    ]
    assert "    raise LookupError(" in calls[1]


@pytest.mark.parametrize("policy", [raising, functools.partial(raising)], ids=["function", "another callable"])
def test_each_session_tells_of_its_policy_also_where_python_would_not_repeat_a_warning(policy: Order) -> None:
    with warnings.catch_warnings(record=True) as reports:
        warnings.simplefilter("default")
        for _ in range(2):
            starts(policy, [prompt_of(0)])
    assert len({str(warning.message) for warning in reports}) == 1
    assert len(reports) == 2


def test_a_warning_is_of_the_line_where_the_policy_is() -> None:
    with pytest.warns(RuntimeWarning) as reports:
        starts(raising, [prompt_of(0)])
    assert (reports[0].filename, reports[0].lineno) == (__file__, raising.__code__.co_firstlineno)


def test_after_a_policy_has_failed_requests_start_as_they_came() -> None:
    calls: list[int] = []

    def policy(candidate: Candidate) -> int:
        calls.append(candidate.request.id)
        return -candidate.request.id if candidate.request.id != 3 else 1 // 0

    engine = ByHand(page_size=16, max_running=1, overlap=False, policy=policy)
    engine.admit(BEFORE, [250], max_tokens=20)
    for request_id in range(3):
        engine.admit(request_id, prompt_of(request_id), max_tokens=2)
    while len(engine.started) < 2:
        engine.settle()
    assert engine.started == [BEFORE, 2], "as long as it works it is obeyed"
    engine.admit(3, prompt_of(3), max_tokens=2)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError") as reports:
        engine.drain()
    assert engine.started == [BEFORE, 2, 0, 1, 3]
    assert len(reports) == 1
    assert calls.count(3) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_policy_that_exits_ends_no_engine(error: type[BaseException]) -> None:
    def policy(candidate: Candidate) -> int:
        raise error

    with fake_session(policy=policy, max_running=1) as session:
        with pytest.warns(RuntimeWarning, match=f"the policy .* failed: it raised an error(.|\n)*{error.__name__}"):
            answers = session.generate_sync(token_ids=[[5], [6], [7]], max_tokens=3)
        assert [answer.token_ids for answer in answers] == [expected_tokens([each], 3) for each in (5, 6, 7)]
        assert session.error is None
