"""GLM-4.5 to 4.7: experts chosen by sigmoids with a correction, after dense layers."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig
from rekindle.formats.families.experts import SHARED, corrected_router, dense_first, routed_experts
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read a GLM-4.5. Multi-token prediction layers are ignored."""
    keys.get("num_nextn_predict_layers")
    norm, attention = read_norm(keys, default=1e-5), read_attention(keys, share=0.5, kv_heads=8)
    head_norm = HeadNorm(norm) if keys.flag("use_qk_norm") else None
    attention = replace(attention, qkv_bias=keys.flag("attention_bias"), head_norm=head_norm)
    model = read_llama(keys, attention=attention)
    layers = dense_first(keys, model.layers, routed_experts(keys, corrected_router(keys), 1))
    return replace(model, layers=layers, norm=norm, names=SHARED)
