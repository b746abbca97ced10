"""Error messages for unsupported models, with their special parts and alternatives."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Final

from rekindle.core.models.families.keys import Keys

_ATTENTION_TYPES: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_STATES: Final[Mapping[str, str]] = {
    "linear_attention": "gated delta nets",
    "linear_num_value_heads": "gated delta nets",
    "conv": "short convolutions",
    "conv_L_cache": "short convolutions",
    "mamba": "Mamba layers",
    "hybrid_override_pattern": "Mamba layers",
    "mamba_d_state": "Mamba layers",
    "mamba_d_ssm": "Mamba layers",
    "ssm_state_size": "Mamba layers",
    "recurrent": "recurrent layers",
}
"""Layer types and config keys of layers with a recurrent state."""


def architecture_refusal(keys: Keys, architectures: Collection[str]) -> str:
    """Return the message for an unsupported architecture, with similar supported ones.

    Args:
        keys: the config.
        architectures: the supported architectures.
    """
    names = [str(each) for each in keys.get("architectures") or ()]
    inner = keys.get("text_config") or keys.get("llm_config")
    special = _state_of(keys, inner) or ("is a wrapper of a text model" if isinstance(inner, Mapping) else "")
    reason = f": it {special}, which is not supported" if special else " is not supported"
    if special:
        advice = "Open another model, or a GGUF file of its text model if that architecture is supported"
    else:
        near = difflib.get_close_matches((names or [""])[0], architectures, n=3)
        supported = (
            f"similar ones are {', '.join(near)}"
            if near
            else "see tutorials/guides/models_and_files.md for the families"
        )
        advice = (
            f"{len(architectures)} architectures are supported; {supported}. To open another architecture, pass "
            "open(..., family=Family(...))"
        )
    return f"{keys.source}: the architecture ({', '.join(names) or 'none named'}){reason}. {advice}"


def _state_of(keys: Keys, inner: Any) -> str:
    """Return a clause about a model's layers with recurrent state; empty if the config mentions none."""
    for config in (keys, Keys(inner, keys.source) if isinstance(inner, Mapping) else None):
        if config is None:
            continue
        kinds = [*(config.get("layer_types") or ()), *(config.get("layers_block_type") or ())]
        for name in (*(str(kind) for kind in kinds if kind not in _ATTENTION_TYPES), *_STATES):
            if name in _STATES and (name in kinds or config.get(name) is not None):
                return f"has {_STATES[name]}, which keep a state"
    return ""
