"""Compare greedy tokens of twelve tiny families on the device with those of transformers on a CPU."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

import rekindle
from tests.device.parts import ROOT, Rows, main

FAMILIES = (
    "llama3-rope", "qwen3", "gemma2", "gpt-oss", "deepseek-v3", "qwen2-moe",
    "lfm2", "qwen3-next", "nemotron-h-moe", "phi3-longrope", "gemma3n", "llama4",
)  # fmt: skip


def tokens(family: str) -> Mapping[str, Any]:
    """Return the number of tokens that agree before the first difference, in float32."""
    path = ROOT / "tests" / "goldens" / "families" / family
    golden = np.load(path / "golden.npz")
    expected = golden["greedy_new"].tolist()
    with rekindle.open_sync(
        path,
        dtype="float32",
        max_running=4,
        page_size=16,
        precompile="lazy",
        restore="off",
        pool_bytes="1GB",
        progress=False,
    ) as session:
        answer = session.generate_sync(
            token_ids=golden["greedy_prompt"].tolist(), max_tokens=len(expected), ignore_eos=True
        )
        kernels = session.settings.implementation
    differences = [place for place, (a, b) in enumerate(zip(answer.token_ids, expected, strict=True)) if a != b]
    return {"equal": differences[0] if differences else len(expected), "of": len(expected), "kernels": kernels}


def measure(rows: Rows) -> None:
    """Compare as many families as the limit leaves time for."""
    jax.config.update("jax_default_matmul_precision", "highest")  # the numbers of the goldens, not of TF32
    with ThreadPoolExecutor(6) as pool:  # a family compiles for 13 s, on one core
        answers = {family: pool.submit(tokens, family) for family in (FAMILIES[:2] if rows.tiny else FAMILIES)}
        for family, answer in answers.items():
            rows.attempt(family, answer.result)


if __name__ == "__main__":
    main(measure)
