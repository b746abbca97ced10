"""Image processors by the kind of a model's tower."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError, InvalidRequest
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.images.processed import VideoRules
from rekindle.formats.images.processors.gemma import read_gemma3, read_gemma4
from rekindle.formats.images.processors.pixtral import read_pixtral
from rekindle.formats.images.processors.processor import ImageProcessor
from rekindle.formats.images.processors.qwen import QwenImages
from rekindle.formats.images.processors.qwen_videos import read_qwen2, read_qwen3
from rekindle.formats.images.processors.settings import HALF, ProcessorSettings
from rekindle.formats.images.processors.squares import SquareImages
from rekindle.formats.images.processors.tiled.idefics3 import read_idefics3
from rekindle.formats.images.processors.tiled.internvl import read_internvl
from rekindle.formats.images.processors.tiled.lfm2_vl import read_lfm2_vl
from rekindle.formats.images.processors.tiled.llava_next import read_llava
from rekindle.formats.images.sizing import PIXELS, Sizing


def read_paligemma(settings: ProcessorSettings) -> SquareImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize", "do_convert_rgb")
    size: Any = settings.image.get("size") or {"height": 224, "width": 224}
    sides, trained = {settings.integer(size, name) for name in ("height", "width")}, settings.side("image_size", 224)
    if sides != {trained}:
        raise CheckpointError(
            f"{settings.source}: the image processor's size is {size!r:.80}, and that of the tower {trained} x "
            f"{trained}. Fetch the model again"
        )
    return SquareImages(
        size=trained,
        keeps_aspect=False,
        padding=None,
        resample=settings.integer(settings.image, "resample", 3),
        normalization=settings.normalization(HALF, HALF),
        patch=settings.side("patch_size", 16),
        image=settings.token("image_token_index", "image_token", "<image>"),
    )


IMAGE_SETTINGS: Final = ("preprocessor_config", "processor_config", "tokenizer_config", "video_preprocessor_config")
"""Names of the JSON files with settings of images."""
PROCESSORS: Final[Mapping[str, Callable[[ProcessorSettings], ImageProcessor]]] = {
    "gemma3": read_gemma3,
    "gemma4": read_gemma4,
    "idefics3": read_idefics3,
    "internvl": read_internvl,
    "lfm2_vl": read_lfm2_vl,
    "llava": read_llava,
    "paligemma": read_paligemma,
    "pixtral": read_pixtral,
    "qwen2_5_vl": read_qwen2,
    "qwen2_vl": read_qwen2,
    "qwen3_vl": read_qwen3,
}
"""Readers of image processors by the kind of the tower."""


def image_processor(
    kind: str | None,
    source: Path,
    config: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Any]],
    tokenizer: Tokenizer | None,
) -> ImageProcessor | None:
    """Return the image processor of a checkpoint, or None for a model without images.

    Args:
        kind: the kind of the tower; None for a model without a supported one.
        source: the directory, for error messages.
        config: config.json.
        files: the files of `IMAGE_SETTINGS`, by name; empty for a missing one.
        tokenizer: the tokenizer; None for a model without one, which takes no images.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    if kind is None or tokenizer is None:
        return None
    preprocessor, processor, tokens, video_preprocessor = (files[name] for name in IMAGE_SETTINGS)
    image, video = (
        own or (inner if isinstance(inner := processor.get(name), Mapping) else {})
        for name, own in (("image_processor", preprocessor), ("video_processor", video_preprocessor))
    )
    return PROCESSORS[kind](ProcessorSettings(source, config, image, processor, tokens, video, tokenizer))


def sized(processor: ImageProcessor, sizing: Sizing) -> ImageProcessor:
    """Return the rules of a family for one image with wishes for its size.

    Raises:
        InvalidRequest: the family has no such wishes.
    """
    if not isinstance(processor, QwenImages):
        raise InvalidRequest.of(
            "prompt",
            f"{', '.join(PIXELS)} are for images of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, and this model has "
            "another size: resize the image, or give it the detail 'low'",
        )
    rules = processor.at_low_detail() if sizing.detail == "low" else processor
    return replace(rules, sizing=sizing)


def videos_of(processor: ImageProcessor) -> VideoRules | None:
    """Return the rules of a family for videos; None for a family without support."""
    return processor.videos if isinstance(processor, QwenImages) else None
