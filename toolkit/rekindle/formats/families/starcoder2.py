"""StarCoder2: LayerNorms and projections with biases, and a feed-forward layer without a gate."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, with_windows

NAMES = Names(gate_up=("mlp.c_fc",), down="mlp.c_proj")


def read(keys: Keys) -> ModelConfig:
    """Read a StarCoder2."""
    bias = keys.flag("use_bias", True)
    keys.refuse("activation_function", keys.get("hidden_act", "gelu_pytorch_tanh"))
    keys.refuse("layer_norm_epsilon", keys.get("norm_epsilon", 1e-5))
    keys.refuse("mlp_type", "default")
    keys.refuse("norm_type", "layer_norm")
    feed_forward = replace(read_feed_forward(keys, "gelu_pytorch_tanh"), gated=False, bias=bias)
    attention = replace(read_attention(keys), qkv_bias=bias, out_bias=bias)
    model = read_llama(keys, attention=attention, feed_forward=feed_forward, eps="norm_epsilon")
    return replace(
        model,
        layers=with_windows(keys, model.layers),
        norm=replace(model.norm, centred=True, bias=True),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        names=NAMES,
    )
