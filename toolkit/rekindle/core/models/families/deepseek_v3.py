"""DeepSeek-V3 and R1: a DeepSeek-V2 with experts chosen by sigmoids with a correction."""

from rekindle.core.models.config import ModelConfig, RouterConfig
from rekindle.core.models.families.deepseek_v2 import read_latent
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family


def read(keys: Keys) -> ModelConfig:
    """Read a DeepSeek-V3. Groups of experts compete by their best two. Multi-token prediction layers are ignored."""
    keys.refuse("topk_method", "noaux_tc")
    keys.refuse("scoring_func", "sigmoid")
    keys.get("num_nextn_predict_layers")
    router = RouterConfig(
        keys.size("num_experts_per_tok", 8),
        scores="sigmoid",
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 2.5),
        correction=True,
        groups=keys.size("n_group", 8),
        groups_per_token=keys.size("topk_group", 4),
        best_of_group=2,
    )
    return read_latent(keys, router, interleaved=keys.flag("rope_interleave", True), dense=3)


DEEPSEEK_V3 = Family("DeepseekV3ForCausalLM", read, "deepseek_v3")
