"""The vision tower of LLaVA, LLaVA-NeXT and Granite Vision: the inner layers of a CLIP or a SigLIP encoder."""

from dataclasses import replace
from typing import Any

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import LearnedPositions, ModelConfig
from rekindle.core.models.vision.config import Activate, Multiply, Product, Step, VisionConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of
from rekindle.formats.families.siglip import read_encoder

_PLACE, _PROJECTOR = "model.vision_tower.vision_model", "model.multi_modal_projector"


def read_tower(outer: Keys, keys: Keys, output_size: int) -> VisionConfig:
    """Read the tower of a LLaVA or a LLaVA-NeXT.

    Args:
        outer: the keys of the whole model's config.
        keys: the keys of its "vision_config".
        output_size: the size of the text model's embeddings.

    Raises:
        UnsupportedModel: a part of the config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    is_clip = keys.get("model_type") == "clip_vision_model"
    patch, image = keys.size("patch_size", 32 if is_clip else 16), keys.size("image_size", 224)
    if image < patch:
        raise keys.wrong("image_size", f"must be at least {patch}, the size of a patch", image)
    strategy = "default" if is_clip else "full"  # the first of CLIP's tokens is not of a patch
    if (choice := outer.get("vision_feature_select_strategy", "default")) != strategy:
        raise UnsupportedModel(
            f"{outer.source}: vision_feature_select_strategy {choice!r:.80} is not supported with a tower of "
            f"{'CLIP' if is_clip else 'SigLIP'}, only {strategy!r}"
        )
    encoder = _clip(keys, (image // patch) ** 2) if is_clip else _siglip(keys, (image // patch) ** 2)
    numbers = _features(outer, encoder.num_layers)
    names = replace(encoder.names, norm=None)
    return VisionConfig(
        replace(encoder, layers=encoder.layers[: max(numbers)], names=names),
        patch,
        keys.size("num_channels", 3),
        _projector(outer, output_size),
        patch_bias=not is_clip,
        input_norm=f"{_PLACE}.pre_layrnorm" if is_clip else None,
        class_token=f"{_PLACE}.embeddings.class_embedding" if is_clip else None,
        features=numbers if len(numbers) > 1 else (),
        newline="model.image_newline" if outer.get("model_type") == "llava_next" else None,
    )


def _clip(keys: Keys, patches: int) -> ModelConfig:
    encoder = read_encoder(keys, "llava", _PLACE, patches + 1, (768, 3072, 12, 12), "quick_gelu", 1e-5)
    return replace(encoder, positions=LearnedPositions(patches + 1, offset=1))


def _siglip(keys: Keys, patches: int) -> ModelConfig:
    return read_encoder(keys, "llava", _PLACE, patches, (768, 3072, 12, 12))


def _features(outer: Keys, layers: int) -> tuple[int, ...]:
    """Return the numbers of the layers whose results are joined, 0 for the input of the first one.

    Raises:
        CheckpointError: the config has something else.
    """
    value: Any = outer.get("vision_feature_layer", -2)
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(type(each) is int and -layers - 1 <= each <= layers for each in numbers):
        expected = f"must be the number of one of {layers} layers, or a list of some"
        raise outer.wrong("vision_feature_layer", expected, value)
    positive = tuple(each if each >= 0 else layers + 1 + each for each in numbers)
    if not max(positive):
        raise outer.wrong("vision_feature_layer", "must have a layer", value)
    return positive


def _projector(outer: Keys, output_size: int) -> tuple[Step, ...]:
    """Return the steps of a projector. A Granite multiplies embeddings of images too."""
    bias, text = outer.flag("multimodal_projector_bias", True), outer.below("text_config")
    is_granite = str(text.get("model_type")).startswith("granite")
    factor = text.number("embedding_multiplier", 1.0) if is_granite else 1.0
    return (
        Product(f"{_PROJECTOR}.linear_1", output_size, bias),
        Activate(activation_of(outer, "projector_hidden_act", "gelu")),
        Product(f"{_PROJECTOR}.linear_2", output_size, bias),
        *([] if factor == 1 else [Multiply(factor)]),
    )
