"""The encoder of SigLIP, in the towers of several families."""

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


def names_of(tower: str) -> Names:
    """Return the names of an encoder's tensors below a prefix."""
    return Names(
        embedding=f"{tower}.embeddings.patch_embedding",
        positions=f"{tower}.embeddings.position_embedding",
        layers=f"{tower}.encoder.layers",
        norm=f"{tower}.post_layernorm",
        out="self_attn.out_proj",
        gate_up=("mlp.fc1",),
        down="mlp.fc2",
        before_attention="layer_norm1",
        before_mlp="layer_norm2",
    )


def read_encoder(
    keys: Keys,
    family: str,
    tower: str,
    rows: int,
    base: tuple[int, int, int, int],
    activation: str = "gelu_pytorch_tanh",
    eps: float = 1e-6,
) -> ModelConfig:
    """Read an encoder.

    Args:
        keys: the keys of the "vision_config".
        family: the family of the whole model.
        tower: the prefix of the tensors' names.
        rows: the rows of the table of positions.
        base: the values of transformers' code for a missing hidden size, inner size, number of layers and of heads.
        activation, eps: the same for the activation and for the summand of a norm.

    Raises:
        UnsupportedModel: the activation is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    hidden, heads = keys.size("hidden_size", base[0]), keys.size("num_attention_heads", base[3])
    if hidden % heads:
        raise keys.wrong("hidden_size", f"must be a multiple of {heads} heads", hidden)
    size = hidden // heads
    attention = AttentionConfig(heads, heads, size, size**-0.5, qkv_bias=True, out_bias=True)
    applied, width = activation_of(keys, default=activation), keys.size("intermediate_size", base[1])
    feed_forward = FeedForwardConfig(width, applied, gated=False, bias=True)
    return ModelConfig(
        family=family,
        vocab_size=0,
        hidden_size=hidden,
        max_context=rows,
        layers=(LayerConfig(attention, feed_forward),) * keys.layers("num_hidden_layers", base[2]),
        norm=Norm(keys.number("layer_norm_eps", eps), centred=True, bias=True),
        positions=LearnedPositions(rows),
        names=names_of(tower),
    )
