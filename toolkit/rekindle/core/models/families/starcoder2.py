"""StarCoder2: LayerNorms and projections with biases, and a feed-forward layer without a gate."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, activation_of, read_llama, with_windows

NAMES = Names(gate_up=("mlp.c_fc",), down="mlp.c_proj")


def read(keys: Keys) -> ModelConfig:
    """Read a StarCoder2."""
    model, bias = read_llama(keys, eps="norm_epsilon"), keys.flag("use_bias", True)
    activation = activation_of(keys, default="gelu_pytorch_tanh")
    keys.refuse("activation_function", keys.get("hidden_act", "gelu_pytorch_tanh"))
    keys.refuse("layer_norm_epsilon", keys.get("norm_epsilon", 1e-5))
    keys.refuse("mlp_type", "default")
    keys.refuse("norm_type", "layer_norm")
    return replace(
        model,
        attention=replace(model.attention, qkv_bias=bias, out_bias=bias),
        feed_forward=replace(model.feed_forward, activation=activation, gated=False, bias=bias),
        layers=with_windows(keys, model.layers),
        norm=replace(model.norm, centred=True, bias=True),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        names=NAMES,
    )


STARCODER2 = Family("Starcoder2ForCausalLM", read, "starcoder2")
