"""Measure the cost of a tick for the engine's thread: all host work with dispatching, no device work.

The thread's own CPU clock measures it, so the device's threads and other programs do not count. Beside it stands JAX's
part, the call of the compiled program: no scheduler can save it. `--tiny` takes a model whose steps leave the caches of
the CPU to the host, as a device of its own would.
"""

import argparse
import threading
from pathlib import Path
from time import thread_time
from typing import Any

import rekindle
from rekindle.core.buckets import Bucket
from tests.bench.workload import MODEL
from tests.compilations import programs_of

RUNNING, NEW_TOKENS = (1, 32, 128, 256), 200
TINY = Path(__file__).parents[1] / "goldens" / "families" / "llama3-rope"


def cpu_seconds(thread: threading.Thread) -> float:
    """Return a thread's CPU time so far. On Linux, the first number of schedstat is nanoseconds on CPU."""
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


class Timed:
    """A program that adds up the CPU time of its calls."""

    def __init__(self, program: Any):
        self._program, self.seconds = program, 0.0

    def __call__(self, *arguments: Any) -> Any:
        """Call the program."""
        began = thread_time()
        try:
            return self._program(*arguments)
        finally:
            self.seconds += thread_time() - began


def milliseconds_per_tick(model: str | Path, running: int) -> tuple[float, float]:
    """Return (all host work, JAX's call of the program), both the mean over the ticks of one decoding batch."""
    with rekindle.open_sync(
        model,
        max_running=running,
        decode_buckets=(running,),
        prefill_buckets=(512,),
        precompile="all",
        restore="off",
        progress=False,
    ) as session:
        engine = next(thread for thread in threading.enumerate() if thread.name == "rekindle-engine")
        prompts = [[100 + i] * 16 for i in range(running)]
        session.generate_sync(token_ids=prompts, max_tokens=4, ignore_eos=True)
        ready = programs_of(session._loaded_engine).executables[0]._ready
        ready[Bucket(0, running)] = step = Timed(ready[Bucket(0, running)])
        ticks, cpu = session.stats.scheduler.ticks, cpu_seconds(engine)
        session.generate_sync(token_ids=prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
        ticks = session.stats.scheduler.ticks - ticks
        return 1e3 * (cpu_seconds(engine) - cpu) / ticks, 1e3 * step.seconds / ticks


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns (default: 3)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model in place of SmolLM2")
    arguments = parser.parse_args()
    results: dict[int, list[tuple[float, float]]] = {running: [] for running in RUNNING}
    for _ in range(arguments.rounds):
        for running, figures in results.items():
            figures.append(milliseconds_per_tick(TINY if arguments.tiny else MODEL, running))
    for running, figures in results.items():
        whole, call = sorted(figures)[len(figures) // 2]
        least, most = min(figures)[0], max(figures)[0]
        print(f"{running:4} running: {whole:.2f} ms a tick ({least:.2f} to {most:.2f}), {call:.2f} of it JAX's call")
