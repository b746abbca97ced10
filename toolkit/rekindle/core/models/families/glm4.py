"""GLM-4: four norms per layer, a fused gate, and an interleaved rope over half of each head."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama

NAMES = Names(gate_up=("mlp.gate_up_proj",), after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


def read(keys: Keys) -> ModelConfig:
    """Read a GLM-4."""
    model = read_llama(keys, share=0.5)
    layers = tuple(replace(layer, rope=layer.rope and replace(layer.rope, interleaved=True)) for layer in model.layers)
    attention = replace(model.attention, qkv_bias=keys.flag("attention_bias", True))
    return replace(model, attention=attention, layers=layers, names=NAMES)


GLM4 = Family("Glm4ForCausalLM", read, "glm4")
