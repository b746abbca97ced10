"""Choice of the mixer with a state of a config."""

from rekindle.core.models.config import DeltaNet, Mamba2, ModelConfig, StateConfig
from rekindle.core.models.states.delta_net import DeltaNetMixer
from rekindle.core.models.states.mamba2 import Mamba2Mixer
from rekindle.core.models.states.short_convolution import ShortConvolutionMixer
from rekindle.core.models.weights.requests import WeightSource

AnyStateMixer = ShortConvolutionMixer | DeltaNetMixer | Mamba2Mixer


def state_of(config: StateConfig, model: ModelConfig, weights: WeightSource, prefix: str) -> AnyStateMixer:
    """Return the mixer with this config, from the tensors of the layer with this name prefix."""
    prefix = f"{prefix}.{model.names.state}"
    match config:
        case DeltaNet():
            return DeltaNetMixer(config, model, weights, prefix)
        case Mamba2():
            return Mamba2Mixer(config, model, weights, prefix)
    return ShortConvolutionMixer(config, model, weights, prefix)
