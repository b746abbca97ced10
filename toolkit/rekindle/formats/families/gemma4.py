"""Gemma 4 for text: heads of two sizes, values from keys, shared pages, token features, and experts beside a layer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rekindle.core.errors import CheckpointError
from rekindle.core.models.config import (
    AttentionConfig,
    DualConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HeadNorm,
    LayerConfig,
    ModelConfig,
    RouterConfig,
    TokenFeatures,
)
from rekindle.formats.families.gemma2 import NAMES as GEMMA2_NAMES
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, layer_types, read_heads, read_norm
from rekindle.formats.families.rope import proportional_rope, ropes_of

NAMES = replace(
    GEMMA2_NAMES,
    layer_scale="layer_scalar",
    router="router.proj",
    expert_gate_up=("experts.gate_up_proj",),
    expert_down="experts.down_proj",
)
FULL = "full_attention"


def read(keys: Keys) -> ModelConfig:
    """Read a Gemma 4. The last layer always has full attention."""
    count, hidden = keys.layers("num_hidden_layers"), keys.size("hidden_size")
    types = [*layer_types(keys, count, lambda i: (i + 1) % 6 > 0)[:-1], FULL]
    attentions = [_attention(keys, kind, each) for kind, each in zip(types, _heads(keys, types), strict=True)]
    owners = page_owners(keys, types)
    layers = (
        LayerConfig(attention, _feed_forward(keys, shared=owner is not None), owner)
        for attention, owner in zip(attentions, owners, strict=True)
    )
    return ModelConfig(
        family="gemma4_text",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        max_context=keys.size("max_position_embeddings"),
        layers=tuple(layers),
        norm=read_norm(keys),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        embedding_multiplier=hidden**0.5,
        rounded_embedding=True,
        features=_features(keys),
        logit_cap=keys.number_or_none("final_logit_softcapping"),
        names=NAMES,
    )


def _heads(keys: Keys, types: Sequence[str]) -> list[AttentionConfig]:
    """Return the sizes of each layer's heads: newer files list them by layer, older ones by the kind of attention."""
    heads = read_heads(keys)
    by_layer = _by_layer(keys, len(types))
    full_dim, full_kv_heads = keys.size("global_head_dim", 512), keys.get("num_global_key_value_heads")
    if by_layer is None:
        kv_heads = full_kv_heads if full_kv_heads and keys.flag("attention_k_eq_v") else heads.kv_heads
        full = replace(heads, head_dim=full_dim, kv_heads=kv_heads)
        return [full if kind == FULL else heads for kind in types]
    return [_sized(heads, by_layer[i]) if i in by_layer else heads for i in range(len(types))]


def _by_layer(keys: Keys, count: int) -> dict[int, Keys] | None:
    """Return the entries of some layers by number, written as "5", or as "05" in models with ten layers and more."""
    entries: Any = keys.get("per_layer_config")
    if entries is None:
        return None
    if not isinstance(entries, Mapping) or not all(
        isinstance(entry, Mapping) and str(number).isdecimal() and int(number) < count
        for number, entry in entries.items()
    ):
        raise keys.wrong("per_layer_config", f"must be an object of objects by number, from 0 to {count - 1}", entries)
    return {int(number): Keys(entry, f"{keys.source}: per_layer_config: {number}") for number, entry in entries.items()}


def _sized(heads: AttentionConfig, layer: Keys) -> AttentionConfig:
    """Return the heads with the sizes of a layer, which has no other changes."""
    head_dim, kv_heads = layer.size("head_dim", heads.head_dim), layer.size("num_key_value_heads", heads.kv_heads)
    for key in layer.unread():
        layer.refuse(key)
    return replace(heads, head_dim=head_dim, kv_heads=kv_heads)


def _attention(keys: Keys, kind: str, heads: AttentionConfig) -> AttentionConfig:
    """Return the attention of a layer of this kind, whose scores are not scaled."""
    bias, norm = keys.flag("attention_bias"), read_norm(keys)
    full, sliding = ropes_of(keys, heads.head_dim, 1_000_000.0, "rope_local_base_freq", 10_000.0)
    full = full if keys.get("rope_parameters") else proportional_rope(1_000_000.0, heads.head_dim, 0.25)
    is_full = kind == FULL
    return replace(
        heads,
        scale=1.0,
        rope=full if is_full else sliding,
        window=None if is_full else keys.size("sliding_window", 512),
        ahead=None if not is_full and keys.get("use_bidirectional_attention") == "vision" else 0,
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorm(norm),
        value_norm=replace(norm, weighted=False),
        values_are_keys=is_full and keys.flag("attention_k_eq_v"),
    )


def page_owners(keys: Keys, types: Sequence[str], default: int = 0) -> list[int | None]:
    """Return the owner of each layer's pages: the last layers read pages of the last unshared layer of their kind.

    Args:
        keys: the keys of `config.json`.
        types: the kind of attention of each layer.
        default: the default number of layers without pages of their own.
    """
    shared = keys.get("num_kv_shared_layers", default)
    first = len(types) - shared
    owners: list[int | None] = [None] * first
    for kind in types[first:]:
        if kind not in types[:first]:
            raise CheckpointError(
                f"{keys.source}: num_kv_shared_layers is {shared}, but the {first} layers before have no {kind}"
            )
        owners.append(first - 1 - types[:first][::-1].index(kind))
    return owners


def _feed_forward(keys: Keys, *, shared: bool) -> FeedForwardConfig | DualConfig:
    """Return the feed-forward layer; it may be twice as wide in layers without their own pages."""
    activation, wide = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh"), keys.flag("use_double_wide_mlp")
    dense = FeedForwardConfig(keys.size("intermediate_size") * (2 if wide and shared else 1), activation)
    if not keys.flag("enable_moe_block"):
        for unused in ("top_k_experts", "moe_intermediate_size", "num_experts"):
            keys.get(unused)
        return dense
    router = RouterConfig(keys.size("top_k_experts"), normalised=True, norm=read_norm(keys), expert_scale=True)
    each = FeedForwardConfig(keys.size("moe_intermediate_size"), activation)
    return DualConfig(dense, ExpertsConfig(keys.size("num_experts"), each, router))


def _features(keys: Keys) -> TokenFeatures | None:
    rows = keys.size("vocab_size_per_layer_input", 262_144)
    size = keys.get("hidden_size_per_layer_input", None if keys.has("hidden_size_per_layer_input") else 256)
    if not size:
        return None
    activation = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh")
    return TokenFeatures(keys.size("hidden_size_per_layer_input", 256), rows, activation, keys.get("pad_token_id", 0))
