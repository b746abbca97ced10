"""Ernie 4.5 with experts: chosen with a correction of probabilities, beside shared ones."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, RouterConfig
from rekindle.formats.families.experts import SHARED, routed_experts
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm

NAMES = replace(SHARED, correction="mlp.moe_statics.e_score_correction_bias", correction_is_row=True)


def read(keys: Keys) -> ModelConfig:
    """Read an Ernie 4.5 with experts in a range of layers. Multi-token prediction layers are ignored."""
    keys.refuse("use_bias", False)
    keys.refuse("moe_gate", "topk")
    keys.refuse("moe_use_aux_free", True)
    for unused in ("moe_capacity", "moe_norm_min", "num_nextn_predict_layers"):
        keys.get(unused)
    model = read_llama(keys, attention=read_attention(keys, theta=500_000.0, interleaved=True, kv_heads=4))
    router = RouterConfig(keys.size("moe_k", keys.get("num_experts_per_tok", 6)), normalised=True, correction=True)
    experts = routed_experts(keys, router, 2, count="moe_num_experts", shared_key="moe_num_shared_experts")
    first, last = keys.get("moe_layer_start_index", 1), keys.get("moe_layer_end_index", -1)
    step, last = keys.size("moe_layer_interval", 1), model.num_layers - 1 if last == -1 else last
    layers = tuple(
        replace(layer, feed_forward=experts) if (i + 1) % step == 0 and first <= i <= last else layer
        for i, layer in enumerate(model.layers)
    )
    tied = keys.flag("tie_word_embeddings", True)
    return replace(model, layers=layers, norm=read_norm(keys, default=1e-5), tied_embeddings=tied, names=NAMES)
