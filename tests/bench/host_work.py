"""Measure the cost of a tick for the engine's thread: all host work with dispatching, no device work.

The thread's own CPU clock measures it, so the device's threads and other programs do not count. Beside it stands JAX's
part, the call of the compiled program: no scheduler can save it. `--tiny` takes a model whose steps leave the caches of
the CPU to the host, as a device of its own would. `--device 2` has the tokens of each step come 2 ms after those of the
step before, as from a device that works beside the host, and measures the time between ticks too.
"""

import argparse
import threading
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any

import jax
import numpy as np

import rekindle
from rekindle.core.buckets import Bucket
from tests.bench.workload import MODEL
from tests.compilations import programs_of

RUNNING, NEW_TOKENS = (1, 32, 128, 256), 200
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
    """A program that adds up the CPU time of its calls, on a device that takes some seconds for each."""

    def __init__(self, program: Any, device: float):
        self._program, self._device, self._ready = program, device, 0.0
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        """Call the program."""
        began = thread_time()
        pages, slots, outputs = self._program(*arguments)
        self.seconds += thread_time() - began
        if self._device:
            self._ready = max(self._ready, perf_counter()) + self._device
            outputs = replace(outputs, tokens=Late(outputs.tokens, self._ready))
        return pages, slots, outputs


def milliseconds_per_tick(model: str | Path, running: int, device: float) -> tuple[float, float, float]:
    """Return (all host work, JAX's call of the program, time between ticks), means over one decoding batch."""
    with rekindle.open_sync(
        model,
        max_running=running,
        decode_buckets=(running,),
        decode_steps=1,
        prefill_buckets=(512,),
        precompile="all",
        restore="off",
        progress=False,
    ) as session:
        engine = next(thread for thread in threading.enumerate() if thread.name == "rekindle-engine")
        prompts = [[100 + i] * 16 for i in range(running)]
        session.generate_sync(token_ids=prompts, max_tokens=4, ignore_eos=True)
        ready = programs_of(session._engine.facts).executables[0]._ready
        ready[Bucket(0, running)] = step = Timed(ready[Bucket(0, running)], device)
        ticks, cpu, began = session.stats.scheduler.ticks, cpu_seconds(engine), perf_counter()
        session.generate_sync(token_ids=prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
        ticks, passed = session.stats.scheduler.ticks - ticks, perf_counter() - began
        return 1e3 * (cpu_seconds(engine) - cpu) / ticks, 1e3 * step.seconds / ticks, 1e3 * passed / ticks


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns (default: 3)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model in place of SmolLM2")
    parser.add_argument("--device", type=float, default=0.0, metavar="MS", help="milliseconds of the device for a step")
    arguments = parser.parse_args()
    results: dict[int, list[tuple[float, float, float]]] = {running: [] for running in RUNNING}
    for _ in range(arguments.rounds):
        for running, figures in results.items():
            figures.append(milliseconds_per_tick(TINY if arguments.tiny else MODEL, running, 1e-3 * arguments.device))
    for running, figures in results.items():
        whole, call, tick = sorted(figures)[len(figures) // 2]
        least, most = min(figures)[0], max(figures)[0]
        spread = f"{least:.2f} to {most:.2f}"
        between = f"; a tick each {tick:.2f} ms" if arguments.device else ""
        print(f"{running:4} running: {whole:.2f} ms a tick ({spread}), {call:.2f} of it JAX's call{between}")
