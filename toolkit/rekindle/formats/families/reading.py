"""Readers of the parts of a `config.json` common to most families."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.keywords import hinted
from rekindle.core.models.config import (
    Activation,
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    Norm,
    Rope,
)
from rekindle.core.models.config.scaling import DynamicScaling
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.rope import rope_of

ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu_squared",
}


@hinted
@dataclass(frozen=True, slots=True)
class Family:
    """A family of models.

    Attributes:
        architecture: the family's name in "architectures" of `config.json`.
        read: returns a config from the keys of `config.json`. Most readers adapt the result of `read_llama`.
        model_type: the family's name in "model_type", for files without "architectures".
    """

    architecture: str
    read: Callable[[Keys], ModelConfig]
    model_type: str = ""


def read_llama(
    keys: Keys,
    *,
    attention: AttentionConfig | None = None,
    feed_forward: FeedForwardConfig | None = None,
    eps: str = "rms_norm_eps",
) -> ModelConfig:
    """Read the config of a Llama, as a starting point for most families.

    Args:
        keys: the keys of `config.json`.
        attention: the attention of all layers; None for the result of `read_attention`.
        feed_forward: the feed-forward layer of all layers; None for the result of `read_feed_forward`.
        eps: the key of the norms' epsilon.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    attention = read_attention(keys) if attention is None else attention
    feed_forward = read_feed_forward(keys) if feed_forward is None else feed_forward
    return ModelConfig(
        family=keys.get("model_type", "llama"),
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size("hidden_size"),
        max_context=_max_context(keys, attention.rope),
        layers=(LayerConfig(attention, feed_forward),) * keys.layers("num_hidden_layers"),
        norm=read_norm(keys, eps),
        tied_embeddings=keys.flag("tie_word_embeddings"),
    )


def _max_context(keys: Keys, rope: Rope | None) -> int:
    """Return the context length in tokens: more than "max_position_embeddings" for a dynamic long-context rope."""
    positions = keys.size("max_position_embeddings")
    scaling = None if rope is None else rope.scaling
    return int(positions * scaling.factor) if isinstance(scaling, DynamicScaling) else positions


def read_attention(
    keys: Keys,
    *,
    theta: float = 10_000.0,
    share: float = 1.0,
    interleaved: bool = False,
    head_dim: int | None = None,
    kv_heads: int | None = None,
) -> AttentionConfig:
    """Read the sizes and the rope of attention.

    Args:
        keys: the keys of `config.json`.
        theta: the default base of the rope.
        share: the default fraction of a head that is rotary.
        interleaved: whether the rope's pairs in a checkpoint are (2i, 2i + 1).
        head_dim, kv_heads: see `read_heads`.

    Raises:
        UnsupportedModel: the kind of rope is not implemented.
        CheckpointError: a number is missing or wrong, or the heads cannot share keys evenly.
    """
    attention = read_heads(keys, head_dim=head_dim, kv_heads=kv_heads)
    rope = rope_of(keys, attention.head_dim, theta, share)
    return replace(attention, rope=replace(rope, interleaved=interleaved))


def read_heads(keys: Keys, *, head_dim: int | None = None, kv_heads: int | None = None) -> AttentionConfig:
    """Read the sizes of attention, without positions.

    Args:
        keys: the keys of `config.json`.
        head_dim: the default size of a head; None for an equal share of the token's size.
        kv_heads: the default number of KV heads; None for the number of heads.

    Raises:
        CheckpointError: a number is missing or wrong, or the heads cannot share keys evenly.
    """
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", heads if kv_heads is None else kv_heads)
    if heads % kv_heads:
        raise CheckpointError(f"{keys.source}: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads if head_dim is None else head_dim)
    return AttentionConfig(heads, kv_heads, head_dim, scale=head_dim**-0.5)


def read_feed_forward(keys: Keys, activation: str = "silu") -> FeedForwardConfig:
    """Read the size and the activation of a gated feed-forward layer.

    Args:
        keys: the keys of `config.json`.
        activation: the default activation.

    Raises:
        UnsupportedModel: the activation is not implemented.
        CheckpointError: the size is missing or wrong.
    """
    return FeedForwardConfig(keys.size("intermediate_size"), activation_of(keys, default=activation))


def read_norm(keys: Keys, eps: str = "rms_norm_eps", default: float = 1e-6) -> Norm:
    """Read the normalisation of a Llama, with its epsilon under the key `eps`."""
    return Norm(keys.number(eps, default))


def activation_of(keys: Keys, key: str = "hidden_act", default: str = "silu") -> Activation:
    """Read an activation.

    Raises:
        UnsupportedModel: the activation is not implemented.
    """
    name = keys.get(key, default)
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"{keys.source}: {key} {name!r} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def with_windows(
    keys: Keys,
    layers: Sequence[LayerConfig],
    rule: Callable[[int], bool] = lambda _: True,
    *,
    rope: Rope | None = None,
    default_on: bool = True,
    default_size: int | None = None,
) -> tuple[LayerConfig, ...]:
    """Return layers with sliding windows according to `layer_types`, else according to a rule.

    Args:
        keys: the keys of `config.json`.
        layers: the layers, without windows.
        rule: returns whether the layer with this index has a window.
        rope: the rope of windowed layers; None for no change.
        default_on: the default of `use_sliding_window`.
        default_size: the size of windows without the key `sliding_window`; None for no windows.

    Raises:
        CheckpointError: the length of `layer_types` is not the number of layers.
        UnsupportedModel: a type of layer is not implemented.
    """
    types = layer_types(keys, len(layers), rule)
    default_size = None if keys.has("sliding_window") else default_size
    window, is_on = keys.get("sliding_window", default_size), keys.flag("use_sliding_window", default_on)
    if not window or not is_on:
        return tuple(layers)
    size = keys.size("sliding_window", default_size)
    return tuple(
        _with_window(layer, size, rope) if kind == "sliding_attention" else layer
        for layer, kind in zip(layers, types, strict=True)
    )


def layer_types(keys: Keys, count: int, rule: Callable[[int], bool]) -> list[str]:
    """Return the kind of attention of each layer, "full_attention" or "sliding_attention".

    Args:
        keys: the keys of `config.json`.
        count: the number of layers.
        rule: returns whether the layer with this index has a window, for configs without `layer_types`.

    Raises:
        CheckpointError: the length of `layer_types` is not the number of layers.
        UnsupportedModel: a type of layer is not implemented.
    """
    types: list[Any] | None = keys.get("layer_types")
    if types is None:
        return ["sliding_attention" if rule(i) else "full_attention" for i in range(count)]
    if len(types) != count:
        raise CheckpointError(f"{keys.source}: layer_types must name {count} layers, got {len(types)}")
    for kind in set(types) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"{keys.source}: layers of type {kind!r} are not supported")
    return types


def without_positions(layer: LayerConfig) -> LayerConfig:
    """Return the layer without a rope."""
    return layer if layer.attention is None else replace(layer, attention=replace(layer.attention, rope=None))


def _with_window(layer: LayerConfig, window: int, rope: Rope | None) -> LayerConfig:
    if layer.attention is None:
        return layer
    rope = layer.attention.rope if rope is None else rope
    return replace(layer, attention=replace(layer.attention, rope=rope, window=window))
