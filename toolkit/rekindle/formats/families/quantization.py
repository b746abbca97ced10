"""The method of a quantized checkpoint, by its config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import UnsupportedModel

KEYS: Final = ("quantization_config", "quantization", "compression_config")
"""Config keys of quantized weights: of most tools, of MLX, and of older compressed-tensors."""
METHODS: Final = (
    "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "mlx", "modelopt", "mxfp4",
)  # fmt: skip
"""The supported methods."""


@dataclass(frozen=True, slots=True)
class Method:
    """The quantization of a checkpoint.

    Attributes:
        name: the method, by the names of `METHODS` if it is supported.
        options: the quantization's part of the config.
    """

    name: str
    options: Mapping[str, Any]


def method_of(settings: Mapping[str, Any]) -> Method | None:
    """Return the method of a `config.json`, or of the text model in it; None for numbers as they are."""
    inner = settings.get("text_config")
    for config in (settings, inner if isinstance(inner, Mapping) else {}):
        for key in KEYS:
            options = config.get(key)
            if isinstance(options, Mapping) and options:
                return Method(str(options.get("quant_method") or _default(key, options)), options)
    return None


def _default(key: str, options: Mapping[str, Any]) -> str:
    if "config_groups" in options or key == "compression_config":
        return "compressed-tensors"
    return "mlx" if "bits" in options or "mode" in options else "an unnamed method"


def check_method(settings: Mapping[str, Any], source: str) -> None:
    """Refuse a method that is not supported.

    Raises:
        UnsupportedModel: the config has another method.
    """
    if (method := method_of(settings)) is not None and method.name not in METHODS:
        bits = f" in {method.options['bits']} bits" if method.options.get("bits") else ""
        raise UnsupportedModel(
            f"{source}: weights quantized by {method.name}{bits} are not supported, but {', '.join(METHODS)} are; open "
            "the unquantized model or a GGUF file of it"
        )
