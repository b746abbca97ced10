"""Measure what a user would run instead: transformers on PyTorch, where the machine has both, at 1B widths."""

import importlib.util
from functools import partial
from time import perf_counter
from typing import Any

from tests.device.parts import Rows, main
from tests.device.widths import LLAMA_1B

PROMPT, NEW = 512, 128


def load() -> Any:
    """Return a model of random bfloat16 weights on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    options = {name: value for name, value in LLAMA_1B.items() if name not in ("architectures", "model_type")}
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return LlamaForCausalLM(LlamaConfig(**options)).eval()


def rate(model: Any, running: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens a second of a batch, the better of two, after one that is not counted."""
    import torch

    prompts = torch.randint(2, 1000, (running, PROMPT), device="cuda")
    mask, times = torch.ones_like(prompts), []
    for _ in range(3):
        torch.cuda.synchronize()
        began = perf_counter()
        with torch.inference_mode():
            model.generate(
                prompts,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=NEW,
                max_new_tokens=NEW,
                pad_token_id=0,
                **options,
            )
        torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return {"tokens/s": running * NEW / min(times[1:]), "first call, s": times[0]}


def measure(rows: Rows) -> None:
    """Measure batches, plain and then with a compiled step, as far as the limit allows."""
    lacking = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if rows.tiny or lacking:
        rows.add(**{"": "not measured", "lacks": ", ".join(lacking) or "a GPU"})
        return
    model = load()
    for running in (1, 32, 128):
        rows.attempt(f"{running} running", partial(rate, model, running, {}))
    for running in (1, 32):
        static = {"cache_implementation": "static"}
        rows.attempt(f"{running} running, compiled, static cache", partial(rate, model, running, static))


if __name__ == "__main__":
    main(measure)
