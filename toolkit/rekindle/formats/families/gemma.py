"""Gemma: scaled embeddings, norm weights with an offset of 1, and the tanh form of "gelu"."""

from dataclasses import replace

from rekindle.core.models.config import AttentionConfig, FeedForwardConfig, ModelConfig, Norm
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_attention, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read a Gemma of the first generation."""
    return read_gemma(keys, read_attention(keys))


def read_gemma(keys: Keys, attention: AttentionConfig) -> ModelConfig:
    """Read the common parts of the first three generations.

    Args:
        keys: the config.
        attention: the attention of all layers, without biases.
    """
    bias = keys.flag("attention_bias")
    keys.get("hidden_act")  # "gelu" in some files, but the training used the tanh form
    activation = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh")
    model = read_llama(
        keys,
        attention=replace(attention, qkv_bias=bias, out_bias=bias),
        feed_forward=FeedForwardConfig(keys.size("intermediate_size"), activation),
    )
    return replace(
        model,
        norm=gemma_norm(keys),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        embedding_multiplier=model.hidden_size**0.5,
        rounded_embedding=True,
    )


def gemma_norm(keys: Keys) -> Norm:
    """Return the norm of the first three generations; their weights are stored without 1."""
    return replace(read_norm(keys), offset=1.0)
