"""Session method to measure the speed of this machine in about half a minute."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from statistics import mean, median
from time import perf_counter
from typing import Protocol

import jax
import jax.numpy as jnp

from rekindle.client.handle import Handle
from rekindle.client.requests import Requests
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.device.place import Place
from rekindle.core.errors import InvalidRequest
from rekindle.notebook.progress.bars import ProgressBars
from rekindle.results.bench import Bench
from rekindle.results.generation import Generation
from rekindle.session.about import Memory
from rekindle.session.operations.engine import Operations

IN_FLIGHT = (1, 8, 32)
"""Numbers of requests in flight; those above `max_running` become `max_running`."""
PROMPT = 128
"""Tokens of the prompt for the time to the first token."""
FIRST_TOKENS = 3
"""Number of measured first tokens; the median counts."""
SHORT, LONG = 15, 48
"""Tokens of the other prompts, and of their answers."""
SECONDS = 5.0
"""Longest time for the answers of one number in flight; a slow model generates fewer tokens in it."""
LONG_WAIT = 1.0
"""Seconds of waiting for programs that the result mentions."""
FEWEST = 6
"""Smallest number of tokens of an answer."""
COPIED = 32 << 20
"""Number of float32 values of the array whose reading and writing measures the memory bandwidth."""
COPY_SECONDS = 0.7


class Measured(Protocol):
    """Interface of a session for its measurement."""

    _requests: Requests
    _operations: Operations

    @property
    def name(self) -> str: ...
    @property
    def asleep(self) -> bool: ...
    @property
    def requests(self) -> Mapping[int, Handle]: ...


def bench(session: Measured, *, progress: bool | None = None) -> Waits[Bench]:
    """Measure the speed of this machine with this session, in about half a minute: `await session.bench()`.

    Measured are the time to the first token of a new prompt of 128 tokens, and tokens per second with 1, 8 and 32
    requests in flight, or with `max_running` if it is smaller. All prompts are random: none is in the prefix cache, and
    none enters it. The session's counters of prompts and its latencies leave these requests out, as they would hide the
    hit rate of yours. Its counters of work (ticks, ended requests, generated tokens) include them, because the
    dashboard's tokens per second come from these. Programs still being compiled are awaited first, and one unmeasured
    round compiles the others; the result has their number.

    The memory bandwidth of the device is measured too, because it bounds the speed: a step reads all weights once.

    Args:
        progress: whether to draw a progress bar. The default is the `progress` of `open`.

    Returns:
        A `rekindle.Bench`: its numbers, drawn as a card; `to_frame()` is a data frame.

    Raises:
        InvalidRequest: the session is asleep, or its model generates nothing.
        Others: as in `generate`.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests, engine = session._requests, session._requests.engine.facts
    draws = requests.draws_progress(progress)
    requests.engine.check()
    requests.check_predicts()
    if session.asleep:
        raise InvalidRequest("a sleeping session generates nothing: await session.wake() first")
    others, compiled, start = len(session.requests), engine.stats().compilations, perf_counter()
    yield from session._operations.precompiled(draws)
    loads = _Loads(requests)
    with ProgressBars(draws) as bars:
        yield from loads.first_token(1)
        paces = yield from loads.paces(dict.fromkeys(loads.counts, FEWEST), partial(_show, bars, "preparing"))
        compiled, waited = engine.stats().compilations - compiled, perf_counter() - start
        bandwidth = yield from in_a_thread(lambda: bandwidth_of(engine.lanes[0].place), "bandwidth")
        first_token = yield from loads.first_token(FIRST_TOKENS)
        tokens = {count: _tokens_in(SECONDS, pace) for count, pace in paces.items()}
        paces = yield from loads.paces(tokens, partial(_show, bars, "measuring"))
    return Bench(
        session.name,
        f"{engine.deployment}, {engine.deployment.numbers}",
        loads.prompt_tokens,
        first_token,
        {count: count / pace for count, pace in paces.items() if pace},
        Memory.of(engine, asleep=False).on_each["weights"],
        bandwidth,
        compiled,
        waited if compiled or waited >= LONG_WAIT else 0.0,
        others,
    )


def _show(bars: ProgressBars, stage: str, done: int, total: int) -> None:
    bars.show(Progress(stage, done, total, "measurements"))


class _Loads:
    """Requests of a measurement: random prompts that no cache has."""

    def __init__(self, requests: Requests):
        limits = requests.engine.facts.limits
        self._requests, self._random = requests, Random()
        slots = limits.groups * limits.max_running * len(requests.engine.facts.lanes)
        self.counts = sorted({min(count, slots) for count in IN_FLIGHT})
        self.prompt_tokens = max(1, min(PROMPT, limits.max_context - 2))
        self._room = limits.max_context

    def first_token(self, count: int) -> Waits[float]:
        """Return the median seconds from the submission of a prompt to its first token, of `count` prompts in turn."""
        times = []
        for _ in range(count):
            (answer,) = yield from self._answers([self._submit(self.prompt_tokens, 1)])
            times.append(answer.timings.first_token)
        return median(times)

    def paces(self, tokens: Mapping[int, int], show: Callable[[int, int], None]) -> Waits[dict[int, float]]:
        """Return the seconds per token of a request, by the number of requests in flight.

        Args:
            tokens: the number of tokens of each answer, by the number of requests in flight.
            show: draws the number of finished measurements, and of all.
        """
        paces = {}
        for done, (count, length) in enumerate(tokens.items()):
            show(done, len(tokens))
            prompt = max(1, min(SHORT, self._room - length - 1))
            answers = yield from self._answers([self._submit(prompt, length) for _ in range(count)])
            paces[count] = mean(answer.timings.per_token(len(answer.token_ids)) or 0.0 for answer in answers)
        show(len(tokens), len(tokens))
        return paces

    def _answers(self, handles: Sequence[Handle]) -> Waits[list[Generation]]:
        answers = []
        try:
            for handle in handles:
                answers.append((yield from handle.wait_ended()))
        finally:
            for handle in handles:
                handle.cancel()
        return answers

    def _submit(self, prompt_tokens: int, tokens: int) -> Handle:
        prompt = [self._random.randrange(self._requests.vocab_size) for _ in range(prompt_tokens)]
        return self._requests.measure(tuple(prompt), tokens)


def bandwidth_of(place: Place | None) -> float | None:
    """Return the memory bandwidth of a device in bytes per second, from an array that is read and written.

    Returns:
        The best of several runs; None without a device in this process, or without room on it.
    """
    if place is None:
        return None
    with suppress(jax.errors.JaxRuntimeError):
        return max(_rates(place.first))
    return None


def _rates(device: jax.Device) -> Iterator[float]:
    """Yield the bytes per second of each run. The array is updated in place: a new one would measure its allocation."""
    step = jax.jit(lambda values: values + 1, donate_argnums=0)
    values = step(jax.device_put(jnp.zeros(COPIED, jnp.float32), device)).block_until_ready()
    end = perf_counter() + COPY_SECONDS
    while True:
        start = perf_counter()
        values = step(values).block_until_ready()
        now = perf_counter()
        yield 2 * values.nbytes / (now - start)
        if now >= end:
            return


def _tokens_in(seconds: float, pace: float) -> int:
    """Return the number of tokens to generate in a time; `pace` is the seconds per token."""
    return max(FEWEST, min(LONG, int(seconds / pace))) if pace > 0 else LONG
