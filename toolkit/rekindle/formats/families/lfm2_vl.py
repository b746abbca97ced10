"""The vision tower of LFM2-VL: a SigLIP 2 encoder with positions for images of any size, and a merger of patches."""

import math

from rekindle.core.models.config import Norm
from rekindle.core.models.vision.config import Activate, Merge, Product, Scaling, Step, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of
from rekindle.formats.families.siglip import read_encoder

_TOWER, _PROJECTOR = "model.vision_tower.vision_model", "model.multi_modal_projector"


def read_tower(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of an LFM2-VL.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    rows, merge = keys.size("num_patches", 256), outer.size("downsample_factor", 2)
    if math.isqrt(rows) ** 2 != rows:
        raise keys.wrong("num_patches", "must be the square of a number", rows)
    encoder = read_encoder(keys, "lfm2_vl", _TOWER, rows, (768, 3072, 12, 12))
    bias, width = outer.flag("projector_bias", True), outer.size("projector_hidden_size", 2560)
    norm = Scaling(f"{_PROJECTOR}.layer_norm", Norm(1e-5, centred=True, bias=True))
    steps: tuple[Step, ...] = (
        Merge(merge),
        *([norm] if outer.flag("projector_use_layernorm", True) else []),
        Product(f"{_PROJECTOR}.linear_1", width, bias),
        Activate(activation_of(outer, "projector_hidden_act", "gelu")),
        Product(f"{_PROJECTOR}.linear_2", output_size, bias),
    )
    return VisionConfig(encoder, keys.size("patch_size", 16), keys.size("num_channels", 3), steps, stretched="means")
