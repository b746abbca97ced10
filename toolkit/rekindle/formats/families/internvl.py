"""The vision tower of InternVL 3: an InternViT encoder with a class token, and a merger of patches.

OpenGVLab's own files have other names of tensors and keys than those of transformers.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    HeadNorm,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    Names,
    Norm,
)
from rekindle.core.models.vision.config import Activate, Merge, Product, Scaling, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of
from rekindle.formats.images.processors.tiled.internvl import CHAT

_TOWER, _PROJECTOR = "model.vision_tower", "model.multi_modal_projector"
NAMES = Names(
    embedding=f"{_TOWER}.embeddings.patch_embeddings.projection",
    positions=f"{_TOWER}.embeddings.position_embeddings",
    layers=f"{_TOWER}.encoder.layer",
    norm=None,
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.projection_layer",
    q_norm="attention.q_norm",
    k_norm="attention.k_norm",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    before_attention="layernorm_before",
    before_mlp="layernorm_after",
)


_OWN: Final = "vision_model"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Names in one of the two forms of files.

    Attributes:
        names: the tensors of the encoder.
        class_token: the tensor of the class token.
        scales: the tensors with the factors of branches.
        projector: the tensors of the projector's norm and of its two products.
        bias, head_norm: keys for biases of queries, keys and values, and for norms of queries and keys.
        layer: the key of the layer with the results.
    """

    names: Names
    class_token: str
    scales: tuple[str, str]
    projector: tuple[str, str, str]
    bias: str
    head_norm: str
    layer: str


_TRANSFORMERS: Final = _Layout(
    NAMES,
    f"{_TOWER}.embeddings.cls_token",
    ("lambda_1", "lambda_2"),
    (f"{_PROJECTOR}.layer_norm", f"{_PROJECTOR}.linear_1", f"{_PROJECTOR}.linear_2"),
    "attention_bias",
    "use_qk_norm",
    "vision_feature_layer",
)
_OPENGVLAB: Final = _Layout(
    replace(
        NAMES,
        embedding=f"{_OWN}.embeddings.patch_embedding",
        positions=f"{_OWN}.embeddings.position_embedding",
        layers=f"{_OWN}.encoder.layers",
        qkv=("attn.qkv",),
        out="attn.proj",
        q_norm="attn.q_norm",
        k_norm="attn.k_norm",
        before_attention="norm1",
        before_mlp="norm2",
    ),
    f"{_OWN}.embeddings.class_embedding",
    ("ls1", "ls2"),
    ("mlp1.0", "mlp1.1", "mlp1.3"),
    "qkv_bias",
    "qk_normalization",
    "select_layer",
)


def read_tower(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of an InternVL.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    layout = _OPENGVLAB if outer.get("model_type") == CHAT else _TRANSFORMERS
    if (layer := outer.get(layout.layer, -1)) != -1:
        raise UnsupportedModel(f"{outer.source}: {layout.layer} {layer!r:.80} is not supported, only -1")
    if (strategy := outer.get("vision_feature_select_strategy", "default")) != "default":
        raise UnsupportedModel(
            f"{outer.source}: vision_feature_select_strategy {strategy!r:.80} is not supported, only 'default'"
        )
    patch, image = side_of(keys, "patch_size", 14), side_of(keys, "image_size", 448)
    if layout is _OPENGVLAB:
        _check_chat(outer, image)
    norm, first, second = layout.projector
    ratio, side = outer.number("downsample_ratio", 0.5), image // patch
    merge = int(1 / ratio) if ratio > 0 else 0
    if not merge or not side or side % merge:
        raise outer.wrong("downsample_ratio", f"must divide the {side} patches along an image's side", ratio)
    projector = (
        Merge(merge),
        Scaling(norm, Norm(1e-5, centred=True, bias=True)),
        Product(first, output_size, bias=True),
        Activate(activation_of(outer, "projector_hidden_act", "gelu")),
        Product(second, output_size, bias=True),
    )
    return VisionConfig(
        _encoder(keys, side**2, layout),
        patch,
        keys.size("num_channels", 3),
        projector,
        class_token=layout.class_token,
        branch_scales=layout.scales,
    )


def _check_chat(outer: Keys, image: int) -> None:
    """Check the keys of OpenGVLab's code for other orders of patches and other images.

    Raises:
        UnsupportedModel: the model needs one of these.
    """
    choices = {"ps_version": ("v1", "v2"), "pad2square": (False, False), "force_image_size": (image, image)}
    for key, (default, supported) in choices.items():
        if (value := outer.get(key, default)) not in (None, supported):
            raise UnsupportedModel(f"{outer.source}: {key} {value!r:.80} is not supported, only {supported!r}")


def side_of(keys: Keys, key: str, default: int) -> int:
    """Return a size in pixels, as a number or as two equal ones.

    Raises:
        CheckpointError: the value is something else.
    """
    value: Any = keys.get(key, default)
    sides = value if isinstance(value, list | tuple) else [value]
    if len(set(sides)) != 1 or not isinstance(sides[0], int) or sides[0] <= 0:
        raise keys.wrong(key, "must be a positive integer, or two equal ones", value)
    return sides[0]


def _encoder(keys: Keys, patches: int, layout: _Layout) -> ModelConfig:
    hidden, heads = keys.size("hidden_size", 1024), keys.size("num_attention_heads", 16)
    if hidden % heads:
        raise keys.wrong("hidden_size", f"must be a multiple of {heads} heads", hidden)
    norms = {"layer_norm": True, "rms_norm": False}
    if (kind := keys.get("norm_type", "layer_norm")) not in norms:
        raise UnsupportedModel(f"{keys.source}: norm_type {kind!r:.80} is not supported, only {', '.join(norms)}")
    if not keys.flag("use_absolute_position_embeddings", True):
        raise UnsupportedModel(f"{keys.source}: use_absolute_position_embeddings false is not supported")
    head_norm = HeadNorm(Norm(1e-6), over="all") if keys.flag(layout.head_norm) else None
    size, bias = hidden // heads, keys.flag(layout.bias)
    attention = AttentionConfig(heads, heads, size, size**-0.5, qkv_bias=bias, out_bias=True, head_norm=head_norm)
    activation = activation_of(keys, default="gelu")
    feed_forward = FeedForwardConfig(keys.size("intermediate_size", 4096), activation, gated=False, bias=True)
    is_centred, eps = norms[kind], keys.number("layer_norm_eps", 1e-6)
    norm = f"{_TOWER}.layernorm"
    return ModelConfig(
        family="internvl",
        vocab_size=0,
        hidden_size=hidden,
        max_context=patches,
        layers=(LayerConfig(attention, feed_forward),) * keys.layers("num_hidden_layers", 24),
        norm=Norm(eps, centred=is_centred, bias=is_centred),
        positions=LearnedPositions(patches + 1, offset=1),
        names=layout.names if keys.flag("use_mean_pooling", True) else replace(layout.names, norm=norm),
    )
