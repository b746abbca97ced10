"""The words for models that do not open: what is special about them, and what opens instead."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Final

from rekindle.core.models.families.keys import Keys

QUANTIZED: Final = ("quantization_config", "quantization", "compression_config")
"""The keys that a config of quantized weights has: of most tools, of MLX, and of older compressed-tensors."""
_ATTENDING: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
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
"""Kinds of layers, and keys of configs, that tell of layers which keep a state."""


def refused_architecture(keys: Keys, architectures: Collection[str]) -> str:
    """Return why an architecture does not open, and what is near it.

    Args:
        architectures: those that open.
    """
    came = [str(each) for each in keys.get("architectures") or ()]
    inner = keys.get("text_config") or keys.get("llm_config")
    special = _state_of(keys, inner) or ("is a wrapper of a text model" if isinstance(inner, Mapping) else "")
    because = f": it {special}, which is not supported" if special else " is not supported"
    if special:
        way = "Open another model, or a GGUF file of its text model if its architecture is one that opens from GGUF"
    else:
        near = difflib.get_close_matches((came or [""])[0], architectures, n=3)
        said = f"near it are {', '.join(near)}" if near else "README lists those that are"
        way = f"Of {len(architectures)} that are, {said}. Another one can be opened with open(..., family=Family(...))"
    return f"{keys.source}: the architecture ({', '.join(came) or 'none named'}){because}. {way}"


def refused_quantization(keys: Keys, key: str) -> str:
    """Return why quantized weights do not open.

    Args:
        key: one of `QUANTIZED`, which the config has.
    """
    given = keys.below(key)
    method = given.get("quant_method") or ("MLX" if key == "quantization" else given.get("format"))
    bits = f", {bits} bits" if (bits := given.get("bits")) else ""
    words = f" ({method}{bits})" if method else ""
    what = f"quantized safetensors{words} are not supported"
    return f"{keys.source}: {what}; open the unquantized model or a GGUF file of it"


def _state_of(keys: Keys, inner: Any) -> str:
    """Return what a model has that keeps a state; nothing if no such thing is known of it."""
    for config in (keys, Keys(inner, keys.source) if isinstance(inner, Mapping) else None):
        if config is None:
            continue
        kinds = [*(config.get("layer_types") or ()), *(config.get("layers_block_type") or ())]
        for name in (*(str(kind) for kind in kinds if kind not in _ATTENDING), *_STATES):
            if name in _STATES and (name in kinds or config.get(name) is not None):
                return f"has {_STATES[name]}, which keep a state"
    return ""
