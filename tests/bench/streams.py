"""Measure the silence of a stream beside long prompts, for each way of ticks, and the cost for a batch.

- silence: one stream decodes while four prompts of 2,000 tokens are computed. The longest time between two of its
  tokens is given as a multiple of one chunk's tick: the longest tick of one of the prompts alone, in the same run.
- throughput: the batch of `workload.py` with alternating ticks, against the same with prompts first. Both take turns.
"""

import argparse
import statistics
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from time import perf_counter, process_time
from typing import get_args

import rekindle
from rekindle.core.messages import Settled
from rekindle.core.policy import Ticks
from rekindle.settings.engine import SettingsOptions
from tests.bench.say import say, waiting
from tests.bench.workload import FIRST_ORDINARY, MODEL, NEW_TOKENS, VOCABULARY, batch_prompts

BESIDE, LENGTH = 4, 2000
BEFORE = 8
"""Tokens of the stream before the others come."""
FEW: SettingsOptions = {"prefill_buckets": (512,), "decode_buckets": (1, 8), "max_running": 8}
"""Few programs, to compile each way of ticks in a minute. They have all buckets of this bench."""


def open_engine(ticks: Ticks, settings: SettingsOptions) -> rekindle.Session:
    """Open an engine that finds nothing of earlier runs, with all programs ready."""
    options: SettingsOptions = {**settings, "dtype": "float32", "precompile": "all", "restore": "off", "ticks": ticks}
    with waiting(f"opening an engine with {ticks} ticks"):
        return rekindle.open_sync(MODEL, progress=False, **options)


def prompt(random: Random, length: int) -> list[int]:
    """Draw a prompt that no prefix cache has."""
    return [random.randrange(FIRST_ORDINARY, VOCABULARY) for _ in range(length)]


def chunk_seconds(session: rekindle.Session, random: Random) -> float:
    """Return the longest tick of a long prompt alone."""
    times = [perf_counter()]
    with session.watch(lambda record: times.append(record.ended) if isinstance(record.message, Settled) else None):
        session.generate_sync(token_ids=prompt(random, LENGTH), max_tokens=1, ignore_eos=True)
    return max(after - before for before, after in pairwise(times))


def silence_seconds(session: rekindle.Session, random: Random) -> float:
    """Return the longest time between two tokens of a stream while the long prompts are computed."""
    times: list[float] = []
    others: list[rekindle.Handle] = []
    for _ in session.stream_sync(token_ids=prompt(random, 64), max_tokens=4000, ignore_eos=True):
        times.append(perf_counter())
        if len(times) == BEFORE:
            others = [session.submit(token_ids=prompt(random, LENGTH), max_tokens=1) for _ in range(BESIDE)]
        elif others and all(other.done for other in others):
            break
    return max(after - before for before, after in pairwise(times[BEFORE - 1 :]))


def silences(ticks: Ticks, rounds: int) -> None:
    """Print the longest silence of each round, and their median, as multiples of one chunk's tick."""
    random = Random()
    with open_engine(ticks, FEW) as session:
        session.generate_sync(token_ids=prompt(random, LENGTH), max_tokens=4, ignore_eos=True)
        chunks, silent = [], []
        for _ in range(rounds):
            chunks.append(chunk_seconds(session, random))
            silent.append(silence_seconds(session, random))
    ratios = [longest / chunk for longest, chunk in zip(silent, chunks, strict=True)]
    say(f"  a chunk's tick: {_joined(chunks)} s; the longest silence: {_joined(silent)} s")
    print(f"{ticks:13} silent for {statistics.median(ratios):.2f} of a chunk's ticks ({_joined(ratios)})")


def throughput(rounds: int) -> None:
    """Print the ratios of the throughputs and of the CPU times of each round, and their medians."""
    with open_engine("alternate", {}) as alternate, open_engine("prefill-first", {}) as prefill_first:
        ratios, costs = [], []
        for round_ in range(1 + rounds):
            sessions = [alternate, prefill_first] if round_ % 2 else [prefill_first, alternate]
            took = {session: batch_seconds(session, round_) for session in sessions}
            if round_:  # the first one warms both up
                ratios.append(took[prefill_first][0] / took[alternate][0])
                costs.append(took[alternate][1] / took[prefill_first][1])
                say(f"round {round_}: throughput {ratios[-1]:.3f}, CPU time {costs[-1]:.3f}")
        medians = statistics.median(ratios), statistics.median(costs)
        print("a batch, alternate / prefill-first: throughput {:.3f} (asked: 0.97), CPU time {:.3f}".format(*medians))


def batch_seconds(session: rekindle.Session, round_: int) -> tuple[float, float]:
    """Run the batch; return its seconds, and the seconds of the process's CPU time."""
    started, computed = perf_counter(), process_time()
    session.generate_sync(token_ids=batch_prompts(round_), max_tokens=NEW_TOKENS, ignore_eos=True)
    return perf_counter() - started, process_time() - computed


def _joined(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.2f}" for number in numbers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", choices=("silence", "throughput", "both"), default="both")
    args = parser.parse_args()
    if args.what != "throughput":
        for way in get_args(Ticks):
            silences(way, args.rounds)
    if args.what != "silence":
        throughput(args.rounds)
