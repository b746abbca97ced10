"""Vision towers by the "model_type" of a `config.json`."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rekindle.core.concurrency.warning import warn
from rekindle.core.models.vision.config import VisionConfig
from rekindle.formats.families.idefics3 import read_tower as read_idefics3
from rekindle.formats.families.keys import Keys

TOWERS: Final[Mapping[str, Callable[[Keys, Keys, int], VisionConfig]]] = {
    "idefics3": read_idefics3,
    "smolvlm": read_idefics3,
}
"""Readers of the keys of a config and of its "vision_config", given the size of the text model's embeddings."""
_WITHOUT_EFFECT: Final = frozenset({"max_image_size", "size", "tie_word_embeddings", "use_base_siglip"})
"""Keys of images' processing, and of other models."""


def tower_config(settings: Mapping[str, Any], output_size: int, source: str) -> VisionConfig | None:
    """Read the vision tower of a `config.json`; None for a text model, or for a tower without support.

    Args:
        settings: the decoded JSON object.
        output_size: the size of the text model's embeddings.
        source: the origin of the config, for error messages.

    Raises:
        UnsupportedModel: a part of the tower's config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    reader = TOWERS.get(str(settings.get("model_type")))
    if reader is None or not isinstance(settings.get("vision_config"), Mapping):
        return None
    outer = Keys(settings, source)
    keys = outer.below("vision_config")
    config = reader(outer, keys, output_size)
    if unknown := ", ".join(key for key in keys.unread() if key not in _WITHOUT_EFFECT):
        warn(f"{keys.source} has unknown keys that may change the results of the model: {unknown}")
    return config
