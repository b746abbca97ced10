"""Checks of settings against a model."""

from rekindle.core.errors import ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.settings.engine import Settings


def check_model(settings: Settings, model: ModelConfig) -> None:
    """Check settings against a model.

    Raises:
        ConfigError: a setting contradicts the model.
    """
    if settings.max_context is not None and settings.max_context > model.max_context:
        raise ConfigError(f"max_context {settings.max_context} is above the model's own, {model.max_context}")
    _check_chunks(settings, model)
    if model.state_bytes:
        _check_states(settings)
    if settings.kv_dtype == "int8":
        _check_scales(model)
    if settings.draft is not None:
        _check_drafts(settings, model)


def _check_chunks(settings: Settings, model: ModelConfig) -> None:
    """Refuse pages across the bounds of a model's chunks of attention, if a request can be longer than a chunk."""
    max_context = settings.max_context or model.max_context
    for attention in model.attentions:
        if attention.chunk is not None and attention.chunk < max_context and attention.chunk % settings.page_size:
            raise ConfigError(
                f"page_size must divide {attention.chunk}, the size of this model's chunks of attention, got "
                f"{settings.page_size}; or pass a max_context of at most {attention.chunk}"
            )


def _check_scales(model: ModelConfig) -> None:
    """Refuse pages of int8 for entries that are not heads."""
    if any(attention.latent is not None for attention in model.attentions):
        raise ConfigError(
            'kv_dtype must not be "int8" for this model, whose layers have latent attention: its pages hold a latent '
            "and a rotary key of other sizes side by side, and the scales of int8 are for heads. Leave it out, or pass "
            '"bfloat16"'
        )


def _check_drafts(settings: Settings, model: ModelConfig) -> None:
    """Refuse drafts where a position computed twice would differ, and the head of a model without one."""
    if model.scalings_by_length:
        raise ConfigError(
            f'draft must be None for this model, whose rope depends on the length of a request, got "{settings.draft}"'
        )
    if settings.draft == "mtp" and model.draft_head is None:
        raise ConfigError(
            'draft must be "lookup" or None for this model, got "mtp": its files have no draft head that is supported. '
            "Those of DeepSeek-V3, GLM-4.5 to 4.7, GLM-4.7-Flash, Qwen3-Next and Qwen3.5 have one in safetensors, "
            "unless it was left out"
        )


def _check_states(settings: Settings) -> None:
    """Refuse settings with a need for the state of layers before the newest tokens."""
    if settings.prefill is not None:
        raise ConfigError(
            "prefill and decode must be None for this model, whose layers keep a state: pages of a prompt would arrive "
            "on the decode devices without the state after them"
        )
