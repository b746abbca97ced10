"""Jina BERT (jina-embeddings-v2): a BERT with summands of scores by distance and gated layers, without positions."""

from dataclasses import replace

from rekindle.core.models.config import FeedForwardConfig, LinearBias, ModelConfig
from rekindle.formats.families.bert import encoder, names_of
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_heads

NAMES = replace(names_of("bert"), gate_up=("mlp.gated_layers",), down="mlp.wo", after_mlp="mlp.layernorm")


def read(keys: Keys) -> ModelConfig:
    """Read a Jina BERT with gated layers. Models with norms of queries and keys have other tensors, and are refused.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    keys.refuse("position_embedding_type", "alibi")
    keys.refuse("feed_forward_type", "geglu")
    for key in ("emb_pooler", "attn_implementation", "hidden_act"):
        keys.get(key)
    feed_forward = FeedForwardConfig(keys.size("intermediate_size"), activation_of(keys, default="gelu"), out_bias=True)
    model = encoder(keys, read_heads(keys), feed_forward, keys.number("layer_norm_eps", 1e-12), NAMES)
    types = keys.get("type_vocab_size", 2)
    return replace(
        model,
        distances=LinearBias(model.max_context),
        token_types=types and keys.size("type_vocab_size", 2),
    )
