"""GPT-J: parallel layers after one LayerNorm, an interleaved rope over a part of each head, and biases of logits."""

from rekindle.core.models.config import AttentionConfig, LayerConfig, ModelConfig, Names, Norm, Rope
from rekindle.formats.families.gpt2 import read_feed_forward, read_layers, read_size
from rekindle.formats.families.keys import Keys

NAMES = Names(
    embedding="transformer.wte",
    layers="transformer.h",
    norm="transformer.ln_f",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    out="attn.out_proj",
    gate_up=("mlp.fc_in",),
    down="mlp.fc_out",
    before_attention="ln_1",
    before_mlp=None,
)


def read(keys: Keys) -> ModelConfig:
    """Read a GPT-J. Attention has no biases."""
    hidden, heads = read_size(keys, "n_embd"), read_size(keys, "n_head")
    size, feed_forward = hidden // heads, read_feed_forward(keys, hidden)
    keys.refuse("rotary", True)
    rope = Rope(10_000.0, dims=keys.size("rotary_dim", 64), interleaved=True)
    layer = LayerConfig(AttentionConfig(heads, heads, size, size**-0.5, rope), feed_forward)
    return ModelConfig(
        family="gptj",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        max_context=read_size(keys, "n_positions"),
        layers=(layer,) * read_layers(keys),
        norm=Norm(keys.number("layer_norm_epsilon", 1e-5), centred=True, bias=True),
        parallel=True,
        tied_embeddings=keys.flag("tie_word_embeddings"),
        head_bias=True,
        names=NAMES,
    )
