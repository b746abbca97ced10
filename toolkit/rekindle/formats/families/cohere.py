"""Cohere's Command R: one LayerNorm before parallel attention and feed-forward layers."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig, Names, Norm
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read a Cohere of the first generation. Each head's queries and keys may have separate norms."""
    return read_cohere(keys, HeadNorm(_norm(keys), over="own") if keys.flag("use_qk_norm") else None)


def read_cohere(keys: Keys, head_norm: HeadNorm | None = None, head_dim: int | None = None) -> ModelConfig:
    """Read the common parts of both generations.

    Args:
        keys: the config.
        head_norm: the normalisation of queries and keys.
        head_dim: the default size of a head.
    """
    bias = keys.flag("attention_bias")
    attention = read_attention(keys, interleaved=True, head_dim=head_dim)
    attention = replace(attention, qkv_bias=bias, out_bias=bias, head_norm=head_norm)
    return replace(
        read_llama(keys, attention=attention),
        norm=_norm(keys),
        parallel=True,
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        logit_multiplier=keys.number("logit_scale", 0.0625),
        names=Names(before_mlp=None),
    )


def _norm(keys: Keys) -> Norm:
    return replace(read_norm(keys, "layer_norm_eps"), centred=True)
