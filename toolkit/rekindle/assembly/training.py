"""A decoder over whole sequences, differentiable: for the training of adapters in a notebook.

Sessions compute ticks over pages and slots, with kernels that have no derivative. Here, a sequence is computed at once
by the same modules. Attention is that of the implementation "reference", which has derivatives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rekindle.core.errors import InvalidRequest
from rekindle.core.models.adapters.products import HEAD, LinearShard, linears, products_of
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.layers import Delta
from rekindle.core.models.sequence import SequenceMixer, empty_memory


def token_logprobs(decoder: Decoder, tokens: jax.Array, head: Delta | None = None) -> jax.Array:
    """Compute the log-probability of each token of some sequences, given the tokens before it.

    Padding at the end of a sequence does not change the log-probabilities of the tokens before.

    Args:
        decoder: a whole decoder, loaded with the implementation "xla"; with "reference" for derivatives of experts.
        tokens: (sequence, length) int32 ids.
        head: the summand of the head, as from `adapt`.

    Returns:
        (sequence, length - 1) float32, for all tokens except the first.
    """

    def one(ids: jax.Array) -> jax.Array:
        positions = jnp.arange(len(ids), dtype=jnp.int32)
        hidden, _ = decoder(ids, positions, empty_memory(decoder.config), SequenceMixer())
        logprobs = jax.nn.log_softmax(decoder.logits(hidden[:-1], head))
        return jnp.take_along_axis(logprobs, ids[1:, None], axis=1)[:, 0]

    return jax.vmap(one)(tokens)


def adapt(decoder: Decoder, tensors: Mapping[str, jax.Array], scale: float) -> Delta | None:
    """Add a LoRA adapter to the products of a decoder made for one trace; the sums are differentiable in its tensors.

    Args:
        decoder: a whole decoder; its linear layers are changed.
        tensors: the matrices "….lora_A.weight" (rank, in) and "….lora_B.weight" (out, rank) of each projection, by its
            name in the checkpoint.
        scale: the factor of their products, `lora_alpha / r` in PEFT's configurations.

    Returns:
        The summand of the head, for `token_logprobs`; None without one.

    Raises:
        InvalidRequest: a tensor is no matrix of a projection of this model, or one of the two is missing.
    """
    products = products_of(decoder.config)
    projections = [name for product in products for name in product.parts]
    pairs = [(f"{name}.lora_A.weight", f"{name}.lora_B.weight") for name in projections]
    expected = dict(pairs) | {second: first for first, second in pairs}
    for name in tensors:
        if expected.get(name) not in tensors:
            problem = f"{name} alone" if name in expected else f"{name}, which no projection has"
            raise InvalidRequest(
                f"tensors must be lora_A.weight and lora_B.weight of projections like {projections[0]}, got {problem}"
            )
    adapted = [product for product in products if any(f"{name}.lora_A.weight" in tensors for name in product.parts)]
    deltas = {product.path: LowRankDelta(product, tensors, scale) for product in adapted}
    for path, linear in linears(decoder):
        if path in deltas and path != HEAD:
            linear.delta = deltas[path]
    return deltas.get(HEAD)


@dataclass(frozen=True, slots=True)
class LowRankDelta:
    """The summand of one product, for all rows. Its attributes are those of `adapt`, and the product."""

    product: LinearShard
    tensors: Mapping[str, jax.Array]
    scale: float

    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Return the sum with the product (rows, out) of the input (rows, in)."""
        sums = jnp.concatenate([self._part(x, name, size) for name, size in self.product.parts.items()], axis=1)
        return y + self.scale * (sums if self.product.order is None else sums[:, self.product.order])

    def _part(self, x: jax.Array, name: str, outputs: int) -> jax.Array:
        if f"{name}.lora_A.weight" not in self.tensors:
            return jnp.zeros((len(x), outputs), x.dtype)
        first, second = (self.tensors[f"{name}.lora_{side}.weight"] for side in "AB")
        return x @ first.T @ second.T
