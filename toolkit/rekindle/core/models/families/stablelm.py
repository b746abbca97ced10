"""StableLM: LayerNorms with biases, a rope over a quarter of each head, and parallel blocks in some models."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig, Names, Norm
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama

NAMES = Names(q_norm="self_attn.q_layernorm.norms.{head}", k_norm="self_attn.k_layernorm.norms.{head}")


def read(keys: Keys) -> ModelConfig:
    """Read a StableLM. A parallel block has a single norm."""
    model = read_llama(keys, share=0.25, eps="layer_norm_eps")
    parallel, eps = keys.flag("use_parallel_residual"), model.norm.eps
    head_norm = HeadNorm(Norm(eps, centred=True), over="own") if keys.flag("qk_layernorm") else None
    return replace(
        model,
        attention=replace(model.attention, qkv_bias=keys.flag("use_qkv_bias"), head_norm=head_norm),
        norm=Norm(eps, centred=True, bias=True),
        parallel=parallel,
        names=replace(NAMES, before_mlp=None) if parallel else NAMES,
    )


STABLELM = Family("StableLmForCausalLM", read, "stablelm")
