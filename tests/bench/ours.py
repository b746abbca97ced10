"""Run Rekindle through its public interface, with weights of one dtype or, as its default, those of the file."""

import argparse
from functools import partial
from typing import Literal

import jax

import rekindle
from tests.bench.steps import step_seconds
from tests.bench.worker import Deliver, serve
from tests.bench.workload import MODEL


class Ours:
    """Rekindle as a `worker.Contender`.

    Args:
        dtype: "packed" for the defaults of a session.
    """

    def __init__(self, dtype: Literal["float32", "bfloat16", "packed"]) -> None:
        self._dtype = dtype
        # "off" keeps no pages on disk either: the prompts of every run are the same, and would hit.
        open_model = partial(rekindle.open_sync, MODEL, precompile="all", restore="off")
        self._session = open_model() if dtype == "packed" else open_model(dtype=dtype, weights="dequantized")

    def about(self) -> dict[str, str]:
        return {"rekindle": rekindle.__version__, "jax": jax.__version__}

    def stream(self, prompt: list[int], new_tokens: int, deliver: Deliver) -> None:
        for piece in self._session.stream_sync(token_ids=prompt, max_tokens=new_tokens, ignore_eos=True):
            deliver(piece.token_ids)

    def batch(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        results = self._session.generate_sync(token_ids=prompts, max_tokens=new_tokens, ignore_eos=True)
        return [list(result.token_ids) for result in results]

    def step(self, prefill_tokens: int, decode_rows: int, context: int) -> list[float]:
        if self._dtype == "packed":  # `python -m tests.bench.packed_steps` measures these
            return []
        return step_seconds(self._dtype, prefill_tokens, decode_rows, context)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16", "packed"])
    args = parser.parse_args()
    serve(lambda: Ours(args.dtype))
