"""Images of LLaVA: one square of each, cut out of the middle, padded, or without the aspect."""

from typing import Final

from rekindle.core.errors import UnsupportedModel
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, HALF, ProcessorSettings
from rekindle.formats.images.processors.squares import SquareImages

UNKNOWN: Final = "<unk>"
"""The unknown token of a Llama."""


def read_squares(settings: ProcessorSettings) -> SquareImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' classes.

    Raises:
        CheckpointError: a setting is malformed.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize", "do_convert_rgb")
    image, size = settings.image, square_size(settings)
    is_siglip = str(image.get("image_processor_type", "")).startswith("Siglip")
    normalization = settings.normalization(*((HALF, HALF) if is_siglip else (CLIP_MEAN, CLIP_STD)))
    token, place = image_tokens(settings)
    colour = tuple(int(each * 255) for each in normalization.mean or (0.0, 0.0, 0.0))
    return SquareImages(
        size=size,
        keeps_aspect="shortest_edge" in (image.get("size") or {"shortest_edge": size}),
        padding=colour if image.get("do_pad") else None,
        resample=settings.integer(image, "resample", 3),
        normalization=normalization,
        patch=settings.side("patch_size", 32),
        image=token,
        opening=f"{place}\n",
        place=place,
    )


def image_tokens(settings: ProcessorSettings) -> tuple[str, str]:
    """Return the texts of the token of an embedding and of an image's place.

    The vocabularies of the first LLaVAs have no token of images: the unknown token stands for the embeddings.

    Raises:
        CheckpointError: config.json names an id without a token.
        UnsupportedModel: the vocabulary has neither.
    """
    place = settings.token("image_token_index", "image_token", "<image>")
    token = next((each for each in (place, UNKNOWN) if settings.tokenizer.backend.token_to_id(each) is not None), None)
    if token is None:
        raise UnsupportedModel(
            f"{settings.source}: its images need the token {place!r} or {UNKNOWN!r}, and the model's vocabulary has "
            "neither. Take the model in the form of transformers, such as those of llava-hf"
        )
    return token, place


def square_size(settings: ProcessorSettings) -> int:
    """Return the pixels of the side of the tower's squares, which the image processor's sizes must be.

    Raises:
        CheckpointError: a size is malformed.
        UnsupportedModel: the image processor makes others.
    """
    trained, image = settings.side("image_size", 224), settings.image
    size = image.get("size") or {"shortest_edge": 224}
    cut = (image.get("crop_size") or {}) if image.get("do_center_crop", True) else {}
    by_name = [each if isinstance(each, dict) else {"size": each} for each in (size, cut)]  # older files have a number
    sides = [settings.integer(each, name) for each in by_name for name in each]
    if set(sides) != {trained}:
        raise UnsupportedModel(
            f"{settings.source}: images of {size!r:.80}, cut to {cut!r:.80}, are not supported, only those of the "
            f"tower, {trained} x {trained}. Fetch the model again"
        )
    return trained
