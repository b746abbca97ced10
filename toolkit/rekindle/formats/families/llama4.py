"""Llama 4 for text: attention in chunks, growing queries in layers without positions, and experts."""

from dataclasses import replace

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import (
    AttentionConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HeadNorm,
    LayerConfig,
    ModelConfig,
    Names,
    QueryGrowth,
    RouterConfig,
)
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_attention, read_llama, read_norm

NAMES = Names(
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert_gate_up=("feed_forward.experts.gate_up_proj",),
    expert_down="feed_forward.experts.down_proj",
    experts_transposed=True,
    experts_interleaved=False,
    shared_gate_up=("feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"),
    shared_down="feed_forward.shared_expert.down_proj",
)
BLOCK = 16
"""The tokens of a block of queries: a block lies in one chunk."""


def read(keys: Keys) -> ModelConfig:
    """Read a Llama 4. The widths of dense layers and of experts have separate keys."""
    keys.get("for_llm_compressor")  # the layout of experts in a tool
    norm, wide = read_norm(keys, default=1e-5), keys.size("intermediate_size_mlp", 16_384)
    dense = FeedForwardConfig(wide, activation_of(keys))
    attention = read_attention(keys, theta=500_000.0, interleaved=True, head_dim=128, kv_heads=8)
    model = read_llama(keys, attention=attention, feed_forward=dense)
    count, experts = model.num_layers, _experts(keys)
    step = keys.size("interleave_moe_layer_step", 1)
    sparse = set(keys.get("moe_layers", range(step - 1, count, step)))
    every = keys.size("no_rope_layer_interval", 4)
    has_rope = keys.get("no_rope_layers") or [(i + 1) % every > 0 for i in range(count)]
    kinds = keys.get("layer_types") or ["chunked_attention" if each else "full_attention" for each in has_rope]
    for key, each in (("no_rope_layers", has_rope), ("layer_types", kinds)):
        if len(each) != count:
            raise CheckpointError(f"{keys.source}: {key} must name {count} layers, got {len(each)}")
    layers = (
        LayerConfig(_attention(keys, attention, bool(each), kind), experts if i in sparse else dense)
        for i, (each, kind) in enumerate(zip(has_rope, kinds, strict=True))
    )
    return replace(model, layers=tuple(layers), norm=norm, names=NAMES)


def _attention(keys: Keys, attention: AttentionConfig, has_rope: bool, kind: str) -> AttentionConfig:
    """Return the attention of a layer: with a rope and norms after the rope, or with growing queries."""
    bias = keys.flag("attention_bias")
    growth = QueryGrowth(keys.number("attn_scale", 0.1), keys.size("floor_scale", 8192), offset=1)
    is_tuned = bool(keys.get("attn_temperature_tuning", True))  # a number in some files
    norm = replace(read_norm(keys, default=1e-5), weighted=False)
    has_norm = keys.flag("use_qk_norm", True) and has_rope
    return replace(
        attention,
        rope=attention.rope if has_rope else None,
        chunk=_chunk(keys, kind),
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorm(norm, after_rope=True) if has_norm else None,
        growth=growth if is_tuned and not has_rope else None,
    )


def _chunk(keys: Keys, kind: str) -> int | None:
    """Return the size of chunks in layers of this kind.

    Raises:
        UnsupportedModel: the kind is not known, or blocks of queries would lie across chunks.
    """
    if kind not in ("chunked_attention", "full_attention"):
        raise UnsupportedModel(f"{keys.source}: layers of type {kind!r} are not supported")
    default = None if keys.has("attention_chunk_size") else 8192
    if kind == "full_attention" or keys.get("attention_chunk_size", default) is None:
        return None
    chunk = keys.size("attention_chunk_size", default)
    if chunk % BLOCK:
        raise UnsupportedModel(f"{keys.source}: attention_chunk_size must be a multiple of {BLOCK}, got {chunk}")
    return chunk


def _experts(keys: Keys) -> ExpertsConfig:
    each = FeedForwardConfig(keys.size("intermediate_size", 8192), activation_of(keys))
    router = RouterConfig(keys.size("num_experts_per_tok", 1), scores="sigmoid")
    return ExpertsConfig(keys.size("num_local_experts", 16), each, router, shared=each, weighted_inputs=True)
