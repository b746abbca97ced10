"""GPT-2: learned positions, LayerNorms and biases everywhere, and projections stored as (in, out)."""

from dataclasses import replace

from rekindle.core.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    Names,
    Norm,
)
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of

NAMES = Names(
    embedding="transformer.wte",
    positions="transformer.wpe",
    layers="transformer.h",
    norm="transformer.ln_f",
    qkv=("attn.c_attn",),
    out="attn.c_proj",
    transposed=True,
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    before_attention="ln_1",
    before_mlp="ln_2",
)


def read(keys: Keys) -> ModelConfig:
    """Read a GPT-2. Scores may be divided by the number of the layer too."""
    hidden, heads, context = (read_size(keys, name) for name in ("n_embd", "n_head", "n_positions"))
    scale = (hidden // heads) ** -0.5 if keys.flag("scale_attn_weights", True) else 1.0
    by_layer = keys.flag("scale_attn_by_inverse_layer_idx")
    attention = AttentionConfig(heads, heads, hidden // heads, scale, qkv_bias=True, out_bias=True)
    feed_forward, divisors = read_feed_forward(keys, hidden), range(1, read_layers(keys) + 1)
    layers = (
        LayerConfig(replace(attention, scale=scale / divisor if by_layer else scale), feed_forward)
        for divisor in divisors
    )
    return ModelConfig(
        family="gpt2",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        max_context=context,
        layers=tuple(layers),
        norm=Norm(keys.number("layer_norm_epsilon", 1e-5), centred=True, bias=True),
        positions=LearnedPositions(context),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        names=NAMES,
    )


def read_feed_forward(keys: Keys, hidden: int) -> FeedForwardConfig:
    """Read the feed-forward layer of a GPT, by default four times as wide as its tokens."""
    width = keys.size("n_inner", keys.get("intermediate_size", 4 * hidden))
    keys.get("intermediate_size")
    activation = activation_of(keys, "activation_function", "gelu_new")
    return FeedForwardConfig(width, activation, gated=False, bias=True)


def read_layers(keys: Keys) -> int:
    """Return the number of layers under a GPT's name, or under the name of other families."""
    return keys.layers("n_layer", keys.get(_OTHERWISE["n_layer"]))


def read_size(keys: Keys, name: str) -> int:
    """Return a size under a GPT's name, or under the name of other families."""
    return keys.size(name, keys.get(_OTHERWISE[name]))


_OTHERWISE = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
