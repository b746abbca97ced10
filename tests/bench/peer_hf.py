"""Run transformers' `generate` on CPU: static batches, padded on the left. This runs in the peer's environment."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from tests.bench.worker import Deliver, serve

PAD = 2


class _Streamer:
    """An object that transformers calls with the prompt first, and then with each token."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._prompt_seen = False

    def put(self, tokens: Any) -> None:
        if self._prompt_seen:
            self._deliver(tokens.tolist())
        self._prompt_seen = True

    def end(self) -> None:
        pass


class Transformers:
    """transformers as a `worker.Contender`."""

    def __init__(self, gguf: Path, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        # It dequantizes while it loads, so plain dense layers run.
        self._model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = PAD

    def about(self) -> dict[str, str]:
        return {"torch": torch.__version__, "transformers": transformers.__version__, "attention": "sdpa"}

    def stream(self, prompt: list[int], new_tokens: int, deliver: Deliver) -> None:
        self._generate([prompt], new_tokens, _Streamer(deliver))

    def batch(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        return self._generate(prompts, new_tokens, None)

    def step(self, prefill_tokens: int, decode_rows: int, context: int) -> list[float]:
        return []

    def _generate(self, prompts: Sequence[list[int]], new_tokens: int, streamer: _Streamer | None) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, streamer=streamer
            )
        tokens: list[list[int]] = output[:, width:].tolist()
        return tokens


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    serve(lambda: Transformers(args.gguf, args.dtype, args.threads))
