"""The vision tower of Pixtral, Mistral Small 3 and Ministral 3: a Llama's layers, rotated by row and column."""

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import AttentionConfig, FeedForwardConfig, LayerConfig, ModelConfig, Names, Norm, Rope
from rekindle.core.models.vision.config import Activate, Merge, Product, Scaling, Step, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of

_TOWER, _PROJECTOR = "model.vision_tower", "model.multi_modal_projector"
NAMES = Names(
    embedding=f"{_TOWER}.patch_conv",
    layers=f"{_TOWER}.transformer.layers",
    norm=None,
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    before_attention="attention_norm",
    before_mlp="ffn_norm",
)


def read_tower(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a Pixtral or a Mistral 3.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    hidden, heads, patch = (
        keys.size(key, n) for key, n in (("hidden_size", 1024), ("num_attention_heads", 16), ("patch_size", 16))
    )
    if hidden % heads or hidden // heads % 4:
        raise keys.wrong("hidden_size", f"must be a multiple of 4 for each of {heads} heads", hidden)
    size, layers = hidden // heads, keys.layers("num_hidden_layers", 24)
    if (layer := outer.get("vision_feature_layer", -1)) not in (-1, layers):
        raise UnsupportedModel(f"{outer.source}: vision_feature_layer {layer!r:.80} is not supported, only -1")
    rope = keys.below("rope_parameters")
    if (kind := rope.get("rope_type", "axial")) not in ("axial", "default"):
        raise UnsupportedModel(f"{keys.source}: rope_type {kind!r:.80} is not supported, only axial")
    theta = rope.number("rope_theta", keys.number("rope_theta", 10_000.0))
    attention = AttentionConfig(heads, heads, size, size**-0.5, Rope(theta, interleaved=keys.flag("rope_interleave")))
    feed_forward = FeedForwardConfig(keys.size("intermediate_size", 4096), activation_of(keys, default="gelu"))
    encoder = ModelConfig(
        family="pixtral",
        vocab_size=0,
        hidden_size=hidden,
        max_context=(keys.size("image_size", 1024) // patch) ** 2,
        layers=(LayerConfig(attention, feed_forward),) * layers,
        norm=Norm(1e-5),
        names=NAMES,
    )
    return VisionConfig(
        encoder,
        patch,
        keys.size("num_channels", 3),
        _projector(outer, hidden, output_size),
        patch_bias=False,
        input_norm=f"{_TOWER}.ln_pre",
        alternating=True,
    )


def _projector(outer: Keys, hidden: int, output_size: int) -> tuple[Step, ...]:
    """Return the steps of a Pixtral's projector, behind a merge of patches in a Mistral 3."""
    bias = outer.flag("multimodal_projector_bias", outer.get("model_type") == "llava")
    steps: tuple[Step, ...] = (
        Product(f"{_PROJECTOR}.linear_1", output_size, bias),
        Activate(activation_of(outer, "projector_hidden_act", "gelu")),
        Product(f"{_PROJECTOR}.linear_2", output_size, bias),
    )
    if outer.get("model_type") == "llava":
        return steps
    eps = outer.below("text_config").number("rms_norm_eps", 1e-5)
    merge = Merge(outer.size("spatial_merge_size", 2), by_channel=True)
    merging = Product(f"{_PROJECTOR}.patch_merger.merging_layer", hidden)
    return Scaling(f"{_PROJECTOR}.norm", Norm(eps)), merge, merging, *steps
