"""Gemma: scaled embeddings, norm weights with an offset of 1, and the tanh form of "gelu"."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Rope
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, activation_of, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Gemma of the first generation."""
    model, bias = read_gemma(keys), keys.flag("attention_bias")
    keys.get("hidden_act")  # "gelu" in files, but the training used the tanh form
    return replace(model, attention=replace(model.attention, qkv_bias=bias, out_bias=bias))


def read_gemma(keys: Keys, rope: Rope | None = None) -> ModelConfig:
    """Read the common parts of all generations.

    Args:
        keys: the config.
        rope: the rope of all layers; None to read it from the config.
    """
    keys.refuse("use_bidirectional_attention", False)
    model = read_llama(keys, rope=rope)
    return replace(
        model,
        feed_forward=replace(
            model.feed_forward, activation=activation_of(keys, "hidden_activation", "gelu_pytorch_tanh")
        ),
        norm=replace(model.norm, offset=1.0),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        embedding_multiplier=model.hidden_size**0.5,
    )


GEMMA = Family("GemmaForCausalLM", read, "gemma")
