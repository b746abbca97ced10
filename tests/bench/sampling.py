"""Measure sampling parameters in a decode step of 32 rows at context 200, as ratios to greedy rows."""

import argparse
from dataclasses import replace
from statistics import median

import numpy as np

from rekindle.core.device.packing import pack_sampling
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from tests.bench.steps import BareStep, Table

ROWS, CONTEXT = 32, 200
KINDS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.8, top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "temperature 1, top-k 50": SamplingParams(temperature=1.0, top_k=50),
    "temperature 1, min-p 0.05": SamplingParams(temperature=1.0, min_p=0.05),
    "temperature 1, top-k 50, top-p 0.9, min-p 0.02": SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.02),
    "repetition penalty 1.2": SamplingParams(repetition_penalty=1.2),
    "logprobs 5": SamplingParams(logprobs=5),
    "all of it": SamplingParams(temperature=1.0, top_k=50, top_p=0.9, repetition_penalty=1.2, logprobs=5),
}


def _rows(params: SamplingParams, turn: int) -> Table:
    """Make 32 rows, each with a seed of its own."""
    requests = [
        Request(row, (1,) * CONTEXT, replace(params, seed=1000 * turn + row), frozenset(), 4096) for row in range(ROWS)
    ]
    return np.stack([pack_sampling(request) for request in requests])


def measure(dtype: str, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each kind in each round. The kinds take turns, so that they share slow moments."""
    step = BareStep(dtype, 0, ROWS, CONTEXT)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(rounds + 1):
        for kind, params in KINDS.items():
            milliseconds = 1e3 * step.seconds(_rows(params, turn))
            if turn:
                times[kind].append(milliseconds)
    return times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    results = measure(arguments.dtype, arguments.rounds)
    greedy = results["greedy"]
    for kind, milliseconds in results.items():
        ratio = median(mine / base for mine, base in zip(milliseconds, greedy, strict=True))
        print(f"{kind:50s} {median(milliseconds):7.2f} ms  {ratio:.3f} of greedy")
