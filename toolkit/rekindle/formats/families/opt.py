"""OPT: learned positions after two unused rows; the 350M model has norms after sums, and smaller embeddings."""

from dataclasses import replace

from rekindle.core.models.config import FeedForwardConfig, LayerConfig, LearnedPositions, ModelConfig, Names, Norm
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_heads

NAMES = Names(
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    embedding_in="model.decoder.project_in",
    embedding_out="model.decoder.project_out",
    layers="model.decoder.layers",
    norm="model.decoder.final_layer_norm",
    out="self_attn.out_proj",
    gate_up=("fc1",),
    down="fc2",
    before_attention="self_attn_layer_norm",
    before_mlp="final_layer_norm",
)
AFTER_SUMS = replace(
    NAMES,
    norm=None,
    before_attention=None,
    after_attention=NAMES.before_attention,
    before_mlp=None,
    after_mlp=NAMES.before_mlp,
)
UNUSED_ROWS = 2


def read(keys: Keys) -> ModelConfig:
    """Read an OPT, with norms before branches or after sums; the latter have no last norm."""
    context, hidden = keys.size("max_position_embeddings", 2048), keys.size("hidden_size")
    bias, weighted = keys.flag("enable_bias", True), keys.flag("layer_norm_elementwise_affine", True)
    names = NAMES if keys.flag("do_layer_norm_before", True) else AFTER_SUMS
    size = keys.size("word_embed_proj_dim", hidden)
    feed_forward = FeedForwardConfig(
        keys.size("ffn_dim"), activation_of(keys, "activation_function", "relu"), gated=False, bias=bias
    )
    layer = LayerConfig(replace(read_heads(keys), qkv_bias=bias, out_bias=bias), feed_forward)
    return ModelConfig(
        family="opt",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        max_context=context,
        layers=(layer,) * keys.layers("num_hidden_layers"),
        norm=Norm(1e-5, centred=True, bias=weighted, weighted=weighted),
        norm_sums=names is AFTER_SUMS,
        embedding_size=None if size == hidden else size,
        positions=LearnedPositions(context + UNUSED_ROWS, UNUSED_ROWS),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        names=replace(names, norm=None) if keys.flag("_remove_final_layer_norm") else names,
    )
