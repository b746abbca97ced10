"""Attention to later tokens, as in many models for embeddings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import LayerConfig, ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.nearest import EMBEDDING

_BOTH_WAYS: Final = "use_bidirectional_attention"
_ONE_WAY: Final[Mapping[str, tuple[Any, ...]]] = {
    "bidirectional": (False,),
    "is_causal": (True, False),
    _BOTH_WAYS: (False, "vision"),
}
"""Keys for attention to later tokens, with their supported values."""
HALF_WINDOWS: Final = frozenset({"gemma3_text"})
"""Families with `use_bidirectional_attention`; half of a window is then on each side of a token."""


def in_its_directions(model: ModelConfig, keys: Keys) -> ModelConfig:
    """Return the model with attention to later tokens, if a key of the config asks for both directions.

    Raises:
        UnsupportedModel: the model reads texts in both directions in a way without support.
    """
    halves = keys.get(_BOTH_WAYS) is True and model.family in HALF_WINDOWS
    for key, supported in _ONE_WAY.items():
        value = keys.get(key)
        if value is not None and value not in supported and not (halves and key == _BOTH_WAYS):
            raise _refusal(keys, f"{key} is {value!r:.80}")
    if not halves and keys.get("is_causal") is not False:
        return model
    if model.state_bytes or any(attention.chunk is not None for attention in model.attentions):
        raise _refusal(keys, "attention is not causal")
    layers = tuple(_both_ways(layer, halves=halves) for layer in model.layers)
    return replace(model, layers=layers, both_ways=True)


def with_whole_prompts(model: ModelConfig, keys: Keys) -> ModelConfig:
    """Return the model with prompts in both directions, and causal answers.

    Windows are for answers alone: a context no longer than a window needs none.
    """
    keys.get(_BOTH_WAYS)
    windows = [attention.window for attention in model.attentions if attention.window is not None]
    layers = (
        replace(layer, attention=None if layer.attention is None else replace(layer.attention, window=None, ahead=None))
        for layer in model.layers
    )
    context = min([model.max_context, *windows])
    return replace(model, layers=tuple(layers), max_context=context, both_ways=True)


def _refusal(keys: Keys, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{keys.source}: {reason}, so the model reads its text in both directions, which is not supported in this "
        f"family. The nearest that opens: {EMBEDDING}"
    )


def _both_ways(layer: LayerConfig, *, halves: bool) -> LayerConfig:
    """Return a layer with attention in both directions. A window reaches as far in each."""
    attention = layer.attention
    if attention is None:
        return layer
    if attention.window is None:
        return replace(layer, attention=replace(attention, ahead=None))
    reach = attention.window // 2 if halves else attention.window
    return replace(layer, attention=replace(attention, window=reach + 1, ahead=reach))
