"""Measure the cost of a tick for the engine's thread: all host work with dispatching, no device work.

The thread's own CPU clock measures it, so the device's threads and other programs do not count. Beside it stands JAX's
part, the call of the compiled program: no scheduler can save it. `--tiny` takes a model whose steps leave the caches of
the CPU to the host, as a device of its own would. `--device 2` has a device beside the host that takes 2 ms for a step
and computes nothing; a tick has as many steps as the session chooses, and its time is told over the device's.
"""

import argparse
import threading
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rekindle
from rekindle.core.buckets import MAX_STEPS, Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.outputs import NOT_COMPUTED, TickOutputs
from tests.bench.workload import MODEL
from tests.compilations import programs_of

RUNNING, NEW_TOKENS = (1, 8, 32, 128, 256), 400
TINY = Path(__file__).parents[1] / "goldens" / "families" / "llama3-rope"


def cpu_seconds(thread: threading.Thread) -> float:
    """Return a thread's CPU time so far. On Linux, the first number of schedstat is nanoseconds on CPU."""
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


class Late:
    """Tokens that can be read from some time on."""

    def __init__(self, tokens: jax.Array, ready: float):
        self._tokens, self._ready = tokens, ready

    def copy_to_host_async(self) -> None:
        """Start the copy."""
        self._tokens.copy_to_host_async()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Wait until they are ready."""
        sleep(max(0.0, self._ready - perf_counter()))
        return np.asarray(self._tokens)


class Timed:
    """A program that adds up the CPU time of its calls."""

    def __init__(self, program: Any):
        self._program = program
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        """Call the program."""
        began = thread_time()
        results = self._program(*arguments)
        self.seconds += thread_time() - began
        return results


class LateDevice:
    """A device beside the host, with some seconds for a step: it computes nothing, and its tokens can be read then.

    Its calls have the arrays of a step's calls, so they cost the host the same.
    """

    def __init__(self, program: Any, bucket: Bucket, seconds: float):
        self._program, self._bucket, self._seconds = program, bucket, seconds
        self._ready = 0.0
        self._idle: Any = None
        self.calls: list[tuple[float, float]] = []
        """The time of each call, and the seconds that it takes."""

    def __call__(self, *arguments: Any) -> Any:
        """Start the steps of a tick; the first call is the real program's, for the shapes of its outputs."""
        if self._idle is None:
            results = self._program(*arguments)
            self._idle = jax.jit(partial(self._run, results[2]), keep_unused=True, donate_argnums=(1, 2))
            return results
        layout = InputLayout.of(self._bucket, arguments[2])
        seconds = self._seconds * int(layout.unpack(arguments[-1]).row_steps.max())
        pages, slots, outputs = self._idle(*arguments)
        self.calls.append((perf_counter(), seconds))
        self._ready = max(self._ready, perf_counter()) + seconds
        return pages, slots, replace(outputs, tokens=Late(outputs.tokens, self._ready))

    def beside(self) -> float:
        """Return the time between calls over the seconds that they take, behind the ticks with prompts."""
        calls = self.calls[len(self.calls) // 4 :]
        return (calls[-1][0] - calls[0][0]) / sum(seconds for _, seconds in calls[:-1])

    def _run(self, outputs: TickOutputs, weights: Any, pages: Any, slots: Any, packed: jax.Array) -> Any:
        inputs = InputLayout.of(self._bucket, slots).unpack(packed)
        steps = jnp.arange(outputs.tokens.shape[1])
        tokens = 100 + (inputs.row_length[:, None] + steps) * 13 % 97
        is_new = steps < inputs.row_steps[:, None]
        zeros = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), outputs)
        return pages, slots, replace(zeros, tokens=jnp.where(is_new, tokens, NOT_COMPUTED))


@dataclass(frozen=True)
class Work:
    """Means over one decoding batch.

    Attributes:
        tick: milliseconds of CPU time of the engine's thread for a tick, with the call of the program.
        call: those of the call of the program.
        token: microseconds of CPU time of the engine's thread for a token.
        beside: the time of a tick over that of the device; 0 without one.
    """

    tick: float
    call: float
    token: float
    beside: float = 0.0


def work(model: str | Path, running: int, seconds: float) -> Work:
    """Return the host's work for a batch; on a device of so many seconds a step, or here, one step a tick, if 0."""
    with rekindle.open_sync(
        model,
        max_running=running,
        decode_buckets=(running,),
        decode_steps=MAX_STEPS if seconds else 1,
        prefill_buckets=(512,),
        precompile="all",
        restore="off",
        progress=False,
    ) as session:
        engine = next(thread for thread in threading.enumerate() if thread.name == "rekindle-engine")
        prompts = [[100 + i] * 16 for i in range(running)]
        options: Any = {"token_ids": prompts, "ignore_eos": True}
        ready, bucket = programs_of(session._engine.facts).executables[0]._ready, Bucket(0, running)
        device = LateDevice(ready[bucket], bucket, seconds)
        ready[bucket] = step = Timed(device if seconds else ready[bucket])
        session.generate_sync(**options, max_tokens=NEW_TOKENS if seconds else 4)
        step.seconds = 0.0
        device.calls.clear()
        ticks, cpu = session.stats.scheduler.ticks, cpu_seconds(engine)
        session.generate_sync(**options, max_tokens=NEW_TOKENS)
        cpu = cpu_seconds(engine) - cpu
        ticks = session.stats.scheduler.ticks - ticks
        return Work(
            tick=1e3 * cpu / ticks,
            call=1e3 * step.seconds / ticks,
            token=1e6 * cpu / (running * NEW_TOKENS),
            beside=device.beside() if seconds else 0.0,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns (default: 3)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model in place of SmolLM2")
    parser.add_argument("--device", type=float, default=0.0, metavar="MS", help="milliseconds of the device for a step")
    arguments = parser.parse_args()
    results: dict[int, list[Work]] = {running: [] for running in RUNNING}
    for _ in range(arguments.rounds):
        for running, figures in results.items():
            figures.append(work(TINY if arguments.tiny else MODEL, running, 1e-3 * arguments.device))
    for running, figures in results.items():
        figures.sort(key=attrgetter("tick"))
        middle = figures[len(figures) // 2]
        spread = f"{figures[0].tick:.2f} to {figures[-1].tick:.2f}"
        beside = f"; {middle.beside:.2f} times the device" if arguments.device else ""
        call = f"{middle.call:.2f} of it JAX's call, {middle.token:.1f} us a token"
        print(f"{running:4} running: {middle.tick:.2f} ms a tick ({spread}), {call}{beside}")
