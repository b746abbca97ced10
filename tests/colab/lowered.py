"""Lower steps by the JAX of Colab, for GPUs and TPUs that are not there; run by `test_lowering.py`, in its environment.

One line of JSON for each program is printed: its model, its platform, and the Pallas kernels in it: for CUDA the
targets of their custom calls, for TPUs the versions of their Mosaic modules. The last line is the version of JAX.
"""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from rekindle.core.buckets import Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.state import empty_pages, empty_slots
from rekindle.core.device.step import step
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.weights.form import WeightForm
from rekindle_kernels.api import Implementation
from rekindle_kernels.gpu.target import Target, tracing_for
from rekindle_kernels.tpu import tuning
from tests.published import published

GPUS: Final = ("Tesla T4", "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "NVIDIA H100 80GB HBM3")
"""The GPUs of Colab, of the capabilities 7.5, 8.0, 8.9 and 9.0."""
MODELS: Final = {"gemma-2-2b": GPUS, "Qwen3-30B-A3B": GPUS[-1:]}
"""The published widths, with one layer of each kind, and their GPUs. The second has what Hopper has own kernels for."""
TPU: Final = "TPU v5 lite"
XLA: Final = "CUDA, without our kernels"
CALL: Final = r"__gpu\$xla\.gpu\.\w+"
BUCKETS: Final = (Bucket(256, 0), Bucket(0, 8))


def lowered(platform: str, implementation: Implementation, config: ModelConfig, bucket: Bucket) -> Any:
    """Lower the step of a bucket in bfloat16."""
    dtype = jnp.dtype("bfloat16")
    abstract = abstract_decoder(config, WeightForm(dtype), implementation)
    pages = jax.eval_shape(lambda: empty_pages(config, 257, 64, dtype, implementation))
    slots = jax.eval_shape(lambda: empty_slots(32, 32, config.vocab_size))
    packed = InputLayout.of(bucket, slots).padding()

    def run(pages: Any, slots: Any, weights: Any, packed: Any) -> Any:
        return step(abstract.with_weights(weights), pages, slots, packed, bucket, 5)

    shape = jax.ShapeDtypeStruct(packed.shape, packed.dtype)
    traced = jax.jit(run, donate_argnums=(0, 1)).trace(pages, slots, list(abstract.forms), shape)
    return traced.lower(lowering_platforms=(platform,))


def mosaic_versions(text: str) -> list[int]:
    """Return the version of each Mosaic module in a program, after reading all of it as libtpu does."""
    versions = []
    for body in re.findall(r"\\22body\\22: \\22([\w+/=]+)\\22", text):
        context = ir.Context()
        context.allow_unregistered_dialects = True
        with context, ir.Location.unknown():
            module = ir.Module.parse(base64.b64decode(body))
            version = module.operation.attributes["stable_mosaic.version"]
            versions.append(cast(Any, ir.IntegerAttr)(version).value)
            PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
    return versions


def programs() -> Iterator[dict[str, Any]]:
    """Lower all programs, and yield what each has."""
    for name, gpus in MODELS.items():
        config = published(name)
        for bucket in BUCKETS:
            facts = {"model": name, "prompt": bucket.prefill_tokens > 0}
            for gpu in gpus:
                with tracing_for(Target(gpu)):
                    text = lowered("cuda", "gpu", config, bucket).as_text()
                yield {**facts, "platform": gpu, "kernels": re.findall(CALL, text)}
            text = lowered("cuda", "xla", config, bucket).as_text()
            yield {**facts, "platform": XLA, "kernels": re.findall(CALL, text)}
            text = lowered("tpu", "tpu", config, bucket).as_text()
            yield {**facts, "platform": TPU, "kernels": mosaic_versions(text)}


def main() -> None:
    """Print the facts of all programs."""
    sizes = {"default": tuning._kinds()[TPU]}
    with patch.object(tuning, "_kinds", lambda: sizes):
        for facts in programs():
            print(json.dumps(facts), flush=True)
    print(json.dumps(jax.__version__))


if __name__ == "__main__":
    main()
