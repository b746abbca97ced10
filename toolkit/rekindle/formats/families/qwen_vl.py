"""The vision towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: whole images, with a rope by row and column."""

from dataclasses import replace
from typing import Final

from rekindle.core.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    Names,
    Norm,
    Rope,
)
from rekindle.core.models.vision.config import Activate, Merge, Product, Scaling, Step, VisionConfig, VisionTap
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of
from rekindle.formats.images.processors.qwen import FRAMES

_ROOT: Final = "model.visual"
_MOST_PATCHES: Final = 9216
NAMES: Final = Names(
    embedding=f"{_ROOT}.patch_embed.proj",
    positions=f"{_ROOT}.pos_embed",
    layers=f"{_ROOT}.blocks",
    norm=None,
    qkv=("attn.qkv",),
    out="attn.proj",
    before_attention="norm1",
    before_mlp="norm2",
    gate_up=("mlp.linear_fc1",),
    down="mlp.linear_fc2",
)
"""Names of Qwen3's towers."""
_EPS: Final = 1e-6


def read_qwen3(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a Qwen3-VL or Qwen3.5: a stretched table of positions, and sums behind the first layers.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    hidden, norm = keys.size("hidden_size", 1152), Norm(_EPS, centred=True, bias=True)
    rows, layers = keys.size("num_position_embeddings", 2304), keys.layers("depth", 27)
    if round(rows**0.5) ** 2 != rows:
        raise keys.wrong("num_position_embeddings", "must be a square", rows)
    activation = activation_of(keys, default="gelu_pytorch_tanh")
    feed_forward = FeedForwardConfig(keys.size("intermediate_size", 4304), activation, gated=False, bias=True)
    encoder = replace(_encoder(keys, hidden, layers, feed_forward, norm, NAMES), positions=LearnedPositions(rows))
    merge, size = keys.size("spatial_merge_size", 2), _output(keys, output_size)
    taps = keys.get("deepstack_visual_indexes") or []
    if any(isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < layers for each in taps):
        raise keys.wrong("deepstack_visual_indexes", f"must be indices of the {layers} layers", taps)
    names = "norm", "linear_fc1", "linear_fc2"

    def steps(place: str, *, joined: bool) -> tuple[Step, ...]:
        return _merger([f"{_ROOT}.{place}.{name}" for name in names], hidden, merge, size, norm, joined=joined)

    tower = _tower(keys, encoder, merge, patch=16, projector=steps("merger", joined=False))
    return replace(
        tower,
        stretched="corners",
        taps=tuple(VisionTap(at, steps(f"deepstack_merger_list.{i}", joined=True)) for i, at in enumerate(taps)),
    )


def read_qwen2_5(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a Qwen2.5-VL, with windows in most layers; see `read_qwen3`."""
    hidden, layers = keys.size("hidden_size", 1280), keys.layers("depth", 32)
    feed_forward = FeedForwardConfig(keys.size("intermediate_size", 3420), activation_of(keys), bias=True)
    names = replace(NAMES, gate_up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj")
    encoder = _encoder(keys, hidden, layers, feed_forward, Norm(_EPS), names)
    merge, patch = keys.size("spatial_merge_size", 2), keys.size("patch_size", 14)
    window = keys.size("window_size", 112) // merge // patch * merge
    full = keys.get("fullatt_block_indexes", [7, 15, 23, 31])
    if not window or not isinstance(full, list) or any(not isinstance(each, int) for each in full):
        raise keys.wrong("fullatt_block_indexes", "must be indices of layers, and window_size at least a token", full)
    tower = _tower(keys, encoder, merge, patch=14, projector=_old_merger(hidden, merge, output_size, Norm(_EPS)))
    _output(keys, output_size)
    return replace(tower, patch_bias=False, window=window, windowed=frozenset(range(layers)) - set(full))


def read_qwen2(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a Qwen2-VL; see `read_qwen3`."""
    hidden, norm = keys.size("embed_dim", 1280), Norm(_EPS, centred=True, bias=True)
    layers, ratio = keys.layers("depth", 32), keys.number("mlp_ratio", 4)
    activation = activation_of(keys, default="quick_gelu")
    feed_forward = FeedForwardConfig(int(hidden * ratio), activation, gated=False, bias=True)
    names = replace(NAMES, gate_up=("mlp.fc1",), down="mlp.fc2")
    encoder = _encoder(keys, hidden, layers, feed_forward, norm, names)
    merge = keys.size("spatial_merge_size", 2)
    if keys.size("hidden_size", output_size) != output_size:
        raise keys.wrong("hidden_size", f"must be {output_size}, as in the text model", keys.get("hidden_size"))
    tower = _tower(keys, encoder, merge, patch=14, projector=_old_merger(hidden, merge, output_size, norm))
    return replace(tower, patch_bias=False)


def _encoder(
    keys: Keys, hidden: int, layers: int, feed_forward: FeedForwardConfig, norm: Norm, names: Names
) -> ModelConfig:
    heads = keys.size("num_heads", 16)
    if hidden % (4 * heads):
        raise keys.wrong("num_heads", f"must divide {hidden} into heads of a multiple of 4", heads)
    theta = keys.below("rope_parameters").number("rope_theta", 10_000.0)
    size = hidden // heads
    attention = AttentionConfig(heads, heads, size, size**-0.5, Rope(theta), qkv_bias=True, out_bias=True)
    return ModelConfig(
        family="qwen_vl",
        vocab_size=0,
        hidden_size=hidden,
        max_context=_MOST_PATCHES,
        layers=(LayerConfig(attention, feed_forward),) * layers,
        norm=norm,
        names=names,
    )


def _tower(keys: Keys, encoder: ModelConfig, merge: int, patch: int, projector: tuple[Step, ...]) -> VisionConfig:
    """Return a tower, after checks of the keys that all have."""
    keys.refuse("temporal_patch_size", 2)
    for unused in ("initializer_range", "spatial_patch_size", "tokens_per_second", "fullatt_block_indexes"):
        keys.get(unused)
    channels = keys.size("in_channels", keys.get("in_chans", 3))
    keys.get("in_chans")
    return VisionConfig(encoder, keys.size("patch_size", patch), FRAMES * channels, projector)


def _output(keys: Keys, output_size: int) -> int:
    if keys.size("out_hidden_size", output_size) != output_size:
        raise keys.wrong("out_hidden_size", f"must be {output_size}, as in the text model", keys.get("out_hidden_size"))
    return output_size


def _old_merger(hidden: int, merge: int, size: int, norm: Norm) -> tuple[Step, ...]:
    names = [f"{_ROOT}.merger.{name}" for name in ("ln_q", "mlp.0", "mlp.2")]
    return _merger(names, hidden, merge, size, norm, joined=False)


def _merger(names: list[str], hidden: int, merge: int, size: int, norm: Norm, *, joined: bool) -> tuple[Step, ...]:
    """Return the steps of a merger, whose norm is of patches, or of joined squares of patches."""
    of_norm, first, second = names
    steps: tuple[Step, ...] = Scaling(of_norm, norm), Merge(merge)
    products = Product(first, hidden * merge**2, bias=True), Activate("gelu"), Product(second, size, bias=True)
    return *(reversed(steps) if joined else steps), *products
