"""Numbers of parameters of whole models, by the shapes of one layer of each kind."""

import math
from collections import Counter
from dataclasses import replace

from rekindle.core.models.config import DualConfig, ExpertsConfig, FeedForwardConfig, LayerConfig, ModelConfig
from rekindle.core.models.decoder import expected_shapes


def parameters(config: ModelConfig) -> int:
    """Return the number of a model's parameters, in milliseconds."""
    # The shapes of a layer do not depend on the place of the pages it reads.
    kinds = Counter(layer if layer.pages_of is None else replace(layer, pages_of=0) for layer in config.layers)
    shapes = expected_shapes(replace(config, layers=tuple(kinds)))
    copies = {f"{config.names.layers}.{i}.": count for i, count in enumerate(kinds.values())}
    total = sum(
        math.prod(shape) * next((count for prefix, count in copies.items() if name.startswith(prefix)), 1)
        for name, shape in shapes.items()
    )
    return total + _features(config, config.num_layers - len(kinds))


def active_parameters(config: ModelConfig, total: int) -> int:
    """Return the number of a model's parameters used for a token: all but the ones of other experts.

    Args:
        config: the model.
        total: the number of all its parameters.
    """
    return total - sum(_idle(layer, config.hidden_size) for layer in config.layers)


def _features(config: ModelConfig, layers: int) -> int:
    """Return the parameters of token features for so many layers, outside of the layers."""
    if config.features is None:
        return 0
    return layers * config.features.size * (config.features.vocab_size + config.hidden_size)


def _idle(layer: LayerConfig, hidden: int) -> int:
    """Return the parameters of a layer's experts without this token."""
    experts = layer.feed_forward.experts if isinstance(layer.feed_forward, DualConfig) else layer.feed_forward
    if not isinstance(experts, ExpertsConfig):
        return 0
    return (experts.count - experts.router.per_token) * _of_feed_forward(experts.each, experts.latent or hidden)


def _of_feed_forward(config: FeedForwardConfig, hidden: int) -> int:
    wide = (2 if config.gated else 1) * config.width
    biases = wide * config.bias + hidden * (config.bias or config.out_bias)
    return hidden * (wide + config.width) + biases
