"""StableLM: LayerNorms with biases, a rope over a quarter of each head, and parallel blocks in some models."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig, Names, Norm
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm

NAMES = Names(q_norm="self_attn.q_layernorm.norms.{head}", k_norm="self_attn.k_layernorm.norms.{head}")


def read(keys: Keys) -> ModelConfig:
    """Read a StableLM. A parallel block has a single norm."""
    parallel, eps = keys.flag("use_parallel_residual"), read_norm(keys, "layer_norm_eps").eps
    head_norm = HeadNorm(Norm(eps, centred=True), over="own") if keys.flag("qk_layernorm") else None
    attention = replace(read_attention(keys, share=0.25), qkv_bias=keys.flag("use_qkv_bias"), head_norm=head_norm)
    return replace(
        read_llama(keys, attention=attention),
        norm=Norm(eps, centred=True, bias=True),
        parallel=parallel,
        names=replace(NAMES, before_mlp=None) if parallel else NAMES,
    )
