"""Serve an encoder in its process to the bench, with JSON lines; needs numpy alone besides the standard library."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tests.bench.worker import Described, answer_asks


class Encoder(Described, Protocol):
    """The method of an encoder that takes part."""

    def embed(self, texts: list[str]) -> Any:
        """Return the vectors of texts, (texts, size), of length 1."""
        ...


def serve_encoder(load: Callable[[], Encoder]) -> None:
    """Load the encoder and measure until stdin ends."""
    answer_asks(load, _do)


def _do(encoder: Encoder, ask: dict[str, Any]) -> object:
    texts = ask["texts"]
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(ask["times"]):
        vectors = encoder.embed(texts)
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    some = np.asarray(vectors, np.float64)[:: max(1, len(texts) // 50)]
    return {"wall_s": wall / ask["times"], "cpu_s": used / ask["times"], "vectors": some.tolist()}
