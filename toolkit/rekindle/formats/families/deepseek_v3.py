"""DeepSeek-V3 and R1: a DeepSeek-V2 with experts chosen by sigmoids with a correction; GLM-4.7-Flash is alike."""

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.deepseek_v2 import read_latent
from rekindle.formats.families.experts import corrected_router
from rekindle.formats.families.keys import Keys


def read(keys: Keys) -> ModelConfig:
    """Read a DeepSeek-V3. Multi-token prediction layers are ignored."""
    keys.get("num_nextn_predict_layers")
    router = corrected_router(keys, scale=2.5, groups=(8, 4))
    return read_latent(keys, router, interleaved=keys.flag("rope_interleave", True), dense=3)


def read_glm4_moe_lite(keys: Keys) -> ModelConfig:
    """Read a GLM-4.7-Flash. Multi-token prediction layers are ignored."""
    keys.get("num_nextn_predict_layers")
    router = corrected_router(keys, per_token=4, scale=1.8)
    interleaved = keys.flag("rope_interleave", True)
    return read_latent(keys, router, interleaved=interleaved, dense=1, eps=1e-5, shared=1)
