"""Images of PaliGemma: resized to one square, without their aspect."""

from typing import Any

from rekindle.core.errors import CheckpointError
from rekindle.formats.images.processors.settings import HALF, ProcessorSettings
from rekindle.formats.images.processors.squares import SquareImages


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
