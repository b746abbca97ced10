"""Measure the cost of a dashboard for a busy session: the same requests with and without one, in turns, in one kernel.

The work of a browser is not part of it.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from tests.bench.say import say, waiting
from tests.bench.workload import BATCH_LENGTHS, MODEL
from tests.notebook.driver import Notebook, open_notebook
from tests.notebook.kernels import COMMAND, environment

OPEN = f"""
import asyncio, time
import numpy as np
import rekindle
from IPython.display import display
rng = np.random.default_rng()
async def opened():
    return await rekindle.open({MODEL!r}, dtype="float32", progress=False, precompile="all", disk_cache_bytes=0)
opening = asyncio.create_task(opened())
"""
OPENED = "await asyncio.wait([opening], timeout=20); print(opening.done())"
"""A short cell that waits for `open`. However long compiling takes, the driver hears something every 20 s."""
TURN = f"""
prompts = [rng.integers(1000, 40000, length).tolist() for length in {list(BATCH_LENGTHS)}]
dashboard = session.dashboard()
if {{visible}}: display(dashboard)
started, computed = time.perf_counter(), time.process_time()
answers = await session.generate(token_ids=prompts, max_tokens={{new}}, ignore_eos=True)
seconds, computed = time.perf_counter() - started, time.process_time() - computed
dashboard.stop()
assert sum(len(answer.token_ids) for answer in answers) == {len(BATCH_LENGTHS)} * {{new}}
print(seconds, computed)
"""


def turn(notebook: Notebook, new: int, visible: bool) -> tuple[float, float]:
    """Run the batch; return its seconds, and the seconds of the process's CPU time."""
    seconds, computed = notebook.run(TURN.format(new=new, visible=visible)).split()
    return float(seconds), float(computed)


def measure(rounds: int, new: int) -> None:
    """Print the ratios of the throughputs and of the CPU times of each round on a line, and their medians."""
    with tempfile.TemporaryDirectory() as directory:
        home, ratios, costs = Path(directory), [], []
        with open_notebook(home / "kernel.log", COMMAND, environment(home / "ipython")) as notebook:
            with waiting("opening an engine in a kernel"):
                notebook.run(OPEN)
                while notebook.run(OPENED) != "True\n":
                    pass
                notebook.run("session = opening.result()")
            for round_ in range(1 + rounds):
                order = (True, False) if round_ % 2 else (False, True)
                took = {visible: turn(notebook, new, visible) for visible in order}
                if round_:
                    ratios.append(took[False][0] / took[True][0])
                    costs.append(took[True][1] / took[False][1])
                    say(f"round {round_}: throughput {ratios[-1]:.3f}, CPU time {costs[-1]:.3f}")
        print(f"with a dashboard / without: throughput {median(ratios):.3f}, CPU time {median(costs):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--new", type=int, default=64, help="tokens that each request generates")
    measure(**vars(parser.parse_args()))
