"""Measure the engine thread's work for a tick with 32 running requests: all host work and dispatching, no device work.

It is read from the thread's own CPU clock, so that the device's threads and other programs do not count.
"""

import argparse
import threading
from pathlib import Path

import rekindle
from tests.bench.workload import MODEL

RUNNING, NEW_TOKENS = 32, 200


def cpu_seconds(thread: threading.Thread) -> float:
    """Return a thread's CPU time so far. On Linux, the first number of schedstat is nanoseconds on CPU."""
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def milliseconds_per_tick() -> float:
    """Return the mean over the ticks of one batch that decodes."""
    with rekindle.open_sync(
        MODEL, decode_buckets=(RUNNING,), prefill_buckets=(512,), precompile="all", restore="off"
    ) as session:
        engine = next(t for t in threading.enumerate() if t.name == "rekindle-engine")
        prompts = [[100 + i] * 16 for i in range(RUNNING)]
        session.generate_sync(token_ids=prompts, max_tokens=4, ignore_eos=True)
        ticks, cpu = session.stats.scheduler.ticks, cpu_seconds(engine)
        session.generate_sync(token_ids=prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
        return 1e3 * (cpu_seconds(engine) - cpu) / (session.stats.scheduler.ticks - ticks)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"host work: {milliseconds_per_tick():.2f} ms a tick at {RUNNING} running")
