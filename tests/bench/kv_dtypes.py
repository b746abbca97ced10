"""Measure pages of each dtype: bytes of a position, likelihood of prose, and the time of a decode step.

Prose of the README is scored by teacher forcing. Each dtype's distributions are compared with those over pages of
float32. Steps of all dtypes are timed in turns, and divided by the step over pages of the weights' dtype.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, Final, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.device.state import empty_pages
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import KvDtype
from rekindle_kernels.api import choose
from tests.bench.machine import describe
from tests.bench.prose import prose
from tests.bench.steps import BareStep
from tests.bench.workload import MODEL
from tests.unit.logits import paged_logits

DTYPES: Final[tuple[str, ...]] = get_args(KvDtype)
PAGE_SIZE: Final = 64
Array = np.ndarray[Any, np.dtype[Any]]


def log_probabilities(checkpoint: Checkpoint, dtype: str, ids: Array) -> Iterator[Array]:
    """Yield the distributions after each token over pages of each dtype, (token, vocabulary)."""
    implementation = choose("cpu", [(2, 2, 1, PAGE_SIZE, 64)], jnp.dtype(dtype)).implementation
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype(dtype), implementation=implementation)
    for kv_dtype in DTYPES:
        (logits,) = paged_logits(decoder, [ids], PAGE_SIZE, kv_dtype)
        yield np.asarray(jax.nn.log_softmax(logits[:-1], axis=-1))


def bytes_of(checkpoint: Checkpoint, kv_dtype: str) -> int:
    """Return the bytes of a position in pages of a dtype."""
    pages = jax.eval_shape(partial(empty_pages, checkpoint.config, 1, PAGE_SIZE, jnp.dtype(kv_dtype)))
    return sum(int(page.size) * int(page.dtype.itemsize) for page in pages) // PAGE_SIZE


def say_quality(checkpoint: Checkpoint, dtype: str, positions: int) -> None:
    """Print the bytes of a position, the perplexity, and the difference from float32 pages for each dtype."""
    ids, exact = prose(checkpoint, positions), None
    for kv_dtype, log_p in zip(DTYPES, log_probabilities(checkpoint, dtype, ids), strict=True):
        exact = log_p if exact is None else exact
        kl = (np.exp(exact) * (exact - log_p)).sum(-1)
        equal = (log_p.argmax(-1) == exact.argmax(-1)).mean()
        perplexity = float(np.exp(-log_p[np.arange(positions), ids[1:]].mean()))
        size = bytes_of(checkpoint, kv_dtype)
        print(
            f"{dtype} weights, {kv_dtype:8} pages: {size:6,} bytes a position, perplexity {perplexity:.3f}, "
            f"KL mean {kl.mean():.1e}, p99 {np.quantile(kl, 0.99):.1e}, {equal:.1%} of greedy tokens equal",
            flush=True,
        )


def say_steps(dtype: str, rows: int, context: int, rounds: int) -> None:
    """Print the time of a decode step for each dtype of pages, and its ratio in each round."""
    steps = {each: BareStep(dtype, 0, rows, context, kv_dtype=each) for each in DTYPES}
    times: dict[str, list[float]] = {each: [] for each in DTYPES}
    for _ in range(rounds + 3):
        for each, step in steps.items():
            times[each].append(step.seconds())
    base = times[dtype][3:]
    for each, seconds in times.items():
        ratios = sorted(mine / other for mine, other in zip(seconds[3:], base, strict=True))
        took = f"{rows} rows at context {context} take {1e3 * median(seconds[3:]):6.2f} ms"
        print(
            f"{dtype} weights, {each:8} pages: {took}, "
            f"{median(ratios):.2f} times the step over {dtype} pages ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def main(options: Sequence[str] | None = None) -> None:
    """Print the machine's state and all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help="model of the quality (default: the embedded one)")
    parser.add_argument("--positions", type=int, default=1024, help="positions of prose; 0 skips it (default: 1024)")
    parser.add_argument("--rounds", type=int, default=21, help="steps of each dtype; 0 skips them (default: 21)")
    parser.add_argument("--rows", type=int, nargs="*", default=[32, 1], help="rows of the steps (default: 32 and 1)")
    parser.add_argument("--context", type=int, default=600, help="positions of each row (default: 600)")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"], help="of weights (default: both)")
    arguments = parser.parse_args(options)
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    checkpoint = open_checkpoint(arguments.model)
    for dtype in arguments.dtypes:
        if arguments.positions:
            say_quality(checkpoint, dtype, arguments.positions)
        for rows in arguments.rows if arguments.rounds else ():
            say_steps(dtype, rows, arguments.context, arguments.rounds)


if __name__ == "__main__":
    main()
