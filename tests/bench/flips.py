"""Count the seeded requests whose tokens change with the size of the batch, for each temperature.

The same prompts are drawn alone, one at a time, and all together. The sums of a product run in another order in another
bucket, so the logits differ in their last digits, and a draw flips where the difference decides it. Beside the flips
stands how many the logits make due: at least the sum of the total variation distances d between the two distributions
of each draw, because no two methods agree more often, and at most the sum of 2d / (1 + d), if the draws are by
Gumbel-max.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import rekindle
from tests.bench.say import say
from tests.bench.workload import MODEL

TOKENS = 100
KNOWN = 100  # the likeliest tokens, from which distances are computed; all others count as one
# fmt: off
THINGS = (
    "rivers", "bread", "the moon", "chess", "violins", "glaciers", "tea", "bridges", "owls", "salt", "maps", "bicycles",
    "volcanoes", "ink", "bees", "clocks", "forests", "wool", "comets", "harbours", "mirrors", "paper", "whales",
    "gardens", "thunder", "coins", "lanterns", "deserts", "kites", "snow", "trains", "honey",
)
# fmt: on
PROMPTS = [f"Tell me something about {thing}." for thing in THINGS]
KINDS: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0.0},
    "temperature 0.7, top-k 50, top-p 0.95": {"temperature": 0.7, "top_k": 50, "top_p": 0.95},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1": {"temperature": 1.0},
    "temperature 1.5": {"temperature": 1.5},
}
Scores = Sequence[rekindle.TokenLogprob]


@dataclass(frozen=True)
class Pair:
    """One request drawn alone and together, up to and with its first flip. Later draws have another context."""

    alone: Scores
    together: Scores

    @property
    def draws(self) -> list[tuple[rekindle.TokenLogprob, rekindle.TokenLogprob]]:
        """The draws of both, up to and with the first flip."""
        pairs = list(zip(self.alone, self.together, strict=True))
        same = len(list(takewhile(lambda pair: pair[0].token_id == pair[1].token_id, pairs)))
        return pairs[: same + 1]

    @property
    def flips(self) -> bool:
        """True if a token differs."""
        one, other = self.draws[-1]
        return one.token_id != other.token_id


def draw_pairs(session: rekindle.Session, sampling: dict[str, Any]) -> list[Pair]:
    """Draw all prompts alone and together, with the same seed."""
    logprobs = {"logprobs": KNOWN, "logprobs_of": "sampled"}
    options = {**sampling, **logprobs, "seed": 1, "max_tokens": TOKENS, "ignore_eos": True}
    alone = [session.generate_sync(prompt, **options).logprobs for prompt in PROMPTS]
    together = [generation.logprobs for generation in session.generate_sync(PROMPTS, **options)]
    return [Pair(one, other) for one, other in zip(alone, together, strict=True)]


def distance(one: rekindle.TokenLogprob, other: rekindle.TokenLogprob) -> float:
    """Return the total variation distance between two draws' distributions, as far as it is known."""
    p, q = ({token.token_id: math.exp(token.logprob) for token in draw.top} for draw in (one, other))
    shared = p.keys() & q.keys()
    rest = abs(sum(p[token] for token in shared) - sum(q[token] for token in shared))
    return (sum(abs(p[token] - q[token]) for token in shared) + rest) / 2


def report(pairs: Sequence[Pair], sampling: dict[str, Any]) -> str:
    """Report the numbers of flips and of draws, and the bounds of the flips that are due at a temperature above 0."""
    draws = [draw for pair in pairs for draw in pair.draws]
    counts = f"{sum(pair.flips for pair in pairs):2d} of {len(pairs)} differ, in {len(draws)} draws"
    if not sampling["temperature"]:
        return counts
    distances = [distance(*draw) for draw in draws]
    return f"{counts}; due: {sum(distances):.2f} to {sum(2 * d / (1 + d) for d in distances):.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.flips", description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    dtype = parser.parse_args().dtype
    # Without a prefix cache, because together all prompts are to be computed anew, as they are alone.
    options: dict[str, Any] = {"precompile": "lazy", "prefix_cache": False, "max_logprobs": KNOWN, "progress": False}
    with rekindle.open_sync(MODEL, dtype=dtype, max_running=len(PROMPTS), **options) as session:
        for kind, sampling in KINDS.items():
            say(f"{dtype}, {kind}: {report(draw_pairs(session, sampling), sampling)}")
