"""Run Rekindle through its public interface, with weights of one dtype, as the peers have."""

import argparse
from typing import Literal

import jax

import rekindle
from tests.bench.steps import step_seconds
from tests.bench.worker import Deliver, serve
from tests.bench.workload import MODEL


class Ours:
    """Rekindle as a `worker.Contender`."""

    def __init__(self, dtype: Literal["float32", "bfloat16"]) -> None:
        self._dtype = dtype
        # "off" keeps no pages on disk either: the prompts of every run are the same, and would hit.
        self._session = rekindle.open_sync(MODEL, dtype=dtype, weights="dequantized", precompile="all", restore="off")

    def about(self) -> dict[str, str]:
        return {"rekindle": rekindle.__version__, "jax": jax.__version__}

    def stream(self, prompt: list[int], new_tokens: int, deliver: Deliver) -> None:
        for piece in self._session.stream_sync(token_ids=prompt, max_tokens=new_tokens, ignore_eos=True):
            deliver(piece.token_ids)

    def batch(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        results = self._session.generate_sync(token_ids=prompts, max_tokens=new_tokens, ignore_eos=True)
        return [list(result.token_ids) for result in results]

    def step(self, prefill_tokens: int, decode_rows: int, context: int) -> list[float]:
        return step_seconds(self._dtype, prefill_tokens, decode_rows, context)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16"])
    args = parser.parse_args()
    serve(lambda: Ours(args.dtype))
