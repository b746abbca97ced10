"""A notebook's process: it opens kept replicas, asks them, reports the answer, and waits to be killed."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from jax._src import xla_bridge

import rekindle
from tests.engine.small import SMALL


def main(address: str, model: str, prompt: list[int]) -> None:
    began = time.perf_counter()
    where = rekindle.Ray(2, address=address, keep=True)
    session = rekindle.open_sync(model, replicas=where, progress=False, dtype="float32", **SMALL)
    ready = time.perf_counter()
    answer = session.generate_sync(token_ids=prompt, max_tokens=8, ignore_eos=True)
    report: dict[str, Any] = {
        "tokens": answer.token_ids,
        "cached": answer.cached.total,
        "found": session.restored.nodes,
        "compiled": session.stats.compilations,
        "jax": xla_bridge.backends_are_initialized(),
        "seconds": [ready - began, time.perf_counter() - ready],
    }
    session.submit(token_ids=prompt[::-1], max_tokens=200, ignore_eos=True)  # which is left behind
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], np.load(Path(sys.argv[2]) / "golden.npz")["greedy_prompt"].tolist())
