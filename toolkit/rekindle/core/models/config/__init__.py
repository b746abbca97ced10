"""Configs of decoders, independent of the checkpoint format."""

from rekindle.core.models.config.attention import (
    AttentionConfig,
    HeadNorm,
    LatentConfig,
    Norm,
    QueryGrowth,
    Rope,
)
from rekindle.core.models.config.feed_forward import (
    Activation,
    DualConfig,
    ExpertsConfig,
    FeedForwardConfig,
    RouterConfig,
)
from rekindle.core.models.config.model import (
    DistanceBias,
    DraftHeadConfig,
    LayerConfig,
    LearnedPositions,
    LinearBias,
    ModelConfig,
    StreamsConfig,
    TokenFeatures,
)
from rekindle.core.models.config.names import Names
from rekindle.core.models.config.state import DeltaNet, Mamba2, ShortConvolution, StateConfig

__all__ = [
    "Activation",
    "AttentionConfig",
    "DeltaNet",
    "DistanceBias",
    "DraftHeadConfig",
    "DualConfig",
    "ExpertsConfig",
    "FeedForwardConfig",
    "HeadNorm",
    "LatentConfig",
    "LayerConfig",
    "LearnedPositions",
    "LinearBias",
    "Mamba2",
    "ModelConfig",
    "Names",
    "Norm",
    "QueryGrowth",
    "Rope",
    "RouterConfig",
    "ShortConvolution",
    "StateConfig",
    "StreamsConfig",
    "TokenFeatures",
]
