"""NomicBERT: a BERT with a rope in place of positions, and gated layers without biases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rekindle.core.models.config import Activation, FeedForwardConfig, ModelConfig, Names
from rekindle.formats.families.bert import encoder
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_heads
from rekindle.formats.families.rope import rope_of

NAMES = Names(
    embedding="nomic_bert.embeddings.word_embeddings",
    embedding_norm="nomic_bert.emb_ln",
    token_types="nomic_bert.embeddings.token_type_embeddings",
    layers="nomic_bert.encoder.layers",
    norm=None,
    qkv=("attn.Wqkv",),
    out="attn.out_proj",
    gate_up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    before_attention=None,
    after_attention="norm1",
    before_mlp=None,
    after_mlp="norm2",
)
_OLDER: Final[Mapping[str, str]] = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "activation_function": "hidden_act",
    "rotary_emb_base": "rope_theta",
}
"""Keys of files from before transformers had the family, with their names there."""
_GATED: Final[Mapping[str, Activation]] = {"swiglu": "silu", "geglu": "gelu"}
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "causal": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "num_experts": (0,),
    "parallel_block": (False,),
    "parallel_block_tied_norm": (False,),
    "prenorm": (False,),
    "qkv_proj_bias": (False,),
    "rotary_emb_fraction": (1,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_rms_norm": (False,),
}
_WITHOUT_EFFECT: Final = (
    "dense_seq_output",
    "expert_choice_router",
    "ffn_div",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "max_trained_positions",
    "moe_every_n_layers",
    "moe_impl",
    "moe_normalize_expert_weights",
    "moe_resid_pdrop",
    "moe_top_k",
    "num_shared_experts",
    "pad_vocab_size_multiple",
    "router_aux_loss_coef",
    "use_flash_attn",
    "use_xentropy",
)


def read(keys: Keys) -> ModelConfig:
    """Read a NomicBERT without experts, with the keys of transformers or of the files of its authors.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    for key, neutral in _NEUTRAL.items():
        keys.refuse(key, *neutral)
    for key in _WITHOUT_EFFECT:
        keys.get(key)
    scaling = keys.get("rotary_scaling_factor")
    longest = keys.get("max_trained_positions", 2048) if scaling else None
    keys = keys.renamed(_OLDER)
    heads, own = read_heads(keys), _GATED.get(keys.get("hidden_act", "silu"))
    activation: Activation = own or activation_of(keys)
    feed_forward = FeedForwardConfig(keys.size("intermediate_size"), activation)
    heads = replace(heads, rope=rope_of(keys, heads.head_dim, 1000.0))
    model = encoder(keys, heads, feed_forward, keys.number("layer_norm_eps", 1e-12), NAMES, bias=False)
    # The rope of longer texts is scaled by their length in the authors' code.
    context = model.max_context if longest is None else min(model.max_context, longest)
    types = keys.get("type_vocab_size", 2)
    return replace(model, token_types=types and keys.size("type_vocab_size", 2), max_context=context)
