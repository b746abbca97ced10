"""Count the seeded requests whose tokens change with the size of the batch, for each temperature.

The same prompts are drawn alone, one at a time, and all together. The sums of a product run in another order in another
bucket, so the logits differ in their last digits, and a draw flips where that decides it.
"""

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

import rekindle
from tests.bench.say import say
from tests.bench.workload import MODEL

TOKENS = 100
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


def first_flips(session: rekindle.Session, options: dict[str, Any]) -> list[int]:
    """Return for each prompt how many tokens are the same alone and together, up to the first that is not."""
    asked = {**options, "seed": 1, "max_tokens": TOKENS, "ignore_eos": True}
    alone = [session.generate_sync(prompt, **asked).token_ids for prompt in PROMPTS]
    together = [generation.token_ids for generation in session.generate_sync(PROMPTS, **asked)]
    return [_same(one, other) for one, other in zip(alone, together, strict=True)]


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    return next((place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))


def report(kind: str, same: Sequence[int]) -> str:
    """Say how many requests flipped, of how many draws. Draws after a request's first flip are not counted."""
    flips = [place for place in same if place < TOKENS]
    draws = sum(same) + len(flips)
    where = f", at token {median(flips):.0f} in the median" if flips else ""
    return f"{kind:40s} {len(flips):2d} of {len(same)} differ: {100 * len(flips) / draws:.3f} % of {draws} draws{where}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.flips", description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    dtype = parser.parse_args().dtype
    # No prefix cache: together, all prompts are computed anew as they are alone.
    options: dict[str, Any] = {"precompile": "lazy", "prefix_cache": False, "progress": False}
    with rekindle.open_sync(MODEL, dtype=dtype, max_running=len(PROMPTS), **options) as session:
        for kind, sampling in KINDS.items():
            say(report(f"{dtype}, {kind}", first_flips(session, sampling)))
