"""K-EXAONE: an EXAONE 4 with norms before branches, and with experts chosen by sigmoids with a correction."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig
from rekindle.formats.families.exaone4 import hybrid_layers
from rekindle.formats.families.experts import SHARED, corrected_router, dense_first, routed_experts
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm

NAMES = replace(SHARED, correction="mlp.e_score_correction_bias")


def read(keys: Keys) -> ModelConfig:
    """Read an EXAONE with experts. Multi-token prediction layers are ignored."""
    keys.get("num_nextn_predict_layers")
    norm = read_norm(keys, default=1e-5)
    model = read_llama(keys, attention=replace(read_attention(keys), head_norm=HeadNorm(norm)))
    experts = routed_experts(
        keys, corrected_router(keys, scale=2.5), 1, count="num_experts", shared_key="num_shared_experts"
    )
    layers = dense_first(keys, hybrid_layers(keys, model.layers), experts)
    return replace(model, layers=layers, norm=norm, names=NAMES)
