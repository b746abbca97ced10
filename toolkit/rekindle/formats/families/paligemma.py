"""The vision tower of PaliGemma: a SigLIP encoder, and a product for each patch."""

from rekindle.core.models.vision.config import Product, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.siglip import read_encoder


def read_tower(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a PaliGemma.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    patch, image = keys.size("patch_size", 16), keys.size("image_size", 224)
    if image < patch:
        raise keys.wrong("image_size", f"must be at least {patch}, the size of a patch", image)
    size = keys.get("projection_dim", output_size)
    if size != output_size:
        raise keys.wrong("projection_dim", f"must be {output_size}, as in the text model", size)
    rows, base = (image // patch) ** 2, (768, 3072, 12, 12)
    encoder = read_encoder(keys, "paligemma", "model.vision_tower.vision_model", rows, base)
    projector = (Product("model.multi_modal_projector.linear", output_size, bias=True),)
    return VisionConfig(encoder, patch, keys.size("num_channels", 3), projector)
