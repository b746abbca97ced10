"""The vision tower of Idefics3, SmolVLM and SmolVLM2: a SigLIP encoder, and a product of merged patches."""

from rekindle.core.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    Names,
    Norm,
)
from rekindle.core.models.vision.config import Merge, Product, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of

_ENCODER = "model.vision_model"
NAMES = Names(
    embedding=f"{_ENCODER}.embeddings.patch_embedding",
    positions=f"{_ENCODER}.embeddings.position_embedding",
    layers=f"{_ENCODER}.encoder.layers",
    norm=f"{_ENCODER}.post_layernorm",
    out="self_attn.out_proj",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    before_attention="layer_norm1",
    before_mlp="layer_norm2",
)


def read_tower(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of an Idefics3.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    hidden, heads = keys.size("hidden_size", 1152), keys.size("num_attention_heads", 16)
    patch, image, merge = keys.size("patch_size", 32), keys.size("image_size", 224), outer.size("scale_factor", 2)
    side = image // patch
    if hidden % heads:
        raise keys.wrong("hidden_size", f"must be a multiple of {heads} heads", hidden)
    if not side or side % merge:
        raise keys.wrong("image_size", f"must have a multiple of {merge} patches of {patch} pixels", image)
    size = hidden // heads
    attention = AttentionConfig(heads, heads, size, size**-0.5, qkv_bias=True, out_bias=True)
    activation = activation_of(keys, default="gelu_pytorch_tanh")
    feed_forward = FeedForwardConfig(keys.size("intermediate_size", 3072), activation, gated=False, bias=True)
    encoder = ModelConfig(
        family="idefics3",
        vocab_size=0,
        hidden_size=hidden,
        max_context=side**2,
        layers=(LayerConfig(attention, feed_forward),) * keys.size("num_hidden_layers", 12),
        norm=Norm(keys.number("layer_norm_eps", 1e-6), centred=True, bias=True),
        positions=LearnedPositions(side**2),
        names=NAMES,
    )
    projector = Merge(merge), Product("model.connector.modality_projection.proj", output_size)
    return VisionConfig(encoder, patch, keys.size("num_channels", 3), projector)
