"""Measure the gains and costs of the prefix cache, as ratios within one run of the default model in float32.

Engines that differ only in the cache take turns, with new tokens in each round. Ratios are medians over the
rounds, with the lowest and the highest in parentheses.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

import rekindle
from rekindle.settings.engine import SettingsOptions
from tests.bench import machine
from tests.bench.report import NOISY_CORES
from tests.bench.say import say, waiting
from tests.bench.workload import (
    BATCH_LENGTHS,
    MODEL,
    SHARED_NEW_TOKENS,
    SHARED_PREFIX,
    SHARED_REQUESTS,
    SHARED_REST,
)

LONG, NO_HITS_NEW = 1024, 64
COLD: SettingsOptions = {"dtype": "float32", "precompile": "all", "restore": "off"}
"""Settings without the files of earlier runs."""
PLAIN: SettingsOptions = {**COLD, "prefix_cache": False}
SMALL_POOL = 41
"""The number of pages of 64 tokens: so few that other prompts soon evict one of `LONG` tokens."""
SMALL: SettingsOptions = {**COLD, "num_pages": SMALL_POOL, "decode_buckets": (1,), "max_running": 1}


@dataclass(frozen=True)
class Goal:
    """The lower or the upper limit of a ratio."""

    title: str
    limit: float
    at_least: bool

    def row(self, got: Sequence[float]) -> str:
        """Return a line of the table."""
        value = median(got)
        met = value >= self.limit if self.at_least else value <= self.limit
        bound = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        spread = f"{value:.3f} ({min(got):.3f} to {max(got):.3f})"
        return f"{self.title:62}  {bound:13}  {spread:25}  {'met' if met else 'MISSED'}"


COMPUTED = Goal("16 of one prefix of 512: tokens computed / distinct ones", 1.1, at_least=False)
SHARING = Goal("16 of one prefix of 512: throughput / without cache", 3.0, at_least=True)
AGAIN = Goal("1,024 tokens asked again: time to first token / cold", 0.1, at_least=False)
ONLOAD = Goal("1,024 tokens of the host tier: time to first token / cold", 0.2, at_least=False)
NO_HITS = Goal("no hits: throughput / without cache", 0.98, at_least=True)
GOALS = {"shared": (COMPUTED, SHARING), "again": (AGAIN,), "onload": (ONLOAD,), "no-hits": (NO_HITS,)}


class Bench:
    """The engines, and the measurements for each goal.

    Args:
        seed: the seed of the tokens.
    """

    def __init__(self, seed: int):
        self.got: defaultdict[Goal, list[float]] = defaultdict(list)
        self._rng = np.random.default_rng(seed)
        with waiting("opening three engines"):
            self._cached = rekindle.open_sync(MODEL, progress=False, **COLD)
            self._plain = rekindle.open_sync(MODEL, progress=False, **PLAIN)
            self._small = rekindle.open_sync(MODEL, progress=False, **SMALL)

    def shared(self) -> None:
        """Run requests with a common prefix, all at once."""
        before = self._cached.stats.scheduler.computed_tokens
        self._compare(SHARING, self._sharing, SHARED_NEW_TOKENS)
        computed = self._cached.stats.scheduler.computed_tokens - before
        self.got[COMPUTED].append(computed / (2 * (SHARED_PREFIX + SHARED_REQUESTS * SHARED_REST)))

    def no_hits(self) -> None:
        """Run requests without a common prefix, all at once; the pool is full of pages of other prompts."""
        before = self._cached.stats.scheduler
        self._compare(NO_HITS, lambda: [self._tokens(length) for length in BATCH_LENGTHS], NO_HITS_NEW)
        after = self._cached.stats.scheduler
        assert after.computed_tokens - before.computed_tokens == 2 * sum(BATCH_LENGTHS), "there were hits"

    def again(self) -> None:
        """Run a prompt, and the same prompt once more."""
        prompt = self._tokens(LONG)
        cold, warm = (self._first_token(self._cached, prompt) for _ in range(2))
        self.got[AGAIN].append(warm / cold)
        say(f"  first token cold {1e3 * cold:.1f} ms, again {1e3 * warm:.1f} ms")

    def onload(self) -> None:
        """Run a prompt again after its prefix was offloaded, and evicted by others; the prefix is onloaded."""
        prompt = self._tokens(LONG + 16)
        cold = self._first_token(self._small, prompt)
        others = LONG + LONG // 4
        for _ in range(2):
            self._first_token(self._small, self._tokens(others))
        before = self._small.stats.scheduler.host_hit_tokens
        onloaded = self._first_token(self._small, prompt)
        hits = self._small.stats.scheduler.host_hit_tokens - before
        assert hits == LONG, f"{hits} tokens were onloaded"
        self.got[ONLOAD].append(onloaded / cold)
        say(f"  first token cold {1e3 * cold:.1f} ms, onloaded {1e3 * onloaded:.1f} ms")

    def close(self) -> None:
        """Free the engines."""
        for session in (self._cached, self._plain, self._small):
            session.close_sync()

    def _tokens(self, count: int) -> list[int]:
        ids: list[int] = self._rng.integers(0, 49_000, count).tolist()
        return ids

    def _sharing(self) -> list[list[int]]:
        prefix = self._tokens(SHARED_PREFIX)
        return [prefix + self._tokens(SHARED_REST) for _ in range(SHARED_REQUESTS)]

    def _compare(self, goal: Goal, prompts: Callable[[], list[list[int]]], new: int) -> None:
        """Compare the throughputs with and without the cache, twice, so that each goes first once."""
        seconds = {self._cached: 0.0, self._plain: 0.0}
        for order in ((self._cached, self._plain), (self._plain, self._cached)):
            batch = prompts()
            for session in order:
                started = perf_counter()
                session.generate_sync(token_ids=batch, max_tokens=new, ignore_eos=True)
                seconds[session] += perf_counter() - started
        self.got[goal].append(seconds[self._plain] / seconds[self._cached])
        rates = [2 * len(batch) * new / seconds[session] for session in (self._cached, self._plain)]
        say(f"  {rates[0]:.1f} tok/s with the cache, {rates[1]:.1f} without")

    def _first_token(self, session: rekindle.Session, prompt: list[int]) -> float:
        return session.generate_sync(token_ids=prompt, max_tokens=1, ignore_eos=True).timings.first_token


def main() -> None:
    """Run the bench as the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prefix_cache", description=__doc__)
    parser.add_argument("--what", type=lambda text: text.split(","), default=list(GOALS), help=", ".join(GOALS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quiet-wait", type=float, default=60.0, help="seconds to wait for a quiet machine")
    arguments = parser.parse_args()
    say(", ".join(f"{key} {value}" for key, value in machine.describe().items()))
    bench = Bench(seed=0)
    measures = {"shared": bench.shared, "again": bench.again, "onload": bench.onload, "no-hits": bench.no_hits}
    for _ in range(2):  # this warms up and fills the pool
        for what in arguments.what:
            measures[what]()
    bench.got.clear()
    noisy = sum(_round(measures, arguments.what, arguments.quiet_wait) for _ in range(arguments.rounds))
    bench.close()
    print(f"\n{'ratio':62}  {'asked':13}  got")
    for what in arguments.what:
        for goal in GOALS[what]:
            print(goal.row(bench.got[goal]))
    print(f"{noisy} of {arguments.rounds * len(arguments.what)} measurements ran while others used the machine.")


def _round(measures: Mapping[str, Callable[[], None]], names: Sequence[str], quiet_wait: float) -> int:
    """Measure each once; return how many measurements were disturbed by other processes."""
    noisy = 0
    for name in names:
        machine.wait_quiet([], quiet_wait)
        others = machine.Others([])
        say(name)
        measures[name]()
        noisy += others.cores() > NOISY_CORES
        say(f"  others used {others.cores():.2f} cores")
    return noisy


if __name__ == "__main__":
    main()
