"""The vision tower of Idefics3, SmolVLM and SmolVLM2: a SigLIP encoder, and a product of merged patches."""

from rekindle.core.models.vision.config import Merge, Product, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.siglip import read_encoder


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
    patch, image, merge = keys.size("patch_size", 32), keys.size("image_size", 224), outer.size("scale_factor", 2)
    side = image // patch
    if not side or side % merge:
        raise keys.wrong("image_size", f"must have a multiple of {merge} patches of {patch} pixels", image)
    encoder = read_encoder(keys, "idefics3", "model.vision_model", side**2, (1152, 3072, 12, 16))
    projector = Merge(merge), Product("model.connector.modality_projection.proj", output_size)
    return VisionConfig(encoder, patch, keys.size("num_channels", 3), projector)
