"""Readers common to families with a state in some of their layers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import LayerConfig, Mamba2, Norm, StateConfig
from rekindle.formats.families.keys import Keys

STATE: Final = "state"
ATTENTION: Final = "attention"
KINDS: Final = {
    "attention": ATTENTION,
    "full_attention": ATTENTION,
    "conv": STATE,
    "linear_attention": STATE,
    "mamba": STATE,
}
"""Kinds of layers by their name in configs, older or newer."""


def kinds_of(keys: Keys, count: int, rule: Callable[[int], bool], key: str = "layer_types") -> list[str]:
    """Return the kind of each layer: `STATE` or `ATTENTION`.

    Args:
        keys: the config.
        count: the number of layers.
        rule: returns whether the layer with this index has attention, for configs without the list.
        key: the key of the list.

    Raises:
        CheckpointError: the length of the list is not the number of layers.
        UnsupportedModel: a kind of layer is not implemented.
    """
    names = keys.get(key)
    if names is None:
        return [ATTENTION if rule(i) else STATE for i in range(count)]
    if len(names) != count:
        raise CheckpointError(f"{keys.source}: {key} must name {count} layers, got {len(names)}")
    for kind in set(names) - KINDS.keys():
        raise UnsupportedModel(f"{keys.source}: layers of type {kind!r} are not supported in this family")
    return [KINDS[kind] for kind in names]


def with_states(layers: Sequence[LayerConfig], kinds: Sequence[str], state: StateConfig) -> tuple[LayerConfig, ...]:
    """Return layers with a state in place of attention, where their kind is `STATE`."""
    return tuple(
        replace(layer, attention=None, state=state) if kind == STATE else layer
        for layer, kind in zip(layers, kinds, strict=True)
    )


def read_mamba(keys: Keys, norm: Norm | None) -> Mamba2:
    """Read a Mamba-2 with keys that begin with "mamba_".

    Args:
        keys: the config.
        norm: the normalisation of its groups; None for none.
    """
    for unused in ("mamba_chunk_size", "mamba_use_mlp"):
        keys.get(unused)  # the length of the chunks of a computation; a remark on the layer around it
    heads = keys.size("mamba_n_heads", 128)
    inner = keys.size("mamba_expand", 2) * keys.size("hidden_size")
    if keys.get("mamba_d_ssm") is not None:
        inner = keys.size("mamba_d_ssm")
    head_size = inner // heads if keys.get("mamba_d_head", "auto") == "auto" else keys.size("mamba_d_head")
    bias = keys.flag("mamba_proj_bias")
    return checked_mamba(
        keys,
        Mamba2(
            heads=heads,
            groups=keys.size("mamba_n_groups", 1),
            head_size=head_size,
            state_size=keys.size("mamba_d_state", 256),
            taps=keys.size("mamba_d_conv", 4),
            bias=bias,
            out_bias=bias,
            convolution_bias=keys.flag("mamba_conv_bias", True),
            steps=read_steps(keys),
            norm=norm,
        ),
    )


def checked_mamba(keys: Keys, mamba: Mamba2) -> Mamba2:
    """Return a Mamba-2 whose heads can share keys evenly.

    Raises:
        CheckpointError: they cannot.
    """
    if mamba.heads % mamba.groups:
        raise CheckpointError(f"{keys.source}: {mamba.heads} Mamba heads cannot share {mamba.groups} groups evenly")
    return mamba


def read_steps(keys: Keys) -> tuple[float, float] | None:
    """Return the smallest and the largest step of "time_step_limit", or None if all steps are within.

    Raises:
        CheckpointError: the value is not a list of two numbers.
    """
    limits = keys.get("time_step_limit")
    if limits is None:
        return None
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        raise keys.wrong("time_step_limit", "must be a list of two numbers", limits)
    low, high = map(_number, limits)
    return None if low <= 0 and high == math.inf else (low, high)


def _number(value: Any) -> float:
    """Return a number, which transformers spells as an object if it is infinite."""
    return float(value["__float__"] if isinstance(value, dict) else value)
