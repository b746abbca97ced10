"""Choice of the feed-forward layer of a config."""

from typing import TYPE_CHECKING

from rekindle.core.models.config import DualConfig, ExpertsConfig, FeedForwardConfig, ModelConfig
from rekindle.core.models.feed_forward.dense import FeedForward, dense_of
from rekindle.core.models.weights.requests import WeightSource

if TYPE_CHECKING:
    from rekindle.core.models.feed_forward.dual import DualFeedForward
    from rekindle.core.models.feed_forward.experts import Experts


def feed_forward_of(
    config: FeedForwardConfig | ExpertsConfig | DualConfig, model: ModelConfig, weights: WeightSource, prefix: str
) -> "FeedForward | Experts | DualFeedForward":
    """Return the feed-forward layer with this config, from tensors with this name prefix."""
    match config:
        case ExpertsConfig():
            from rekindle.core.models.feed_forward.experts import Experts

            return Experts(config, model, weights, prefix)
        case DualConfig():
            from rekindle.core.models.feed_forward.dual import DualFeedForward

            return DualFeedForward(config, model, weights, prefix)
    return dense_of(config, model, weights, prefix)
