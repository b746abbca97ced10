"""BERT and its kin: embeddings with a norm, attention in both directions, and norms after sums."""

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
from rekindle.formats.families.reading import activation_of, read_heads


def names_of(prefix: str) -> Names:
    """Return the names of an encoder's tensors behind a prefix."""
    return Names(
        embedding=f"{prefix}.embeddings.word_embeddings",
        embedding_norm=f"{prefix}.embeddings.LayerNorm",
        embedding_in=f"{prefix}.embeddings_project",
        positions=f"{prefix}.embeddings.position_embeddings",
        token_types=f"{prefix}.embeddings.token_type_embeddings",
        layers=f"{prefix}.encoder.layer",
        norm=None,
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
        out="attention.output.dense",
        gate_up=("intermediate.dense",),
        down="output.dense",
        before_attention=None,
        after_attention="attention.output.LayerNorm",
        before_mlp=None,
        after_mlp="output.LayerNorm",
    )


def read(keys: Keys) -> ModelConfig:
    """Read a BERT."""
    return read_encoder(keys, names_of("bert"))


def read_roberta(keys: Keys) -> ModelConfig:
    """Read a RoBERTa, XLM-RoBERTa or CamemBERT: positions begin after the row of the padding token."""
    model = read_encoder(keys, names_of("roberta"))
    return with_skipped(model, keys.get("pad_token_id", 1))


def read_electra(keys: Keys) -> ModelConfig:
    """Read an ELECTRA: embeddings may be smaller than features."""
    model = read_encoder(keys, names_of("electra"))
    size = keys.size("embedding_size", 128)
    return model if size == model.hidden_size else replace(model, embedding_size=size, embedding_bias=True)


def read_encoder(keys: Keys, names: Names) -> ModelConfig:
    """Read an encoder with the keys of BERT.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    keys.refuse("position_embedding_type", "absolute")
    feed_forward = FeedForwardConfig(
        keys.size("intermediate_size"), activation_of(keys, default="gelu"), gated=False, bias=True
    )
    positions = keys.size("max_position_embeddings", 512)
    types = keys.get("type_vocab_size", 2)
    return replace(
        encoder(keys, read_heads(keys), feed_forward, keys.number("layer_norm_eps", 1e-12), names),
        max_context=positions,
        positions=LearnedPositions(positions),
        token_types=types and keys.size("type_vocab_size", 2),
    )


def encoder(
    keys: Keys,
    attention: AttentionConfig,
    feed_forward: FeedForwardConfig,
    eps: float,
    names: Names,
    *,
    hidden: str = "hidden_size",
    layers: str = "num_hidden_layers",
    bias: bool = True,
) -> ModelConfig:
    """Return an encoder with norms after sums and without positions.

    Args:
        keys: the config.
        attention: the sizes of attention.
        feed_forward: the feed-forward layer.
        eps: the epsilon of norms.
        names: the names of tensors.
        hidden, layers: the keys of these sizes.
        bias: whether the projections of attention add a bias.

    Raises:
        UnsupportedModel: the model reads texts in one direction.
    """
    keys.refuse("is_decoder", False)
    norm = Norm(eps, centred=True, bias=True)
    attention = replace(attention, ahead=None, qkv_bias=bias, out_bias=bias)
    keys.get("tie_word_embeddings")  # of the head over masked words, which is read apart
    return ModelConfig(
        family="",
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size(hidden),
        max_context=keys.size("max_position_embeddings", 512),
        layers=(LayerConfig(attention, feed_forward),) * keys.layers(layers),
        norm=norm,
        both_ways=True,
        norm_sums=True,
        embedding_norm=norm,
        predicts=False,
        names=names,
    )


def with_skipped(model: ModelConfig, padding: int) -> ModelConfig:
    """Return an encoder with positions after the row of the padding token; this token counts as no position."""
    assert model.positions is not None
    rows = model.positions.rows
    return replace(model, positions=LearnedPositions(rows, padding + 1, padding), max_context=rows - padding - 1)
