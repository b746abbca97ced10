"""The vision towers of Gemma 3 and of Gemma 4."""

import math
from dataclasses import replace

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
    Rope,
)
from rekindle.core.models.vision.config import Multiply, Pool, Product, Scaling, Standardize, Step, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of
from rekindle.formats.families.siglip import read_encoder

_TOWER = "model.vision_tower"
_PROJECTOR = "model.multi_modal_projector"
GEMMA4_NAMES = Names(
    embedding=f"{_TOWER}.patch_embedder.input_proj",
    positions=f"{_TOWER}.patch_embedder.position_embedding_table",
    layers=f"{_TOWER}.encoder.layers",
    norm=None,
    qkv=("self_attn.q_proj.linear", "self_attn.k_proj.linear", "self_attn.v_proj.linear"),
    out="self_attn.o_proj.linear",
    gate_up=("mlp.gate_proj.linear", "mlp.up_proj.linear"),
    down="mlp.down_proj.linear",
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def read_gemma3(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a Gemma 3: a SigLIP, and the normalised means of squares of patches times a matrix.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    patch, image, tokens = (
        keys.size("patch_size", 16),
        keys.size("image_size", 224),
        outer.size("mm_tokens_per_image", 256),
    )
    side, across = image // patch, math.isqrt(tokens)
    if across**2 != tokens or side % across:
        raise outer.wrong("mm_tokens_per_image", f"must be a square of a divisor of {side} patches", tokens)
    encoder = read_encoder(keys, "gemma3", f"{_TOWER}.vision_model", side**2, (768, 3072, 12, 12))
    projector: tuple[Step, ...] = (
        Pool(side // across),
        Scaling(f"{_PROJECTOR}.mm_soft_emb_norm", Norm(encoder.norm.eps, offset=1.0)),
        Product(f"{_PROJECTOR}.mm_input_projection", output_size, transposed=True),
    )
    return VisionConfig(encoder, patch, keys.size("num_channels", 3), projector)


def read_gemma4(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a Gemma 4: a Gemma's layers, rotated by column and row; arguments as of `read_gemma3`.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    keys.refuse("attention_bias", False)
    hidden, heads, size = keys.size("hidden_size", 768), keys.size("num_attention_heads", 12), keys.size("head_dim", 64)
    if size % 4:
        raise keys.wrong("head_dim", "must be a multiple of 4", size)
    rope = keys.below("rope_parameters")
    if (kind := rope.get("rope_type", "axial")) != "axial":
        raise UnsupportedModel(f"{keys.source}: rope_type {kind!r:.80} is not supported, only axial")
    norm, rows = Norm(keys.number("rms_norm_eps", 1e-6)), keys.size("position_embedding_size", 10_240)
    attention = AttentionConfig(
        heads,
        keys.size("num_key_value_heads", heads),
        size,
        1.0,
        Rope(rope.number("rope_theta", 100.0), parts=2),
        head_norm=HeadNorm(norm),
        value_norm=Norm(norm.eps, weighted=False),
    )
    activation = activation_of(keys, "hidden_activation", "gelu_pytorch_tanh")
    feed_forward = FeedForwardConfig(keys.size("intermediate_size", 3072), activation)
    encoder = ModelConfig(
        family="gemma4_vision",
        vocab_size=0,
        hidden_size=hidden,
        max_context=keys.size("max_position_embeddings", 131_072),
        layers=(LayerConfig(attention, feed_forward),) * keys.layers("num_hidden_layers", 16),
        norm=norm,
        positions=LearnedPositions(2 * rows),
        names=replace(GEMMA4_NAMES, clipped=keys.flag("use_clipped_linears")),
    )
    standardized = keys.flag("standardize")
    projector: tuple[Step, ...] = (
        Pool(keys.size("pooling_kernel_size", 3)),
        Multiply(hidden**0.5),
        *([Standardize(f"{_TOWER}.std_bias", f"{_TOWER}.std_scale")] if standardized else []),
        Scaling("", Norm(norm.eps, weighted=False)),
        Product("model.embed_vision.embedding_projection", output_size),
    )
    return VisionConfig(
        encoder,
        keys.size("patch_size", 16),
        3,
        projector,
        patch_bias=False,
        columns_first=True,
        tables=2,
    )
