"""Settings of a checkpoint's image processor."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.images.processors.arrays import Normalization

CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
"""Mean and deviation of the pixels of CLIP's training, by channel."""
HALF: Final = (0.5, 0.5, 0.5)
"""Mean and deviation for numbers from -1 to 1."""
_PLACES: Final = ("extra_special_tokens", "model_specific_special_tokens")
"""Keys of tokenizer_config.json with tokens by name; older files have the tokens beside the other keys."""


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """The settings of a checkpoint's image processor.

    Attributes:
        source: the directory, for error messages.
        config: config.json.
        image: preprocessor_config.json, or its place in processor_config.json.
        processor: processor_config.json.
        tokens: tokenizer_config.json.
        video: video_preprocessor_config.json, or its place in processor_config.json.
        tokenizer: the tokenizer.
    """

    source: Path
    config: Mapping[str, Any]
    image: Mapping[str, Any]
    processor: Mapping[str, Any]
    tokens: Mapping[str, Any]
    video: Mapping[str, Any]
    tokenizer: Tokenizer

    @property
    def tower(self) -> Mapping[str, Any]:
        """The config of the vision tower."""
        tower = self.config.get("vision_config")
        return tower if isinstance(tower, Mapping) else {}

    def integer(self, values: Any, name: str, default: int | None = None) -> int:
        """Return a positive integer among some settings; `resample` may be zero.

        Raises:
            CheckpointError: the setting is missing without a default, or no such integer.
        """
        value = values.get(name, default) if isinstance(values, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int) or value < (0 if name == "resample" else 1):
            raise CheckpointError(
                f"{self.source}: the image processor's {name} must be a positive integer, got {value!r:.80}"
            )
        return value

    def side(self, name: str, default: int) -> int:
        """Return a size of the tower in pixels, which may be two equal numbers.

        Raises:
            CheckpointError: the size is something else.
        """
        value = self.tower.get(name, default)
        sides = value if isinstance(value, list | tuple) and value and len(set(value)) == 1 else [value]
        return self.integer({name: sides[0]}, name)

    def normalization(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
        """Return the normalization of pixels, with defaults for a missing mean and a missing deviation.

        Raises:
            CheckpointError: a number is malformed.
        """
        image = self.image
        try:
            scale = float(image.get("rescale_factor", 1 / 255)) if image.get("do_rescale", True) else None
            if not image.get("do_normalize", True):
                return Normalization(scale, None, None)
            return Normalization(scale, _three(image.get("image_mean") or mean), _three(image.get("image_std") or std))
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.source}: rescale_factor, image_mean and image_std must be a number and three numbers each: "
                f"{error}"
            ) from error

    def token(self, id_name: str | None, name: str, default: str) -> str:
        """Return the text of a token: by its id in config.json, by its name in tokenizer_config.json, or the default.

        Raises:
            CheckpointError: config.json names an id without a token.
        """
        token_id = None if id_name is None else self.config.get(id_name)
        if isinstance(token_id, int):
            text = self.tokenizer.backend.id_to_token(token_id)
            if text is None:
                raise CheckpointError(f"{self.source}: the tokenizer has no token {token_id}, the {id_name}")
            return str(text)
        places = [self.tokens, *(self.tokens.get(place) for place in _PLACES)]
        values = [place.get(name) for place in places if isinstance(place, Mapping)]
        values = [value.get("content") if isinstance(value, Mapping) else value for value in values]
        return next((value for value in values if isinstance(value, str)), default)

    def processor_text(self, name: str, default: str) -> str:
        """Return a text of processor_config.json, such as a token's, or the default."""
        value = self.processor.get(name)
        return value if isinstance(value, str) else default

    def require(self, *names: str) -> None:
        """Check steps of the processor, all of them on.

        Raises:
            UnsupportedModel: one is off.
        """
        for name in names:
            if not self.image.get(name, True):
                raise UnsupportedModel(f"{self.source}: an image processor with {name}: false is not supported")


def _three(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(np.float32(value)) for value in values)  # as they are in GGUF files, and in use
    if len(numbers) != 3:
        raise ValueError(f"got {numbers}")
    return numbers
