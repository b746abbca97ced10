"""Goldens of image input: sources, pixels of processors, and a tiny SmolVLM."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.images.processors.families import IMAGE_SETTINGS, image_processor
from rekindle.formats.images.processors.tiled.idefics3 import Idefics3Images
from rekindle.formats.images.prompts import ImagePrompts
from rekindle.formats.model_file import read_json

VISION: Final = Path(__file__).parents[2] / "goldens" / "vision"
SMOLVLM: Final = VISION / "smolvlm"
PIXELS: Final = VISION / "pixels"
SOURCES: Final[dict[str, Any]] = json.loads((PIXELS / "sources.json").read_text())


def smolvlm_images(**changes: Any) -> Idefics3Images:
    """Return the image processor of the tiny SmolVLM, with changes of its preprocessor_config.json."""
    files: dict[str, Any] = {name: read_json(SMOLVLM / f"{name}.json") for name in IMAGE_SETTINGS}
    files["preprocessor_config"] |= changes
    images = image_processor("idefics3", SMOLVLM, read_json(SMOLVLM / "config.json"), files, load_tokenizer(SMOLVLM))
    assert isinstance(images, Idefics3Images)
    return images


def smolvlm_prompts() -> ImagePrompts:
    """Return the prompts with images of the tiny SmolVLM."""
    tokenizer = load_tokenizer(SMOLVLM)
    assert tokenizer is not None
    return ImagePrompts(smolvlm_images(), tokenizer)


def sha256(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
