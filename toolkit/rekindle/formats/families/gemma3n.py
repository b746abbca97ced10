"""Gemma 3n for text: several residual streams, token features, sparse activations, and shared pages."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from rekindle.core.models.config import (
    FeedForwardConfig,
    HeadNorm,
    LayerConfig,
    ModelConfig,
    StreamsConfig,
    TokenFeatures,
)
from rekindle.formats.families.gemma2 import NAMES
from rekindle.formats.families.gemma4 import page_owners
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, layer_types, read_heads, read_norm
from rekindle.formats.families.rope import ropes_of

SPARSE_LAYERS = 10
"""The number of sparse layers at the start of models with more layers, if the config does not list them."""


def read(keys: Keys) -> ModelConfig:
    """Read a Gemma 3n. Every fifth layer has full attention."""
    count, hidden = keys.layers("num_hidden_layers"), keys.size("hidden_size")
    types = layer_types(keys, count, lambda i: (i + 1) % 5 > 0)
    heads, norm, bias = read_heads(keys), read_norm(keys), keys.flag("attention_bias")
    full_rope, local_rope = ropes_of(keys, heads.head_dim, 1_000_000.0, "rope_local_base_freq", 10_000.0)
    full = replace(
        heads,
        scale=1.0,
        rope=full_rope,
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorm(norm),
        value_norm=replace(norm, weighted=False),
    )
    sliding = replace(full, rope=local_rope, window=keys.size("sliding_window", 512))
    attentions = [full if kind == "full_attention" else sliding for kind in types]
    owners = page_owners(keys, types, default=15)
    activation = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh")
    for unused in ("altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"):
        keys.get(unused)  # of training; scores are not scaled
    return ModelConfig(
        family="gemma3n_text",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        max_context=keys.size("max_position_embeddings"),
        layers=tuple(map(LayerConfig, attentions, _feed_forwards(keys, count), owners)),
        norm=norm,
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        embedding_multiplier=hidden**0.5,
        rounded_embedding=True,
        features=TokenFeatures(
            keys.size("hidden_size_per_layer_input", 256),
            keys.size("vocab_size_per_layer_input", 262_144),
            activation,
        ),
        streams=_streams(keys),
        laurel_rank=keys.size("laurel_rank", 64),
        logit_cap=keys.number_or_none("final_logit_softcapping") if keys.has("final_logit_softcapping") else 30.0,
        names=NAMES,
    )


def _streams(keys: Keys) -> StreamsConfig:
    count, active = keys.size("altup_num_inputs", 4), keys.get("altup_active_idx", 0)
    if active not in range(count):
        raise keys.wrong("altup_active_idx", f"must be one of {count} streams, counted from 0", active)
    return StreamsConfig(count, active, keys.flag("altup_correct_scale", True))


def _feed_forwards(keys: Keys, count: int) -> list[FeedForwardConfig]:
    """Return the feed-forward layer of each layer: widths and sparsities may be lists."""
    activation = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh")
    sparse = SPARSE_LAYERS if count > SPARSE_LAYERS else 0
    default = [0.95] * sparse + [0.0] * (count - sparse)
    widths = keys.get("intermediate_size")
    widths = widths if isinstance(widths, list) else [keys.size("intermediate_size")] * count
    sparsities = keys.get("activation_sparsity_pattern", default)
    for key, values in (("intermediate_size", widths), ("activation_sparsity_pattern", sparsities)):
        if not isinstance(values, list) or len(values) != count:
            raise keys.wrong(key, f"must be a list of {count} numbers, one for each layer", values)
    if not all(0 <= sparsity < 1 for sparsity in sparsities):
        raise keys.wrong("activation_sparsity_pattern", "must have numbers from 0 to below 1", sparsities)
    return [
        FeedForwardConfig(width, activation, cutoff=_cutoff(sparsity) if sparsity else None)
        for width, sparsity in zip(widths, sparsities, strict=True)
    ]


def _cutoff(sparsity: float) -> float:
    """Return the bound of a normal distribution with this share below, in standard deviations, rounded to float32."""
    return float(np.float32(NormalDist().inv_cdf(sparsity)))
