"""Time of decode ticks by the rows with adapters among them, as ratios to ticks without, in rounds in turns.

The first line is of a session without adapters; all others are of one session with four adapters of rank 16.
"""

import argparse
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import rekindle
from rekindle.core.models.adapters.products import products_of
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Dtype
from tests.bench.machine import describe
from tests.bench.workload import MODEL

RANK, COUNT, NEW_TOKENS = 16, 4, 65
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The usual targets: all projections of attention and of dense layers."""


def adapter_of(model: str, seed: int) -> dict[str, Any]:
    """Return the arguments for a random adapter of all usual layers."""
    chance, tensors = np.random.default_rng(seed), {}
    for product in products_of(open_checkpoint(model).config):
        for name, rows in product.parts.items():
            if name.rpartition(".")[2] in LAYERS:
                tensors[f"{name}.lora_A.weight"] = chance.standard_normal((RANK, product.inputs), np.float32)
                tensors[f"{name}.lora_B.weight"] = 1e-3 * chance.standard_normal((rows, RANK), np.float32)
    return {"tensors": tensors, "config": {"r": RANK, "lora_alpha": RANK}}


def open_session(rows: int, model: str, dtype: Dtype | None) -> rekindle.Session:
    """Open a session with one decode bucket."""
    return rekindle.open_sync(
        model,
        dtype=dtype,
        max_running=rows,
        decode_buckets=(rows,),
        prefill_buckets=(512,),
        precompile="lazy",
        restore="off",
        progress=False,
    )


def seconds(session: rekindle.Session, names: list[str | None]) -> float:
    """Return the seconds of one decoding batch, each row with an adapter or without."""
    session.pause_sync()
    options: dict[str, Any] = {"max_tokens": NEW_TOKENS, "ignore_eos": True}
    handles = [session.submit(token_ids=[100 + i] * 16, adapter=name, **options) for i, name in enumerate(names)]
    began = perf_counter()
    session.resume()
    for handle in handles:
        handle.result()
    return perf_counter() - began


def mixes(rows: int) -> dict[str, list[str | None]]:
    """Return the adapters of the rows of each batch, by a name for it."""
    every = [str(i % COUNT) for i in range(rows)]
    batches: dict[str, list[str | None]] = {"no row": [None] * rows, "1 row": ["0", *[None] * (rows - 1)]}
    if rows > 1:
        batches["half of the rows, one adapter"] = [None if i % 2 else "0" for i in range(rows)]
        batches["all rows, one adapter"] = ["0"] * rows
        batches[f"all rows, {min(rows, COUNT)} adapters"] = [*every]
    return batches


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured, in turns (default: 7)")
    parser.add_argument("--model", default=MODEL, help=f"what to open (default: {MODEL})")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="the dtype of weights and adapters")
    args = parser.parse_args()
    print(describe())
    for rows in (1, 4, 32):
        with ExitStack() as stack:
            alone, session = (stack.enter_context(open_session(rows, args.model, args.dtype)) for _ in range(2))
            for number in range(COUNT):
                session.add_adapter_sync(str(number), **adapter_of(args.model, number))
            every = mixes(rows)
            results: dict[str, list[float]] = {"without adapters": [], **{name: [] for name in every}}
            for turn in range(args.rounds + 1):  # the first one compiles
                for name in results:
                    took = seconds(*((session, every[name]) if name in every else (alone, every["no row"])))
                    if turn:
                        results[name].append(took)
            for name, times in results.items():
                ratios = sorted(mine / base for mine, base in zip(times, results["without adapters"], strict=True))
                print(
                    f"{rows:3} rows, {name}: {1e3 * median(times) / NEW_TOKENS:6.2f} ms a tick, "
                    f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                )
