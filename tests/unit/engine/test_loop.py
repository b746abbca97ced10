"""No step of the engine's loop takes long, for requests of any size: `tests/watchdog.py` judges the steps."""

import asyncio
import gc
import mmap
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast
from weakref import ref

import jax
import numpy as np
import pytest

from rekindle.assembly.limits.resolution import resolve_limits
from rekindle.assembly.looking import Looks
from rekindle.assembly.preparing.preparer import QUICK, Preparer
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.core.device.orders import DeviceState
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.functions import Key
from rekindle.core.device.state import Slots, empty_slots
from rekindle.core.engine.actor import answers
from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.engine.actors.stepper import Stepper
from rekindle.core.messages import (
    Admit,
    Chunk,
    Message,
    Output,
    Outputs,
    Plan,
    Settled,
    Submit,
    Texts,
    UseWeights,
    WeightsUsed,
)
from rekindle.core.policy import Policy
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.settings.engine import Settings
from rekindle.testing import FAKE_MODEL, fake_limits
from tests import watchdog as watchdogs
from tests.watchdog import LIMIT_SECONDS, REPEATED, Watchdog

LONG = 8000
MANY = 256


class Clock(threading.local):
    """Stands for `thread_time`: the CPU time of each thread passes by hand, and a little at each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let a watchdog see another clock, and no preemption of threads."""
    clock = Clock()
    monkeypatch.setattr(watchdogs, "thread_time", clock)
    monkeypatch.setattr(watchdogs, "_preemptions", lambda: 0)
    return clock


def run_on(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on a loop of its own, in a thread of this name."""
    thread = threading.Thread(target=lambda: asyncio.run(work()), name=name)
    thread.start()
    thread.join()


# The watchdog itself


async def steps(clock: Clock) -> None:
    async def actor() -> None:
        clock.now += 0.4 * LIMIT_SECONDS
        await asyncio.sleep(0)
        clock.now += 2 * LIMIT_SECONDS
        await asyncio.sleep(0)
        clock.now += 0.4 * LIMIT_SECONDS

    await asyncio.create_task(actor(), name="scheduler")


def test_the_longest_step_is_found_and_is_that_between_two_awaits(clock: Clock) -> None:
    watchdog = Watchdog("slow-loop", "here[asyncio]")
    with watchdog.watching():
        run_on("slow-loop", partial(steps, clock))
        longest = watchdog.longest["scheduler"]
        assert (longest.steps, longest.where) == ({"here": 3}, "here[asyncio]")
        assert 2 * LIMIT_SECONDS < longest.seconds < 2.1 * LIMIT_SECONDS
        assert watchdog.too_long() == [], "once may be the machine's fault"
        watchdog.where = "here[trio]"
        for _ in range(REPEATED - 1):
            run_on("slow-loop", partial(steps, clock))
    assert watchdog.too_long() == ["scheduler"]


def test_other_threads_and_garbage_collection_are_not_measured(clock: Clock) -> None:
    took: list[float] = []

    def takes_long(phase: str, info: dict[str, int]) -> None:
        """Let CPU time pass between the begin and the end of a collection."""
        if phase == "stop":
            clock.now += 10 * LIMIT_SECONDS

    async def collect() -> None:
        async def actor() -> None:
            began = clock.now
            gc.collect()
            took.append(clock.now - began)

        await asyncio.create_task(actor(), name="scheduler")

    watchdog = Watchdog("slow-loop")
    gc.callbacks.append(takes_long)  # the watchdog's own is behind it
    try:
        with watchdog.watching():
            run_on("another-loop", partial(steps, clock))
            assert not watchdog.longest
            run_on("slow-loop", collect)
    finally:
        gc.callbacks.remove(takes_long)
    assert watchdog.longest["scheduler"].seconds < LIMIT_SECONDS < took[0]
    run_on("slow-loop", partial(steps, clock))
    assert watchdog.longest["scheduler"].steps.total() == 1, "it watches no longer"


# What is large


def draw(length: int) -> list[int]:
    return [random.randrange(1, 250) for _ in range(length)]


class ByItself:
    """A scheduler with a step under the watchdog's measure for every message, and with its ticks in flight."""

    def __init__(self, watchdog: Watchdog, policy: Policy):
        model = replace(FAKE_MODEL, max_context=2 * LONG)
        settings = Settings(policy=policy, num_pages=4 * LONG // 64, host_cache_bytes=0, restore="off")
        self.limits = resolve_limits(settings, model, itemsize=4)
        self.scheduler = Scheduler(self.limits)
        self.plans: list[Plan] = []
        self._watchdog = watchdog

    def say(self, message: Message) -> None:
        with self._watchdog.step("scheduler"):
            messages = self.scheduler.handle(message)
        self.plans += [each for each in messages if isinstance(each, Plan)]

    def admit(self, request_id: int, prompt: Sequence[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        self.say(Admit(Request(request_id, tuple(prompt), params, frozenset(), self.limits.max_context)))

    def settle(self) -> None:
        plan = self.plans.pop(0)
        completed = [chunk.request_id for chunk in plan.chunks if chunk.completes is not None]
        self.say(Settled(plan.tick, tuple((each, 1) for each in [*completed, *(row.request_id for row in plan.rows)])))


@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix", lambda candidate: -candidate.cached_tokens])
@pytest.mark.parametrize(
    "cached",
    [0, pytest.param(LONG - 100, marks=pytest.mark.wide), pytest.param(LONG - 10, marks=pytest.mark.wide)],
)
def test_the_scheduler_with_long_prompts_and_a_full_queue(watchdog: Watchdog, policy: Policy, cached: int) -> None:
    one, document = ByItself(watchdog, policy), draw(LONG)
    if cached:
        one.admit(MANY, document, 1)
        while one.plans:
            one.settle()
    for request_id in range(MANY):
        one.admit(request_id, document[:cached] + draw(LONG - cached), 8)
    for _ in range(200):
        if one.plans:
            one.settle()
    assert one.scheduler.stats.ticks >= 200 if not cached else one.scheduler.stats.device_hit_tokens


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (QUICK, {}),
        (96, {"logit_bias": tuple((token, 1.0) for token in range(QUICK - 96))}),
        (96, {"allowed_token_ids": frozenset(range(QUICK - 96)), "min_tokens": 2}),
    ],
)
def test_a_request_that_is_made_on_the_loop(watchdog: Watchdog, prompt: int, options: dict[str, Any]) -> None:
    reader = PromptReader(None, 262_144, 1 << 20)
    preparer = Preparer(reader, frozenset({1}), None, Looks(reader.capacity, 0, 0))
    submit = Submit(0, tuple(draw(prompt)), SamplingParams(max_tokens=9, **options))
    assert preparer.is_quick(submit)
    with watchdog.step("intake"):
        outcome = preparer.outcome(submit)
    assert isinstance(outcome, Request)
    longer = (*tuple(draw(prompt)), 1)
    assert not preparer.is_quick(replace(submit, prompt=longer))
    assert not preparer.is_quick(replace(submit, params=replace(submit.params, bad_words=("no",))))
    assert not preparer.is_quick(replace(submit, prompt="text"))


class Weight:
    """An array with a record of the threads of its release."""

    def __init__(self, freed_by: list[int]):
        self._freed_by = freed_by

    def __del__(self) -> None:
        self._freed_by.append(threading.get_ident())


class Programs:
    """A stand-in for `Executables`, with programs without effect."""

    async def ready(self, key: Key) -> Any:
        return None

    async def call(self, key: Key, program: Any, *arguments: Any) -> Any:
        return arguments[0]


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_old_weights_are_freed_in_a_worker_thread() -> None:
    freed_by: list[int] = []
    weights: list[Any] = [Weight(freed_by)]
    stepper = Stepper(cast(Executables, Programs()), DeviceState(weights, (), cast(Slots, None)), fake_limits())
    del weights
    assert await stepper.handle(UseWeights(5, [], 2)) == [WeightsUsed(5, 2)]
    assert len(freed_by) == 1
    assert freed_by != [threading.get_ident()]


async def use_others(state: DeviceState) -> None:
    await Stepper(cast(Executables, Programs()), state, fake_limits()).handle(UseWeights(5, [], 1))


async def delete(state: DeviceState) -> None:
    state.delete()


@pytest.mark.anyio
@pytest.mark.both_loops
@pytest.mark.parametrize("end", [use_others, delete])
async def test_the_host_memory_of_weights_goes_with_them(end: Callable[[DeviceState], Awaitable[None]]) -> None:
    """Check it with Python's collector off: a collection has JAX free memory, as any call of JAX does."""
    memory = np.frombuffer(mmap.mmap(-1, 1 << 20), np.float32)
    reference = ref(memory)
    state = DeviceState([jax.block_until_ready(jax.device_put(memory))], (), cast(Slots, None))
    assert state.weights[0].unsafe_buffer_pointer() == memory.ctypes.data
    del memory
    gc.disable()
    try:
        await end(state)
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_what_changes_the_logits_is_packed_in_a_worker_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    packed_by: list[int] = []

    def pack(request: Request, generated: Sequence[int], vocabulary: int) -> None:
        packed_by.append(threading.get_ident())

    monkeypatch.setattr("rekindle.core.engine.actors.stepper.pack_adjustments", pack)
    stepper = Stepper(cast(Executables, Programs()), DeviceState([], (), empty_slots(2, 4, 251)), fake_limits())
    request = Request(0, (1,), SamplingParams(min_tokens=1), frozenset(), 99)
    await stepper._enter(Chunk(0, 0, 0, (1,), (1,), (1,), request))
    assert len(packed_by) == 1
    assert packed_by != [threading.get_ident()]


def scores(count: int, alternatives: int) -> tuple[TokenLogprob, ...]:
    top = tuple(TokenLogprob(token, "", -2.0, token + 1) for token in range(alternatives))
    return tuple(TokenLogprob(random.randrange(250), "", -1.0, 1, top) for _ in range(count))


@pytest.mark.parametrize(("rows", "of_prompt"), [(128, 0), (1, 512)])
def test_the_texts_of_many_log_probabilities(rows: int, of_prompt: int, byte_tokenizer: Tokenizer) -> None:
    """Run the actor on a loop of an engine's thread, where the watchdog measures every step."""
    params, token = SamplingParams(logprobs=20), tuple(byte_tokenizer.encode("A"))
    outputs = [
        Output(Request(place, (1,), params, frozenset(), 99), token, None, scores(1, 20), scores(of_prompt, 20))
        for place in range(rows)
    ]
    messages: list[Message] = []

    async def detokenize() -> None:
        detokenizer = Detokenizer(byte_tokenizer)
        messages.extend(await answers(detokenizer, Outputs(tuple(outputs))))

    async def main() -> None:
        await asyncio.create_task(detokenize(), name="detokenizer")

    run_on("rekindle-engine", main)
    (texts,) = messages
    assert isinstance(texts, Texts)
    assert [text.text for text in texts.texts] == ["A"] * rows
    assert all(each.text for text in texts.texts for score in text.prompt_logprobs for each in (score, *score.top))
    assert len(texts.texts[0].prompt_logprobs) == of_prompt
