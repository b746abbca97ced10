"""DeepSeek-V2: latent attention, and experts in addition to a shared feed-forward layer."""

from dataclasses import replace

from rekindle.core.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    LatentConfig,
    LayerConfig,
    ModelConfig,
    Norm,
    RouterConfig,
)
from rekindle.formats.families.experts import SHARED, dense_first, routed_experts
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of
from rekindle.formats.families.rope import mscale, rope_of


def read(keys: Keys) -> ModelConfig:
    """Read a DeepSeek-V2. Groups of experts compete by their best one, and weights are not normalised."""
    by_group = keys.get("topk_method", "greedy") == "group_limited_greedy"
    keys.refuse("topk_method", "greedy", "group_limited_greedy")
    keys.refuse("scoring_func", "softmax")
    keys.refuse("norm_topk_prob", False)
    router = RouterConfig(
        keys.size("num_experts_per_tok", 6),
        scale=keys.number("routed_scaling_factor", 1.0),
        groups=keys.size("n_group", 1) if by_group else 1,
        groups_per_token=keys.size("topk_group", 1) if by_group else 1,
    )
    for key in ("n_group", "topk_group"):
        keys.get(key)  # without groups they have no effect
    return read_latent(keys, router, interleaved=True)


def read_latent(
    keys: Keys,
    router: RouterConfig,
    *,
    interleaved: bool,
    dense: int = 0,
    eps: float = 1e-6,
    shared: int = 0,
    rope: Keys | None = None,
) -> ModelConfig:
    """Read the common parts of models with latent attention.

    Args:
        keys: the config.
        router: the rules of the router.
        interleaved: whether rotary pairs are interleaved in the checkpoint.
        dense, shared: the default numbers of first layers without experts, and of shared experts.
        eps: the default epsilon of norms, other than those of latents.
        rope: the keys of the rope; None for those of the config.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    attention = _attention(keys, interleaved, keys if rope is None else rope)
    hidden, width = keys.size("hidden_size"), keys.size("intermediate_size")
    keys.refuse("mlp_bias", False)
    plain = LayerConfig(attention, FeedForwardConfig(width, activation_of(keys)))
    layers = (plain,) * keys.layers("num_hidden_layers")
    if keys.get("n_routed_experts", 0):
        layers = dense_first(keys, layers, routed_experts(keys, router, shared), dense)
    else:
        for unused in ("first_k_dense_replace", "moe_intermediate_size", "moe_layer_freq", "n_shared_experts"):
            keys.get(unused)
    return ModelConfig(
        family="deepseek",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        max_context=keys.size("max_position_embeddings"),
        layers=layers,
        norm=Norm(keys.number("rms_norm_eps", eps)),
        tied_embeddings=keys.flag("tie_word_embeddings"),
        names=SHARED,
    )


def _attention(keys: Keys, interleaved: bool, of_rope: Keys) -> AttentionConfig:
    """Read attention and its rope. The norms of latents have an epsilon of 1e-6, unlike other norms."""
    for derived in ("num_key_value_heads", "head_dim", "qk_head_dim"):
        keys.get(derived)
    plain, rotary = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    scaling = of_rope.below("rope_parameters" if of_rope.get("rope_parameters") else "rope_scaling")
    of_all = scaling.number_or_none("mscale_all_dim")
    scale = (plain + rotary) ** -0.5
    if of_all and scaling.get("rope_type", scaling.get("type")) == "yarn":
        scale *= mscale(scaling.number("factor"), of_all) ** 2
    latent = LatentConfig(
        rank=keys.size("kv_lora_rank"),
        plain=plain,
        rotary=rotary,
        value=keys.size("v_head_dim"),
        norm=Norm(1e-6),
        query_rank=None if keys.get("q_lora_rank") is None else keys.size("q_lora_rank"),
        bias=keys.flag("attention_bias"),
    )
    heads = keys.size("num_attention_heads")
    rope = replace(rope_of(of_rope, rotary), interleaved=interleaved)
    return AttentionConfig(heads, 1, latent.rank + rotary, scale, rope, latent=latent)
