"""Choice of the feed-forward layer of a config."""

from rekindle.core.models.config import DualConfig, ExpertsConfig, FeedForwardConfig, ModelConfig
from rekindle.core.models.feed_forward.dense import FeedForward, dense_of
from rekindle.core.models.feed_forward.dual import DualFeedForward
from rekindle.core.models.feed_forward.experts import Experts
from rekindle.core.models.weights.requests import WeightSource

AnyFeedForward = FeedForward | Experts | DualFeedForward


def feed_forward_of(
    config: FeedForwardConfig | ExpertsConfig | DualConfig, model: ModelConfig, weights: WeightSource, prefix: str
) -> AnyFeedForward:
    """Return the feed-forward layer with this config, from tensors with this name prefix."""
    match config:
        case ExpertsConfig():
            return Experts(config, model, weights, prefix)
        case DualConfig():
            return DualFeedForward(config, model, weights, prefix)
    return dense_of(config, model, weights, prefix)
