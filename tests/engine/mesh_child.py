"""Sessions over the virtual devices of a CPU, in a process of its own: XLA makes devices when it starts."""

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

DEVICES = 8
# More threads than cores, or collectives of several devices wait for each other; and an early end if they do.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={DEVICES} --xla_cpu_collective_call_terminate_timeout_seconds=30"
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import rekindle  # noqa: E402
from rekindle.buckets import Bucket  # noqa: E402
from rekindle.config import Implementation, SettingsOptions  # noqa: E402
from rekindle.device.place import Place  # noqa: E402
from rekindle.device.programs.lowering import Programs, Sizes  # noqa: E402
from rekindle.models.checkpoint.open import open_checkpoint  # noqa: E402
from tests.engine.small import FEW_PAGES  # noqa: E402

DRAWN: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 3, "logprobs": 2, "prompt_logprobs": 1}


def served(model: Path, tensor: int, data: int = 1) -> dict[str, Any]:
    """Answer on so many devices: alone, in a batch that preempts, from the cache, and by chance."""
    prompt = np.load(model / "golden.npz")["greedy_prompt"].tolist()
    asked: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
    settings: SettingsOptions = {**FEW_PAGES, "tensor": tensor, "data": data}
    with rekindle.open_sync(model, progress=False, **settings) as session:
        alone = session.generate_sync(token_ids=prompt, **asked)
        batch = session.generate_sync(token_ids=[prompt[:5], prompt, prompt[3:], prompt[1:]], **asked)
        again = session.generate_sync(token_ids=prompt, **asked)
        many = session.generate_sync(token_ids=[prompt[place:] for place in range(6)], **asked)
        adjusted = session.generate_sync(token_ids=prompt, frequency_penalty=0.7, logit_bias={5: 1.0}, **asked)
        drawn = session.generate_sync(token_ids=prompt, max_tokens=12, ignore_eos=True, **DRAWN)
        return {
            "tokens": [each.token_ids for each in (alone, *batch, again, *many, adjusted)],
            "drawn": drawn.token_ids,
            "logprobs": [each.logprob for each in drawn.logprobs or ()],
            "from disk": alone.cached.disk,
            "cached": again.cached_tokens,
            "preemptions": session.stats.scheduler.preemptions,
            "compilations": session.stats.compilations,
            "loads": session.stats.loads,
            "repr": repr(session),
        }


def program(model: Path, tensor: int, implementation: Implementation, data: int = 1) -> str:
    """Return a compiled step of four rows on so many devices, as text."""
    place = Place(tuple(jax.devices()[: data * tensor]), data)
    config = open_checkpoint(model).config
    programs = Programs(config, Sizes(9, 16, 8, 4, 5), jnp.dtype("float32"), place, implementation)
    text: str = cast(jax.stages.Compiled, programs.compiled(Bucket(0, 4))).as_text() or ""
    return text


def refusal(model: Path, tensor: int, data: int = 1) -> str:
    """Return the message of a session that cannot be opened on so many devices."""
    try:
        settings: SettingsOptions = {**FEW_PAGES, "tensor": tensor, "data": data}
        rekindle.open_sync(model, progress=False, **settings).close_sync()
    except rekindle.ConfigError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    for name, *arguments in json.loads(sys.argv[1]):
        arguments[0] = Path(arguments[0])
        sys.stdout.write(json.dumps(globals()[name](*arguments)) + "\n")
