"""The one decoder of all families, as an nnx module over ragged, flat tokens.

It is the one place that knows the names and shapes of a model's tensors: it asks for them when it is built.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.models.config import ModelConfig
from rekindle.models.layers import Linear, RMSNorm, Shapes, WeightSource, rope_frequencies
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation

Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""`(q, k, v, pages) -> (output, pages)` of one layer. Arrays are (token, heads, head_dim); the new pages hold k, v."""


class Attention(nnx.Module):
    """Grouped-query self-attention (Ainslie et al., 2023, arXiv:2305.13245) with rotary positions."""

    def __init__(self, config: ModelConfig, weights: WeightSource, prefix: str):
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = head_dim = config.head_dim
        projections = {f"{prefix}.{p}_proj": heads * head_dim for p, heads in zip("qkv", self.heads, strict=True)}
        self.qkv = Linear(weights, config.hidden_size, projections, bias=config.qkv_bias)
        self.out = Linear(weights, config.num_heads * head_dim, {f"{prefix}.o_proj": config.hidden_size})
        self.q_norm = RMSNorm(weights, f"{prefix}.q_norm", head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(weights, f"{prefix}.k_norm", head_dim, config.norm_eps) if config.qk_norm else None

    def __call__(
        self, x: jax.Array, onto: jax.Array, cos: jax.Array, sin: jax.Array, pages: jax.Array, attend: Attend
    ) -> tuple[jax.Array, jax.Array]:
        """Map (token, hidden) to the same, added to `onto`, and this layer's pages to those that also hold x."""
        qkv = self.qkv(x).reshape(len(x), sum(self.heads), self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = jnp.split(qkv, [self.heads[0], self.heads[0] + self.heads[1]], axis=1)
            qkv = jnp.concatenate([self.q_norm(q), self.k_norm(k), v], axis=1)
        q, kv = kernels.rotate(qkv, cos, sin, self.heads[1], implementation=self.out.implementation)
        mixed, pages = attend(q, kv[:, 0], kv[:, 1], pages)
        return self.out(mixed.reshape(len(x), -1), onto), pages


class MLP(nnx.Module):
    """The gated feed-forward layer SwiGLU (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, weights: WeightSource, prefix: str):
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(weights, hidden, {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner})
        self.down = Linear(weights, inner, {f"{prefix}.down_proj": hidden})

    def __call__(self, x: jax.Array, onto: jax.Array) -> jax.Array:
        """Map (token, hidden) to the same, added to `onto`."""
        return self.down(kernels.gate(self.gate_up(x), implementation=self.down.implementation), onto)


class Layer(nnx.Module):
    """One pre-normalised transformer layer."""

    def __init__(self, config: ModelConfig, weights: WeightSource, prefix: str):
        hidden, eps = config.hidden_size, config.norm_eps
        self.attention_norm = RMSNorm(weights, f"{prefix}.input_layernorm", hidden, eps)
        self.attention = Attention(config, weights, f"{prefix}.self_attn")
        self.mlp_norm = RMSNorm(weights, f"{prefix}.post_attention_layernorm", hidden, eps)
        self.mlp = MLP(config, weights, f"{prefix}.mlp")

    def __call__(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, pages: jax.Array, attend: Attend
    ) -> tuple[jax.Array, jax.Array]:
        """Map (token, hidden) and this layer's pages to the same."""
        x, pages = self.attention(self.attention_norm(x), x, cos, sin, pages, attend)
        return self.mlp(self.mlp_norm(x), x), pages


class Decoder(nnx.Module):
    """A decoder-only transformer.

    Layers are attributes `layer_0`, `layer_1`, … rather than a list, which flax versions register differently.
    """

    def __init__(self, config: ModelConfig, weights: WeightSource):
        self.config, self.implementation = config, weights.implementation
        hidden = config.hidden_size
        self.embedding = nnx.Param(weights.matrix({"model.embed_tokens.weight": (config.vocab_size, hidden)}))
        for i in range(config.num_layers):
            setattr(self, f"layer_{i}", Layer(config, weights, f"model.layers.{i}"))
        self.norm = RMSNorm(weights, "model.norm", hidden, config.norm_eps)
        self.head = None if config.tied_embeddings else Linear(weights, hidden, {"lm_head": config.vocab_size})

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, pages: tuple[jax.Array, ...], attend: Attend
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Run the layers.

        Args:
            tokens: (token,) int32 ids, of any number of requests.
            positions: (token,) int32, each token's index in its own request.
            pages: one array a layer, passed to `attend` unchanged.
            attend: writes the keys and values of this call into the pages, and computes attention over them.

        Returns:
            (token, hidden) float32, normalised, and the pages.
        """
        shape = self.config.vocab_size, self.config.hidden_size
        x = kernels.look_up(self.embedding[...], tokens, shape, implementation=self.implementation)
        frequencies = rope_frequencies(self.config.rope, self.config.head_dim)
        angles = positions[:, None].astype(jnp.float32) * frequencies[None]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        written = []
        for i, layer_pages in enumerate(pages):
            x, layer_pages = getattr(self, f"layer_{i}")(x, cos, sin, layer_pages, attend)
            written.append(layer_pages)
        return self.norm(x), tuple(written)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Map (rows, hidden) to (rows, vocabulary) float32."""
        return kernels.linear(hidden, *self._head(), implementation=self.implementation)

    def logits_by_token(self, hidden: jax.Array) -> jax.Array:
        """Map (rows, hidden) to (vocabulary, rows) float32: the same numbers, as sampling reads them."""
        return kernels.linear_columns(hidden, *self._head(), implementation=self.implementation)

    def _head(self) -> tuple[jax.Array, int]:
        weight = self.embedding if self.head is None else self.head.weight
        return weight[...], self.config.vocab_size


class _Abstract:
    """A source of shapes and dtypes, which notes what it was asked for."""

    def __init__(self, dtype: jnp.dtype, implementation: Implementation):
        self.implementation = implementation
        self.requests: list[Shapes] = []
        self._dtype = dtype

    def vector(self, shapes: Shapes) -> Any:
        self.requests.append(shapes)
        return jax.ShapeDtypeStruct((sum(size for (size,) in shapes.values()),), self._dtype)

    def matrix(self, shapes: Shapes) -> Any:
        self.requests.append(shapes)
        (_, inputs), *_ = shapes.values()
        joined = sum(outputs for outputs, _ in shapes.values()), inputs
        return kernels.packed(joined, self._dtype, implementation=self.implementation)


@lru_cache(maxsize=4)  # building thirty layers takes flax 20 ms
def abstract_decoder(
    config: ModelConfig, dtype: jnp.dtype, implementation: Implementation
) -> tuple[Decoder, tuple[Shapes, ...]]:
    """Build a decoder that has shapes for weights: nothing is read, traced or allocated. It must not be changed.

    Args:
        dtype: of the weights.
        implementation: of the kernels that read them.

    Returns:
        The decoder, and what it asked for, in order: each entry names the tensors that are joined into one weight.
    """
    weights = _Abstract(dtype, implementation)
    return Decoder(config, weights), tuple(weights.requests)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a model of this config has, by its Hugging Face name."""
    _, requests = abstract_decoder(config, jnp.dtype(jnp.float32), "xla")
    return {name: shape for request in requests for name, shape in request.items()}
