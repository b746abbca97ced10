"""Measure a whole engine: cold and warm starts, memory, and tokens a second."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.device.parts import ROOT, Rows, main
from tests.device.widths import LLAMA_1B, TINY, write_checkpoint

START = """
import json, sys, time
began = float(sys.argv[1])
import rekindle
session = rekindle.open_sync(sys.argv[2], progress=False, **json.loads(sys.argv[3]))
opened = time.time()
session.generate_sync(token_ids=list(range(2, 2 + int(sys.argv[4]))), max_tokens=1, ignore_eos=True)
first = time.time()
session.precompiled_sync(progress=False)
stats = session.stats
print(json.dumps({"opened, s": opened - began, "first token, s": first - began, "compiled": stats.compilations}))
session.close_sync()
"""
BATCH = """
import json, statistics, sys, threading, time
import jax
import rekindle
from rekindle.core.buckets import Bucket
from rekindle.core.messages import Settled
from tests.bench.host_work import Timed, cpu_seconds
from tests.compilations import programs_of
session = rekindle.open_sync(sys.argv[1], progress=False, **json.loads(sys.argv[2]))
session.precompiled_sync(progress=False)
memory = session.memory
engine = next(thread for thread in threading.enumerate() if thread.name == "rekindle-engine")
ready = programs_of(session._engine.facts).executables[0]._ready
firsts = []
for number in range(6):
    began = time.perf_counter()
    session.generate_sync(token_ids=[300 + number] * int(sys.argv[3]), max_tokens=1, ignore_eos=True)
    firsts.append(1e3 * (time.perf_counter() - began))
ticks = []
for running in map(int, sys.argv[4].split(",")):
    prompts = [[2 + number] * int(sys.argv[3]) for number in range(running)]
    options = dict(max_tokens=int(sys.argv[5]), ignore_eos=True)
    warm_up = [[2 + number] * 16 for number in range(running)]  # the first call of a program takes longer
    session.generate_sync(token_ids=warm_up, **options | {"max_tokens": 4})
    began = time.perf_counter()
    session.generate_sync(token_ids=prompts, **options)
    whole = time.perf_counter() - began
    bucket = Bucket(0, running)
    step = Timed(ready.get(bucket))
    ready |= {bucket: step} if bucket in ready else {}
    seen, cpu = [], cpu_seconds(engine)
    with session.watch(lambda record: seen.append(record.message) if isinstance(record.message, Settled) else None):
        began = time.perf_counter()
        session.generate_sync(token_ids=prompts, **options)
        seconds = time.perf_counter() - began
    full = [each for each in seen if each.rows] or seen  # of several steps, no tick has its rows
    ticks.append({
        "running": running,
        "tokens/s": running * int(sys.argv[5]) / whole,
        "tokens/s, cached": running * int(sys.argv[5]) / seconds,
        "host, ms": 1e3 * (cpu_seconds(engine) - cpu) / max(1, len(seen)),
        "call of it, ms": 1e3 * step.seconds / max(1, len(seen)),
        "tick, ms": 1e3 * sum(each.seconds for each in full) / max(1, len(full)),
    })
used = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
first, planned = statistics.median(firsts[1:]), memory.weights + memory.workspace + memory.pool
print(json.dumps({"ticks": ticks, "first": first, "planned": planned, "used": used}))
"""


def child(program: str, *arguments: str, limit: float) -> Mapping[str, Any]:
    """Run a program in a process of its own; return its last line as JSON."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(1.0, limit), check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}")
    figures: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(rows: Rows) -> None:
    """Start twice, then run batches."""
    most, prompt, counts, few, new = (2, 20, "1,2", "1", 8) if rows.tiny else (256, 512, "1,8,32,128,256", "1,32", 128)
    settings: dict[str, Any] = {"dtype": "bfloat16", "max_running": most}
    with TemporaryDirectory() as directory:
        model = str(write_checkpoint(TINY if rows.tiny else LLAMA_1B, Path(directory) / "model"))
        for start in ("cold", "warm"):
            rows.attempt(
                f"{start} start",
                lambda: child(
                    START, str(time.time()), model, json.dumps(settings), str(prompt), limit=rows.seconds_left
                ),
            )
        for steps, running in ((1, counts), (4, few)):
            figures: dict[str, Any] = {}
            work = partial(batches, figures, model, settings | {"decode_steps": steps}, prompt, running, new, rows)
            rows.attempt(f"prepared, decode_steps={steps}", work)
            for tick in figures.get("ticks", ()):
                rows.add(**{"": f"{tick.pop('running')} running, decode_steps={steps}", **tick})


def batches(
    figures: dict[str, Any],
    model: str,
    settings: Mapping[str, Any],
    prompt: int,
    running: str,
    new: int,
    rows: Rows,
) -> dict[str, Any]:
    """Run batches of some sizes; put their figures into a dictionary, and return those of the session."""
    figures |= child(BATCH, model, json.dumps(settings), str(prompt), running, str(new), limit=rows.seconds_left)
    sizes = {f"{name}, GiB": figures[name] / 2**30 for name in ("planned", "used")}
    return {f"first token of {prompt}, ms": figures["first"]} | sizes


if __name__ == "__main__":
    main(measure)
