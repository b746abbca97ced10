"""ModernBERT: gated layers, norms before branches, and windows around each token in most layers."""

from dataclasses import replace

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import FeedForwardConfig, LayerConfig, ModelConfig, Names, Norm, Rope
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, layer_types, read_heads
from rekindle.formats.families.rope import ropes_by_kind

NAMES = Names(
    embedding="model.embeddings.tok_embeddings",
    embedding_norm="model.embeddings.norm",
    norm="model.final_norm",
    qkv=("attn.Wqkv",),
    out="attn.Wo",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
    before_attention="attn_norm",
    before_mlp="mlp_norm",
)


def read(keys: Keys) -> ModelConfig:
    """Read a ModernBERT. Its first layer takes the normalised embeddings as they are.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    heads = replace(read_heads(keys), ahead=None)
    of_all, of_near = keys.number("global_rope_theta", 160_000.0), keys.number("local_rope_theta", 10_000.0)
    full, local = ropes_by_kind(keys, heads.head_dim, of_all, of_near) or (Rope(of_all), Rope(of_near))
    if keys.get("rope_scaling") is not None:
        raise UnsupportedModel(f"{keys.source}: rope_scaling is not supported in this family")
    bias, reach = keys.flag("attention_bias"), keys.size("local_attention", 128) // 2
    whole = replace(heads, rope=full, qkv_bias=bias, out_bias=bias)
    windowed = replace(whole, rope=local, window=reach + 1, ahead=reach)
    feed_forward = FeedForwardConfig(
        keys.size("intermediate_size"), activation_of(keys, "hidden_activation", "gelu"), bias=keys.flag("mlp_bias")
    )
    every = keys.size("global_attn_every_n_layers", 3)
    kinds = layer_types(keys, keys.layers("num_hidden_layers"), lambda i: i % every > 0)
    layers = [LayerConfig(windowed if kind == "sliding_attention" else whole, feed_forward) for kind in kinds]
    norm = Norm(keys.number("norm_eps", 1e-5), centred=True, bias=keys.flag("norm_bias"))
    keys.get("tie_word_embeddings")  # of the head over masked words, which is read apart
    return ModelConfig(
        family="",
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size("hidden_size"),
        max_context=keys.size("max_position_embeddings", 8192),
        layers=(replace(layers[0], attention_norm=False), *layers[1:]),
        norm=norm,
        both_ways=True,
        embedding_norm=norm,
        predicts=False,
        names=NAMES,
    )
