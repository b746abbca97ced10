"""Logits of tiny models through the paged attention of the step, and the bounds of their rounding errors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.buckets import QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.state import Pages, empty_pages, empty_slots
from rekindle.core.device.tick_mixer import TickMixer
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.layers import Delta
from rekindle.core.models.mixing import LayerMemory
from rekindle_kernels.api import choose

Array = np.ndarray[Any, np.dtype[Any]]

ALL: Final = slice(None)
KNOWN: Final = slice(-16, None)
"""The positions of a golden's logits."""
LAST_DIGIT: Final = 1e-7
"""A change of a float32 number by its last digit, of the number."""
ROUNDINGS: Final = 8
"""The bound of the effect of all roundings on a result, in effects of a last-digit change of all weights.

Measured on CPUs, the effect itself is 0.1 to 1.7.
"""


class PagedLogits:
    """A program for the logits of every position of a prompt, (token, vocabulary), as one prefill chunk.

    Args:
        decoder: the model; its weights are arguments of the program.
        longest: the length of the longest prompt.
        adapt: may change the decoder of a trace, for so many rows, and returns the summand of its head.
    """

    def __init__(
        self,
        decoder: Decoder,
        longest: int,
        page_size: int = 16,
        kv_dtype: str | None = None,
        adapt: Callable[[Decoder, int], Delta | None] = lambda decoder, rows: None,
    ):
        bucket = Bucket(-(-longest // QUERY_BLOCK) * QUERY_BLOCK, 0)
        num_pages = 1 + -(-bucket.prefill_tokens // page_size)
        self._page_size, self._layout = page_size, InputLayout(bucket, 1, num_pages - 1)
        dtype = jnp.dtype(kv_dtype or decoder.embedding.dtype)
        implementation = choose("cpu", decoder.config.pools(num_pages, page_size), dtype).implementation
        self._pages = empty_pages(decoder.config, num_pages, page_size, dtype, implementation)
        slots = empty_slots(1, num_pages - 1, decoder.config.vocab_size, decoder.config.states())
        slots = replace(slots, page_table=slots.page_table.at[0].set(jnp.arange(1, num_pages)))
        positions = jnp.arange(bucket.prefill_tokens, dtype=jnp.int32)
        graph, _ = nnx.split(decoder)

        @jax.jit
        def run(state: Any, pages: Pages, packed: jax.Array) -> jax.Array:
            decoder, inputs = nnx.merge(graph, state), self._layout.unpack(packed)
            delta = adapt(decoder, bucket.prefill_tokens)
            mixer = TickMixer(inputs, slots, bucket, page_size, jnp.zeros(0, jnp.int32), implementation)
            hidden, _ = decoder(inputs.tokens, positions, LayerMemory(pages, slots.states), mixer)
            return decoder.logits(hidden, delta)

        self._run = run

    def __call__(self, decoder: Decoder, ids: Array) -> Array:
        """Return the logits of a prompt by a decoder of the same structure."""
        logits = np.asarray(self._run(nnx.state(decoder), self._pages, self._packed(ids)))
        prompt_logits: Array = logits[: len(ids)]
        return prompt_logits

    def _packed(self, ids: Array) -> jax.Array:
        used, padding = -(-len(ids) // QUERY_BLOCK), self._layout.padding()
        inputs = self._layout.unpack(padding)
        inputs.tokens[: len(ids)] = ids
        inputs.block_slot[:used] = 0
        inputs.block_start[:used] = np.arange(used) * QUERY_BLOCK
        inputs.block_count[:used] = np.minimum(QUERY_BLOCK, len(ids) - inputs.block_start[:used])
        inputs.block_page[:used] = 1 + inputs.block_start[:used] // self._page_size
        return jnp.asarray(padding)


def paged_logits(
    decoder: Decoder,
    prompts: Sequence[Array],
    page_size: int = 16,
    kv_dtype: str | None = None,
    adapt: Callable[[Decoder, int], Delta | None] = lambda decoder, rows: None,
) -> list[Array]:
    """Return the logits of prompts, all by one program; see `PagedLogits`."""
    logits = PagedLogits(decoder, max(map(len, prompts)), page_size, kv_dtype, adapt)
    return [logits(decoder, ids) for ids in prompts]


def logits_within(decoder: Decoder, prompts: Sequence[Array], positions: slice = ALL) -> tuple[list[Array], float]:
    """Return the logits of prompts at some positions, and the bound of rounding errors, relative to the largest one."""
    program = PagedLogits(decoder, max(map(len, prompts)))
    return within_rounding(decoder, lambda decoder: [program(decoder, ids)[positions] for ids in prompts])


def within_rounding(decoder: Decoder, compute: Callable[[Decoder], Sequence[Array]]) -> tuple[list[Array], float]:
    """Return the results of a float32 decoder, and the bound of their rounding errors, relative to the largest of each.

    Rounding differs between CPUs, instruction sets and compilers, and its effect depends on the weights and on
    the prompt. So the bound is measured: by the results of weights with other last digits.
    """
    results = list(compute(decoder))
    moved = [
        float(np.abs(other - result).max() / np.abs(result).max())
        for seed in range(2)
        for other, result in zip(compute(_in_last_digits(decoder, seed)), results, strict=True)
    ]
    return results, ROUNDINGS * max(moved)


def _in_last_digits(decoder: Decoder, seed: int) -> Decoder:
    """Return the decoder with each weight changed by its last digit, up or down."""
    graph, state = nnx.split(decoder)
    rng = np.random.default_rng(seed)

    def change(weight: jax.Array) -> jax.Array:
        if not jnp.issubdtype(weight.dtype, jnp.floating):
            return weight
        signs = rng.choice(np.array([-1, 1], np.float32), weight.shape)
        return weight * (1 + jnp.asarray(LAST_DIGIT * signs, weight.dtype))

    return nnx.merge(graph, jax.tree.map(change, state))
