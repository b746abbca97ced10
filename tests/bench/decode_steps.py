"""Measure the speed of decoding by `decode_steps`, as ratios to 1 step, at one row and at many, in rounds in turns."""

import argparse
from contextlib import ExitStack
from statistics import median
from time import perf_counter

import rekindle
from tests.bench.machine import describe
from tests.bench.workload import MODEL

ROWS, STEPS, NEW_TOKENS = (1, 32), (1, 2, 4, 8), 129


def open_session(rows: int, steps: int, model: str) -> rekindle.Session:
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
    """Return the speed of one decoding batch."""
    prompts = [[100 + i] * 16 for i in range(rows)]
    began = perf_counter()
    session.generate_sync(token_ids=prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
    return rows * NEW_TOKENS / (perf_counter() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured, in turns (default: 7)")
    parser.add_argument("--model", default=MODEL, help=f"what to open (default: {MODEL})")
    args = parser.parse_args()
    print(describe())
    for rows in ROWS:
        with ExitStack() as stack:
            sessions = {steps: stack.enter_context(open_session(rows, steps, args.model)) for steps in STEPS}
            results: dict[int, list[float]] = {steps: [] for steps in STEPS}
            for _ in range(args.rounds):
                for steps, session in sessions.items():
                    results[steps].append(tokens_per_second(session, rows))
        one = results[1]
        for steps, speeds in results.items():
            ratios = sorted(mine / alone for mine, alone in zip(speeds, one, strict=True))
            print(
                f"{rows:3} rows, {steps} steps: {median(speeds):7.1f} tokens/s, {median(ratios):.2f} times those of 1 "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
