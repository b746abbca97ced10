"""Rows with adapters have the logits of merged weights in every family; rows beside them do not change."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.loading.adapter_content import pack_adapter
from rekindle.assembly.weights.load import load_decoder
from rekindle.core.models.adapters.products import AdapterSizes, products_of
from rekindle.core.models.adapters.rows import Adapters
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.layers import Delta
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.lora import Lora
from rekindle_kernels.api import Implementation
from tests.families import COVERING, MODELS
from tests.unit.logits import logits_within, paged_logits
from tests.unit.lora import merged, random_parts

SIZES = AdapterSizes(slots=3, rank=4)
FLOAT = jnp.dtype("float32")


FEW = ("deepseek-v3", "gpt2", "llama-tied", "mistral-own-head", "qwen3-next")
CHEAP = ("gpt2", "llama-tied")
"""Families with each way of joining, ordering or turning the rows of weights."""


def cost(family: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if family in CHEAP else (pytest.mark.wide,) if family in {*FEW, *COVERING} else (pytest.mark.deep,)


@pytest.mark.parametrize(
    ("family", "implementation"),
    [
        *(pytest.param(family, "cpu", marks=cost(family)) for family in MODELS),
        *(pytest.param(family, "xla", marks=pytest.mark.wide) for family in FEW),
    ],
)
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_logits_with_an_adapter_are_those_of_merged_weights(
    family: str, implementation: Implementation, families: Path
) -> None:
    """Compare rows of the second of three adapters, after rows of the first, and rows without one."""
    golden = np.load(families / family / "golden.npz")
    checkpoint = open_checkpoint(families / family)
    config, names = checkpoint.config, checkpoint.config.names
    products = products_of(config)
    loras = [Lora("", random_parts(config, 3, seed)) for seed in (1, 2)]
    own_head = replace(config, tied_embeddings=False)  # an adapter of a tied head leaves the embeddings alone
    tensors = {names.head + ".weight": checkpoint.tensors[names.embedding + ".weight"]} | dict(checkpoint.tensors)
    packed = [pack_adapter(lora, products, SIZES, FLOAT, implementation) for lora in loras]
    empty = [(np.zeros_like(a), np.zeros_like(b)) for a, b in packed[0]]
    every = zip(packed[0], packed[1], empty, strict=True)
    stacks = tuple((jnp.stack([a for a, _ in each]), jnp.stack([b for _, b in each])) for each in every)

    def adapt_to(slot: int, decoder: Decoder, rows: int) -> Delta:
        return Adapters(products, stacks, SIZES).adapt(decoder, jnp.full(rows, slot, jnp.int32), (rows,))

    decoder = load_decoder(config, checkpoint.tensors, FLOAT, implementation)
    prompts = golden["input_ids"][:1]
    (base,), bound = logits_within(decoder, prompts)
    for slot, lora in enumerate(loras):
        (own,) = paged_logits(decoder, prompts, adapt=partial(adapt_to, slot))
        other = load_decoder(own_head, merged(config, tensors, lora.parts), FLOAT, implementation)
        (expected,) = paged_logits(other, prompts)
        assert np.abs(expected - base).max() > 1e-2 * np.abs(base).max()
        assert np.abs(own - expected).max() <= 2 * bound * np.abs(expected).max()
    (without,) = paged_logits(decoder, prompts, adapt=partial(adapt_to, SIZES.slots))
    if implementation == "cpu":
        np.testing.assert_array_equal(without, base)
    else:
        np.testing.assert_allclose(without, base, rtol=0, atol=bound * np.abs(base).max())
