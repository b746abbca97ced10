"""Serve a contender in its process: JSON lines in on stdin, JSON lines out on stdout. Standard library only.

Each contender runs in an environment of its own, and stays alive for the whole bench, so that measurements of different
contenders can take turns.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Deliver = Callable[[Sequence[int]], None]


class Described(Protocol):
    """An object with a description of itself."""

    def about(self) -> dict[str, str]:
        """Return versions and settings."""
        ...


class Contender(Described, Protocol):
    """The methods of an engine that takes part."""

    def stream(self, prompt: list[int], new_tokens: int, deliver: Deliver) -> None:
        """Hand over the greedy new tokens of one prompt as they come."""
        ...

    def batch(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Return the greedy new tokens of many prompts."""
        ...

    def step(self, prefill_tokens: int, decode_rows: int, context: int) -> list[float]:
        """Return the seconds of a bare step, over and over; nothing if the engine has no bare step."""
        ...


T = TypeVar("T", bound=Described)


def serve(load: Callable[[], Contender]) -> None:
    """Load the contender and measure until stdin ends. The first line is `about`, once the model is loaded."""
    answer_asks(load, _do)


def answer_asks(load: Callable[[], T], do: Callable[[T, dict[str, Any]], object]) -> None:
    """Load a worker, print its description, and then the answer to each line of stdin."""
    # A library that prints, even while it loads, must not mix its lines with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")

    worker = load()
    answer(worker.about())
    for line in sys.stdin:
        answer(do(worker, json.loads(line)))


def cpu_seconds() -> dict[str, float]:
    """Return the CPU time of this process so far."""
    return {"cpu_s": time.process_time()}


def _do(contender: Contender, ask: dict[str, Any]) -> object:
    if ask["do"] == "single":
        return _single(contender, ask["prompt"], ask["new_tokens"])
    if ask["do"] in ("batch", "shared"):
        start = time.perf_counter()
        tokens = contender.batch(ask["prompts"], ask["new_tokens"])
        return {"wall_s": time.perf_counter() - start, "tokens": tokens}
    if ask["do"] == "step":
        steps = contender.step(ask["prefill_tokens"], ask["decode_rows"], ask["context"])
        return {"step_s": statistics.median(steps) if steps else None}
    raise ValueError(f"unknown measurement {ask['do']!r}")


def _single(contender: Contender, prompt: list[int], new_tokens: int) -> object:
    arrivals: list[tuple[float, Sequence[int]]] = []
    start = time.perf_counter()
    contender.stream(prompt, new_tokens, lambda tokens: arrivals.append((time.perf_counter(), tokens)))
    arrivals = [(at, tokens) for at, tokens in arrivals if tokens]
    (first_at, first), (last_at, _) = arrivals[0], arrivals[-1]
    tokens = [token for _, delivery in arrivals for token in delivery]
    # If all tokens come at once there is no decode rate; the huge number that results is obvious.
    decode_tps = (len(tokens) - len(first)) / max(last_at - first_at, 1e-9)
    return {"ttft_s": first_at - start, "decode_tps": decode_tps, "tokens": [tokens]}
