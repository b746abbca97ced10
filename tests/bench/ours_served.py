"""Serve Rekindle's session, and put the same load on the session itself, in this process."""

import argparse
import asyncio
import statistics
from itertools import pairwise
from random import Random
from time import perf_counter
from typing import Any, Literal

import jax

import rekindle
from tests.bench.worker import answer_asks, cpu_seconds
from tests.bench.workload import FIRST_ORDINARY, MODEL, VOCABULARY


class OursServed:
    """A session and its server, with their defaults."""

    def __init__(self, dtype: Literal["float32", "bfloat16"]) -> None:
        # "off" keeps no pages on disk either: the prompts of every run are the same, and would hit.
        self._session = rekindle.open_sync(MODEL, dtype=dtype, weights="dequantized", precompile="all", restore="off")
        self._server = self._session.serve_sync(port=0, name=MODEL)

    def about(self) -> dict[str, str]:
        return {"rekindle": rekindle.__version__, "jax": jax.__version__, "url": self._server.url}

    def run(self, ask: dict[str, Any]) -> object:
        """Return the CPU time of this process so far, or the figures of a load on the session."""
        return cpu_seconds() if ask["do"] == "cpu" else asyncio.run(self._load(ask))

    async def _load(self, ask: dict[str, Any]) -> dict[str, float]:
        """Keep so many streams of random prompts under way until all requests have ended."""
        prompts = self._prompts(ask["seed"], ask["requests"], ask["prompt_tokens"])
        free = asyncio.Semaphore(ask["streams"])
        firsts: list[float] = []
        gaps: list[float] = []
        tokens = 0

        async def request(prompt: str) -> None:
            nonlocal tokens
            async with free:
                times = [perf_counter()]
                stream = self._session.stream(prompt, max_tokens=ask["new_tokens"], ignore_eos=True, temperature=0)
                async for piece in stream:
                    times.append(perf_counter())
                    tokens += len(piece.token_ids)
                firsts.append(times[1] - times[0])
                gaps.extend(after - before for before, after in pairwise(times[1:]))

        started = perf_counter()
        await asyncio.gather(*map(request, prompts))
        return {
            "tps": tokens / (perf_counter() - started),
            "ttft_ms": 1e3 * statistics.median(firsts),
            "itl_ms": 1e3 * statistics.median(gaps),
            "tokens": tokens,
        }

    def _prompts(self, seed: int, count: int, length: int) -> list[str]:
        """Draw texts of so many tokens, which no prefix cache has."""
        random = Random(f"rekindle bench served {seed}")
        draws = [[random.randrange(FIRST_ORDINARY, VOCABULARY) for _ in range(length)] for _ in range(count)]
        # A text is seldom read as the tokens that it was written from, and is cut to its length once it was read.
        return [self._session.decode(self._session.encode(self._session.decode(ids))[:length]) for ids in draws]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16"])
    args = parser.parse_args()
    answer_asks(lambda: OursServed(args.dtype), OursServed.run)
