"""Nemotron: LayerNorms with a weight offset of 1, and a squared ReLU without a gate."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names, Norm
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, activation_of, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Nemotron."""
    model = read_llama(keys, share=0.5, eps="norm_eps")
    attention_bias, bias = keys.flag("attention_bias"), keys.flag("mlp_bias")
    feed_forward = replace(model.feed_forward, activation=activation_of(keys, default="relu2"), gated=False, bias=bias)
    return replace(
        model,
        attention=replace(model.attention, qkv_bias=attention_bias, out_bias=attention_bias),
        feed_forward=feed_forward,
        norm=Norm(model.norm.eps, centred=True, offset=1.0, bias=True),
        names=Names(gate_up=("mlp.up_proj",)),
    )


NEMOTRON = Family("NemotronForCausalLM", read, "nemotron")
