"""Positions of image tokens by row and column: the sections of ropes in models with a vision tower.

Without images, all coordinates of a token are its position. A text model alone has no need of sections.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.core.models.config import AttentionConfig, LayerConfig, ModelConfig
from rekindle.formats.families.wrapped import text_config_of

INTERLEAVED: Final[Mapping[str, tuple[int, int, int]]] = {
    "qwen3_5": (11, 11, 10),
    "qwen3_5_moe": (11, 11, 10),
    "qwen3_vl": (24, 20, 20),
    "qwen3_vl_moe": (24, 20, 20),
}
"""Models with interleaved sections, and the default numbers of their pairs."""
CONTIGUOUS: Final = ("qwen2_vl", "qwen2_5_vl")
"""Models with one section after the other."""


def with_coordinates(settings: Mapping[str, Any], config: ModelConfig, source: str) -> ModelConfig:
    """Return the config of a text model with the sections of its ropes, if its family has them.

    Args:
        settings: the config of the whole model.
        config: the text model.
        source: the origin of the config, for error messages.

    Raises:
        CheckpointError: the sections do not fit the ropes.
    """
    kind = str(settings.get("model_type"))
    if kind not in INTERLEAVED and kind not in CONTIGUOUS:
        return config
    text = text_config_of(settings).settings
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    sections = rope.get("mrope_section", INTERLEAVED.get(kind))
    return with_sections(config, sections, source, interleaved=kind in INTERLEAVED)


def with_sections(config: ModelConfig, sections: Any, source: str, *, interleaved: bool) -> ModelConfig:
    """Return a text model's config with ropes by sections.

    Args:
        config: the text model.
        sections: the numbers of pairs that rotate by time, row and column.
        source: the origin of the sections, for error messages.
        interleaved: whether sections take pairs in turn, as long as they have some left, and time takes the rest.

    Raises:
        CheckpointError: the sections do not fit the ropes.
    """
    if not isinstance(sections, Sequence) or any(
        isinstance(each, bool) or not isinstance(each, int) for each in sections
    ):
        raise CheckpointError(f"{source}: mrope_section must be three numbers of pairs, got {sections!r:.80}")

    def attention(each: AttentionConfig) -> AttentionConfig:
        if each.rope is None:
            return each
        pairs = (each.rope.dims or each.rotary_dims) // 2
        axes = _axes(tuple(sections[:3]), pairs, interleaved)
        if len(axes) != pairs:
            raise CheckpointError(f"{source}: mrope_section must have {pairs} pairs together, got {sections!r:.80}")
        return replace(each, rope=replace(each.rope, axes=axes))

    def layer(each: LayerConfig) -> LayerConfig:
        return each if each.attention is None else replace(each, attention=attention(each.attention))

    return replace(config, layers=tuple(map(layer, config.layers)))


def _axes(sections: tuple[int, ...], pairs: int, interleaved: bool) -> tuple[int, ...]:
    """Return the coordinate of each pair."""
    if interleaved and len(sections) == 3:
        return tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(pairs))
    # At most one more than there are pairs, which is wrong too.
    return tuple(axis for axis, count in enumerate(sections) for _ in range(min(count, pairs + 1)))
