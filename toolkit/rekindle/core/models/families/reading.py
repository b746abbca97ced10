"""Readers of the parts of a `config.json` common to most families."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import (
    Activation,
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    Norm,
    Rope,
)
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.rope import rope_of
from rekindle.core.models.scaling import DynamicScaling

ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu_squared",
}


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
    theta: float = 10_000.0,
    share: float = 1.0,
    eps: str = "rms_norm_eps",
    rope: Rope | None = None,
) -> ModelConfig:
    """Read the config of a Llama, as a starting point for most families.

    Args:
        keys: the keys of `config.json`.
        theta: the default base of the rope.
        share: the default fraction of a head that is rotary.
        eps: the key of the norms' epsilon.
        rope: the rope of all layers; None to read it from the keys.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    attention = read_attention(keys)
    rope = rope_of(keys, attention.head_dim, theta, share) if rope is None else rope
    return ModelConfig(
        family=keys.get("model_type", "llama"),
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size("hidden_size"),
        max_context=_max_context(keys, rope),
        attention=attention,
        feed_forward=FeedForwardConfig(keys.size("intermediate_size"), activation_of(keys)),
        layers=(LayerConfig(rope),) * keys.size("num_hidden_layers"),
        norm=Norm(keys.number(eps, 1e-6)),
        tied_embeddings=keys.flag("tie_word_embeddings"),
    )


def _max_context(keys: Keys, rope: Rope) -> int:
    """Return the context length in tokens: more than "max_position_embeddings" for a dynamic long-context rope."""
    positions = keys.size("max_position_embeddings")
    return int(positions * rope.scaling.factor) if isinstance(rope.scaling, DynamicScaling) else positions


def read_attention(keys: Keys) -> AttentionConfig:
    """Read the sizes of attention.

    Raises:
        CheckpointError: a number is missing or wrong, or the heads cannot share keys evenly.
    """
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"{keys.source}: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads)
    return AttentionConfig(heads, kv_heads, head_dim, scale=head_dim**-0.5)


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
) -> tuple[LayerConfig, ...]:
    """Return layers with sliding windows according to `layer_types`, else according to a rule.

    Args:
        keys: the keys of `config.json`.
        layers: the layers, without windows.
        rule: returns whether the layer with this index has a window.
        rope: the rope of windowed layers; None for no change.
        default_on: the default of `use_sliding_window`.

    Raises:
        CheckpointError: the length of `layer_types` is not the number of layers.
        UnsupportedModel: a type of layer is not implemented.
    """
    types: list[Any] | None = keys.get("layer_types")
    window, is_on = keys.get("sliding_window"), keys.flag("use_sliding_window", default_on)
    if types is not None and len(types) != len(layers):
        raise CheckpointError(f"{keys.source}: layer_types must name {len(layers)} layers, got {len(types)}")
    for kind in set(types or ()) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"{keys.source}: layers of type {kind!r} are not supported")
    if not window or not is_on:
        return tuple(layers)
    sliding = (
        [rule(i) for i in range(len(layers))] if types is None else [kind == "sliding_attention" for kind in types]
    )
    return tuple(
        LayerConfig(layer.rope if rope is None else rope, keys.size("sliding_window")) if slides else layer
        for layer, slides in zip(layers, sliding, strict=True)
    )
