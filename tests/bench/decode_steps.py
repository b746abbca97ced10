"""Tokens per second by `decode_steps`, as ratios to those with 1, at one row and at many, in rounds in turns."""

import argparse
from contextlib import ExitStack
from statistics import median
from time import perf_counter

import rekindle
from tests.bench.machine import describe
from tests.bench.workload import MODEL

ROWS, STEPS, NEW_TOKENS = (1, 32), (1, 2, 4, 8), 129


def opened(rows: int, steps: int, model: str) -> rekindle.Session:
    """Open a session with one decode bucket."""
    return rekindle.open_sync(
        model,
        max_running=rows,
        decode_buckets=(rows,),
        prefill_buckets=(512,),
        decode_steps=steps,
        precompile="all",
        restore="off",
        progress=False,
    )


def tokens_per_second(session: rekindle.Session, rows: int) -> float:
    """Return the speed of one batch that decodes."""
    prompts = [[100 + i] * 16 for i in range(rows)]
    began = perf_counter()
    session.generate_sync(token_ids=prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
    return rows * NEW_TOKENS / (perf_counter() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured, in turns (default: 7)")
    parser.add_argument("--model", default=MODEL, help=f"what to open (default: {MODEL})")
    asked = parser.parse_args()
    print(describe())
    for rows in ROWS:
        with ExitStack() as stack:
            sessions = {steps: stack.enter_context(opened(rows, steps, asked.model)) for steps in STEPS}
            found: dict[int, list[float]] = {steps: [] for steps in STEPS}
            for _ in range(asked.rounds):
                for steps, session in sessions.items():
                    found[steps].append(tokens_per_second(session, rows))
        one = found[1]
        for steps, speeds in found.items():
            ratios = sorted(mine / alone for mine, alone in zip(speeds, one, strict=True))
            print(
                f"{rows:3} rows, {steps} steps: {median(speeds):7.1f} tokens/s, {median(ratios):.2f} times those of 1 "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
