"""DistilBERT: a BERT without types of tokens, with keys and names of its own."""

from dataclasses import replace

from rekindle.core.models.config import AttentionConfig, FeedForwardConfig, LearnedPositions, ModelConfig, Names
from rekindle.formats.families.bert import encoder
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of

NAMES = Names(
    embedding="distilbert.embeddings.word_embeddings",
    embedding_norm="distilbert.embeddings.LayerNorm",
    positions="distilbert.embeddings.position_embeddings",
    layers="distilbert.transformer.layer",
    norm=None,
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    out="attention.out_lin",
    gate_up=("ffn.lin1",),
    down="ffn.lin2",
    before_attention=None,
    after_attention="sa_layer_norm",
    before_mlp=None,
    after_mlp="output_layer_norm",
)


def read(keys: Keys) -> ModelConfig:
    """Read a DistilBERT. Sinusoidal positions are a table in its files too."""
    keys.get("sinusoidal_pos_embds")
    heads = keys.size("n_heads")
    head_dim = keys.size("dim") // heads
    attention = AttentionConfig(heads, heads, head_dim, scale=head_dim**-0.5)
    feed_forward = FeedForwardConfig(
        keys.size("hidden_dim"), activation_of(keys, "activation", "gelu"), gated=False, bias=True
    )
    model = encoder(keys, attention, feed_forward, 1e-12, NAMES, hidden="dim", layers="n_layers")
    return replace(model, positions=LearnedPositions(model.max_context))
