"""The one decoder of all families, as an nnx module over ragged, flat tokens."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.models.config import ModelConfig
from rekindle.models.layers import Linear, RMSNorm, matmul, rope_frequencies, rotate

Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""`(q, k, v, pages) -> (output, pages)` of one layer: (token, heads, head_dim) each, and pages that now hold k, v."""

Weights = Callable[..., jax.Array]
"""`weights(name, ...)`: the named tensors of the checkpoint, joined along their first axis."""


class Attention(nnx.Module):
    """Grouped-query self-attention (Ainslie et al., 2023, arXiv:2305.13245) with rotary positions."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str):
        projections = [f"{prefix}.{p}_proj" for p in "qkv"]
        bias = weights(*(f"{p}.bias" for p in projections)) if config.qkv_bias else None
        self.qkv = Linear(weights(*(f"{p}.weight" for p in projections)), bias)
        self.out = Linear(weights(f"{prefix}.o_proj.weight"))
        self.q_norm = RMSNorm(weights(f"{prefix}.q_norm.weight"), config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(weights(f"{prefix}.k_norm.weight"), config.norm_eps) if config.qk_norm else None
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = config.head_dim

    def __call__(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, pages: jax.Array, attend: Attend
    ) -> tuple[jax.Array, jax.Array]:
        """(token, hidden) and this layer's pages to the same, with this call's keys and values in the pages."""
        qkv = self.qkv(x).reshape(len(x), sum(self.heads), self.head_dim)
        q, k, v = jnp.split(qkv, [self.heads[0], self.heads[0] + self.heads[1]], axis=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        mixed, pages = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, pages)
        return self.out(mixed.reshape(len(x), -1)), pages


class MLP(nnx.Module):
    """The gated feed-forward layer SwiGLU (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, weights: Weights, prefix: str):
        self.gate_up = Linear(weights(f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight"))
        self.down = Linear(weights(f"{prefix}.down_proj.weight"))

    def __call__(self, x: jax.Array) -> jax.Array:
        """(token, hidden) to (token, hidden)."""
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(jax.nn.silu(gate) * up)


class Layer(nnx.Module):
    """One pre-normalised transformer layer."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str):
        self.attention_norm = RMSNorm(weights(f"{prefix}.input_layernorm.weight"), config.norm_eps)
        self.attention = Attention(config, weights, f"{prefix}.self_attn")
        self.mlp_norm = RMSNorm(weights(f"{prefix}.post_attention_layernorm.weight"), config.norm_eps)
        self.mlp = MLP(weights, f"{prefix}.mlp")

    def __call__(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, pages: jax.Array, attend: Attend
    ) -> tuple[jax.Array, jax.Array]:
        """(token, hidden) and this layer's pages to the same."""
        mixed, pages = self.attention(self.attention_norm(x), cos, sin, pages, attend)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), pages


class Decoder(nnx.Module):
    """A decoder-only transformer.

    Layers are attributes `layer_0`, `layer_1`, … rather than a list, which flax versions register differently.
    """

    def __init__(self, config: ModelConfig, weights: Weights):
        self.config = config
        self.embedding = nnx.Param(weights("model.embed_tokens.weight"))
        for i in range(config.num_layers):
            setattr(self, f"layer_{i}", Layer(config, weights, f"model.layers.{i}"))
        self.norm = RMSNorm(weights("model.norm.weight"), config.norm_eps)
        self.head = None if config.tied_embeddings else Linear(weights("lm_head.weight"))

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, pages: tuple[jax.Array, ...], attend: Attend
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Run the layers.

        Args:
            tokens: (token,) int32 ids, of any number of requests.
            positions: (token,) int32, each token's index in its own request.
            pages: one array a layer, handed to `attend` as it is.
            attend: how queries of this call meet keys and values, and where those are kept.

        Returns:
            (token, hidden) float32, normalised, and the pages.
        """
        x = self.embedding[...][tokens].astype(jnp.float32)
        frequencies = rope_frequencies(self.config.rope, self.config.head_dim)
        angles = positions[:, None].astype(jnp.float32) * frequencies[None]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        written = []
        for i, layer_pages in enumerate(pages):
            x, layer_pages = getattr(self, f"layer_{i}")(x, cos, sin, layer_pages, attend)
            written.append(layer_pages)
        return self.norm(x), tuple(written)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """(rows, hidden) to (rows, vocabulary) float32."""
        return matmul(hidden, self.embedding[...]) if self.head is None else self.head(hidden)
