"""Tell whether ticks overlap on this device: which of a tick's calls waits for the step before it, or for its own."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import rekindle
from rekindle.core.buckets import Bucket
from tests.compilations import programs_of
from tests.device.parts import Rows, main
from tests.device.widths import LLAMA_1B, TINY, write_checkpoint

STEP_SECONDS, ROUNDS = 10e-3, 12


def bare(side: int, *, copies: bool) -> Mapping[str, Any]:
    """Call a donated program twice in a row, as two ticks in flight, and read the results of both.

    Args:
        side: the side of its matrices.
        copies: whether each call is followed by `copy_to_host_async`.

    Returns:
        Milliseconds of each call in medians, and the call that waits for a step.
    """

    def step(weights: jax.Array, state: jax.Array, rounds: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = lax.fori_loop(0, rounds, lambda _, x: jnp.tanh(x @ weights), state)
        return state, state[0, :8].astype(jnp.int32)

    compiled, rounds = jax.jit(step, donate_argnums=(1,)), 8
    weights = jnp.full((side, side), 1 / side, jnp.bfloat16)
    state, tokens = jax.block_until_ready(compiled(weights, jnp.copy(weights), np.int32(rounds)))
    seconds = 0.0
    while seconds < STEP_SECONDS:
        rounds *= 2
        began = perf_counter()
        state, tokens = jax.block_until_ready(compiled(weights, state, np.int32(rounds)))
        seconds = perf_counter() - began
    times: list[list[float]] = []
    for _ in range(ROUNDS):
        marks, pending = [perf_counter()], []
        for _ in range(2):
            state, tokens = compiled(weights, state, np.int32(rounds))
            marks.append(perf_counter())
            if copies:
                tokens.copy_to_host_async()
            marks.append(perf_counter())
            pending.append(tokens)
        for tokens in pending:
            np.asarray(tokens)
            marks.append(perf_counter())
        times.append([after - before for before, after in pairwise(marks)] + [marks[5] - marks[0]])
    call, copy, second, second_copy, _, _, first = map(median, zip(*times, strict=True))
    waits = {"the second call": second > 0.5 * seconds, "the copy": max(copy, second_copy) > 0.5 * seconds}
    waits["the read of the first tokens"] = first > 1.6 * seconds
    return {
        "step, ms": 1e3 * seconds,
        "call, ms": 1e3 * call,
        "second call, ms": 1e3 * second,
        "copy, ms": 1e3 * copy,
        "first tokens after, ms": 1e3 * first,
        "what waits": next((name for name, is_late in waits.items() if is_late), "nothing"),
    }


class Tokens:
    """Tokens of a tick, with the time of each use."""

    def __init__(self, array: Any, mark: dict[str, float]):
        self._array, self._mark = array, mark

    def copy_to_host_async(self) -> None:
        """Start the copy."""
        began = perf_counter()
        self._array.copy_to_host_async()
        self._mark["copy"] = perf_counter() - began

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Read them."""
        self._mark |= {"asked": perf_counter(), "ready": self._array.is_ready()}
        tokens = np.asarray(self._array)
        self._mark["read"] = perf_counter()
        return tokens


def in_session(model: Path, running: int, tokens: int) -> Mapping[str, Any]:
    """Return the milliseconds of the calls of a session's ticks, in medians, at one step a tick."""
    settings: Any = {"max_running": running, "decode_buckets": (running,), "prefill_buckets": (64,), "decode_steps": 1}
    settings |= {"max_prefill_tokens": 64, "precompile": "all", "restore": "off", "progress": False}
    prompts = [[5 + number] * 16 for number in range(running)]
    with rekindle.open_sync(model, **settings) as session:
        session.generate_sync(token_ids=prompts, max_tokens=8, ignore_eos=True)
        ready, bucket = programs_of(session._engine.facts).executables[0]._ready, Bucket(0, running)
        program, ticks = ready[bucket], []

        def call(*arguments: Any) -> Any:
            began = perf_counter()
            pages, slots, outputs = program(*arguments)
            ticks.append({"at": began, "call": perf_counter() - began})
            return pages, slots, replace(outputs, tokens=Tokens(outputs.tokens, ticks[-1]))

        ready[bucket] = call
        session.generate_sync(token_ids=prompts, max_tokens=tokens, ignore_eos=True)
    ticks = ticks[len(ticks) // 4 : -2]
    between = [after["at"] - before["at"] for before, after in pairwise(ticks)]
    return {
        "tick, ms": 1e3 * median(between),
        "call, ms": 1e3 * median(tick["call"] for tick in ticks),
        "copy, ms": 1e3 * median(tick["copy"] for tick in ticks),
        "call to tokens, ms": 1e3 * median(tick["read"] - tick["at"] for tick in ticks),
        "wait in the read, ms": 1e3 * median(tick["read"] - tick["asked"] for tick in ticks),
        "tokens were there": mean(tick["ready"] for tick in ticks),
    }


def measure(rows: Rows) -> None:
    """Measure bare calls, then ticks of a session."""
    for name, copies in (("with copy_to_host_async", True), ("without", False)):
        rows.attempt(f"two calls, {name}", partial(bare, 128 if rows.tiny else 2048, copies=copies))
    with TemporaryDirectory() as directory:
        model = write_checkpoint(TINY if rows.tiny else LLAMA_1B, Path(directory) / "model")
        for running in (1, 2) if rows.tiny else (1, 32):
            rows.attempt(f"{running} running", partial(in_session, model, running, 40 if rows.tiny else 100))


if __name__ == "__main__":
    main(measure)
