"""OLMo 2: norms after attention and feed-forward layers, and queries and keys normalised over all heads."""

from dataclasses import replace

from rekindle.core.models.config import AttentionConfig, HeadNorm, ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm

NAMES = Names(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


def read(keys: Keys) -> ModelConfig:
    """Read an OLMo 2."""
    return read_olmo(keys, read_attention(keys, theta=500_000.0))


def read_olmo(keys: Keys, attention: AttentionConfig) -> ModelConfig:
    """Read the common parts of OLMo 2 and 3.

    Args:
        keys: the config.
        attention: the attention of all layers, without biases and norms.
    """
    bias, head_norm = keys.flag("attention_bias"), HeadNorm(read_norm(keys), over="all")
    attention = replace(attention, qkv_bias=bias, out_bias=bias, head_norm=head_norm)
    return replace(read_llama(keys, attention=attention), names=NAMES)
