"""MiniMax-M2: a Mixtral with queries and keys normalised over all heads, and experts chosen with a correction."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, HeadNorm, ModelConfig, RouterConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.mixtral import NAMES as MIXTRAL_NAMES
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm

NAMES = replace(MIXTRAL_NAMES, correction="block_sparse_moe.e_score_correction_bias")
ONLY = {
    "attn_type_list": None,
    "layernorm_full_attention_beta": 1,
    "layernorm_linear_attention_beta": 1,
    "layernorm_mlp_beta": 1,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "use_qk_norm": True,
    "use_routing_bias": True,
}
"""Keys of published files with a single supported value."""


def read(keys: Keys) -> ModelConfig:
    """Read a MiniMax-M2. Multi-token prediction layers are ignored."""
    if any(kind != 1 for kind in keys.get("attn_type_list") or ()):
        keys.refuse("attn_type_list")
    for key, value in ONLY.items():
        if key != "attn_type_list":
            keys.refuse(key, value)
    for unused in ("mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules", "shared_moe_mode", "use_mtp"):
        keys.get(unused)
    heads = read_attention(keys, head_dim=128, kv_heads=8)
    share = keys.get("rotary_dim", heads.head_dim) / heads.head_dim
    norm, attention = read_norm(keys), read_attention(keys, theta=5_000_000.0, share=share, head_dim=128, kv_heads=8)
    attention = replace(attention, head_norm=HeadNorm(norm, over="all"))
    router = RouterConfig(keys.size("num_experts_per_tok", 8), scores="sigmoid", normalised=True, correction=True)
    count = keys.size("num_local_experts", keys.get("num_experts", 256))
    model = read_llama(keys, attention=attention)
    experts = ExpertsConfig(count, read_feed_forward(keys), router)
    return replace(model, layers=tuple(replace(each, feed_forward=experts) for each in model.layers), names=NAMES)
